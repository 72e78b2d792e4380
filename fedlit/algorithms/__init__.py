"""One file per paper: a Client and the server callbacks that only it needs.

Nothing here knows an engine or the loop.
"""
