"""What the command line's parser says, as one paragraph that names the key, what is wrong and how to fix it."""

import re

from jsonargparse import ArgumentParser


def explain(message: str, parser: ArgumentParser) -> str:
    """The parser's message in plain words."""
    return message
