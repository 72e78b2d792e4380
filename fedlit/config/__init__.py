"""The command line of `fit`, and the YAML files that come with fedlit.

What a command does is not here: that is in `cli`.
"""
