"""The commands of `fedlit`, one thin file each; `cli.py` alone imports them."""
