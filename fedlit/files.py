"""Files: where data sets and the cache are, and how a file is written so that a kill loses nothing."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedlit.errors import explained


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
    for path in (cache_home(), folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = path.stat()
        if about.st_uid != os.getuid():
            return f"{path} belongs to another user"
        if about.st_mode & 0o022:
            return f"others may write in {path}"
    return None


# ---- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A temporary file to fill, which then becomes `path`: at every instant that is the old file or the new one.

    Args:
        path: its folder must exist. What is no regular file, such as /dev/null, is written as it is.
        shared: other processes may write the same file meanwhile. Without it the temporary file is `<path>.tmp`, which
            the next writer removes if this one is killed.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    tmp = draft_of(path, secrets.token_hex(4) if shared else "")
    try:
        tmp.unlink(missing_ok=True)  # a killed run's previous.ckpt.tmp may be a second name of last.ckpt
        yield tmp
        sync(tmp)
        os.replace(tmp, path)
        sync(path.parent)
    finally:
        tmp.unlink(missing_ok=True)


def draft_of(path: Path, token: str = "") -> Path:
    """The temporary file of one that is being replaced."""
    return path.with_name(".".join(filter(None, (path.name, token, "tmp"))))


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """The same for a file of a run; RunError if it cannot be written."""
    with explained(path), replacing(path) as tmp:
        yield tmp


def write_text(path: Path, text: str) -> None:
    """Write or replace a text file; RunError if it cannot be written."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """The same for any file."""
    with writing(path) as tmp:
        tmp.write_bytes(content)


def write_json(path: Path, content: Any) -> None:
    """The same for plain data."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(*paths: Path) -> None:
    """Remove files and what a kill left of their writing; what is not there stays so."""
    for path in paths:
        path.unlink(missing_ok=True)
        draft_of(path).unlink(missing_ok=True)
