"""The folders of data sets and of the cache, whose content can be made again."""

import os
from pathlib import Path


def data_root(root: str | None) -> Path:
    """The folder of the data sets: `root` if given, else FEDLIT_DATA, else ./data."""
    return Path(root or os.environ.get("FEDLIT_DATA") or "data").expanduser()


def cache_home() -> Path:
    """The folder of compiled programs and mapped arrays: the one in FEDLIT_CACHE, else ~/.cache/fedlit."""
    return Path(os.environ.get("FEDLIT_CACHE", Path.home() / ".cache" / "fedlit"))


def make_private(folder: Path) -> str | None:
    """Make a cache folder that only this user can write to; returns None, or why it is not private.

    Its files are run or mapped into memory: whoever can write there could run code as this user.
    """
    for place in (cache_home(), folder):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = place.stat()
        if about.st_uid != os.getuid():
            return f"{place} belongs to another user"
        if about.st_mode & 0o022:
            return f"others may write in {place}"
    return None
