"""The command line of `fit`, and the YAML files that come with fedlit.

What the commands do is in `cli`.
"""
