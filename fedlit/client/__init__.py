"""A client: the contract of an algorithm, steps, tasks, local optimisers, the cohort, the rows that clients keep.

How steps are run is not here: that is in `engines`.
"""
