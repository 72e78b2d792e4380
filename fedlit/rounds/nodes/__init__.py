"""A cloud as processes on this machine: a coordinator, servers and clients that send each other messages.

The ordinary round (`round.py`) is split among them: the coordinator decides which servers step together and mixes their
models, a server sends, receives and steps, and client processes train.
"""
