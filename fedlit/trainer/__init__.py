"""The trainer: makes objects of arguments, checks combinations, describes, saves and restores runs; W&B.

The phases of a round are in `rounds`.
"""
