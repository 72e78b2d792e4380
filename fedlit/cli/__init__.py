"""The commands, one file each; `main` finds them.

They parse, call and print: what they call is in the other rooms.
"""
