"""Many runs in one command: comparisons, sweeps, the papers' tables, conformance.

What is printed of them is in `cli`.
"""
