"""The round, from the sampled cohort to the commit; three protocols of servers; Lightning's loop; a cloud's processes.

Arguments are not read here: that is in `trainer`.
"""
