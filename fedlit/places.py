"""Where fedlit looks for data sets, and where it keeps what can be made again."""

import os
from pathlib import Path


def data_root(root: str | None) -> Path:
    """The folder of the data sets: the one that was named, else that in FEDLIT_DATA, else ./data."""
    return Path(root or os.environ.get("FEDLIT_DATA") or "data").expanduser()


def cache_home() -> Path:
    """The folder of compiled programs and mapped arrays: the one in FEDLIT_CACHE, else ~/.cache/fedlit."""
    return Path(os.environ.get("FEDLIT_CACHE", Path.home() / ".cache" / "fedlit"))
