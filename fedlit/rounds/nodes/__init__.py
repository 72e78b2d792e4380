"""A cloud as processes on this machine: a coordinator, servers and clients that send each other messages.

The round is the ordinary one (`round.py`), divided: the coordinator decides who steps together and mixes, a server
sends, receives and steps, client processes train. What differs is what is asked over the wire.
"""
