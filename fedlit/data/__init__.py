"""Data sets, each cut into clients; `base.py` holds the contract.

Nothing here knows a model or a round.
"""
