"""A federation whose clients are elsewhere: the node of one client, the server's half of the round, and a link between.

Nothing here knows how messages travel: `flower` carries them over a network. Arguments are read in `config` and `cli`.
"""
