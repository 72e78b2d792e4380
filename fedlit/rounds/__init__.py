"""The round, from the sampled cohort to the commit; three protocols of servers; Lightning's loop.

Arguments are not read here: that is in `trainer`.
"""
