"""A federation on Flower: SuperLink and SuperNodes carry the messages of `remote` between machines.

Only files of this room import flwr, and none of them trains or averages: Flower starts a process for each message, so
its apps are relays to a process that has fedlit loaded already.
"""
