"""The trainer: arguments become objects, combinations are checked, runs are described, saved and restored; W&B.

The phases of a round are not here: they are in `rounds`.
"""
