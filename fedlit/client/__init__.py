"""A client: the contract of an algorithm, steps, tasks, local optimisers, the cohort, and the rows that clients keep.

The code that trains clients is not here: it is in `engines`.
"""
