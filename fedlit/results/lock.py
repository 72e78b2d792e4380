"""One process at a time in a folder: an advisory lock on a file that says who holds it.

The lock ends with its process: after a kill the file stays, but another process can take the lock.
"""

import fcntl
import json
import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from fedlit.errors import RunError

log = logging.getLogger("fedlit")

PATIENCE = 2.0
"""Seconds within which the holder of a lock must have written who it is."""


class FolderLock:
    """The right to write in a folder.

    Args:
        folder: it must exist when the lock is taken.
        elsewhere: the option that chooses another folder, for the error.
    """

    def __init__(self, folder: Path, elsewhere: str) -> None:
        self.folder, self.elsewhere = folder, elsewhere
        self.path = folder / "lock"
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def take(self) -> None:
        """Take the lock; RunError says who holds it."""
        while self._fd is None:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if self._is_ours(fd):
                    os.ftruncate(fd, 0)
                    os.write(fd, _who_we_are())
                    self._fd = fd
            finally:
                if self._fd is None:
                    os.close(fd)

    def give_back(self) -> None:
        """Release the lock and remove its file."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        with suppress(OSError):  # the folder may be gone
            self.path.unlink()  # while it is ours: whoever has opened it meanwhile sees that it is gone
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough where a forked child has it open too
        os.close(fd)

    def _is_ours(self, fd: int) -> bool:
        """Lock the open file; False if its holder has just removed it, and the caller must try again."""
        try:
            if not locked(fd):
                raise RunError(
                    f"{self.folder} is in use: {_holder(fd)}. Wait for its end or stop it, or choose another folder "
                    f"with {self.elsewhere}."
                )
        except OSError as error:
            log.warning(
                f"{self.folder} cannot be locked ({error.strerror}): its file system has no locks. Nothing keeps "
                "a second run out of it, so start only one there."
            )
        return _names(self.path, fd)


def locked(fd: int) -> bool:
    """Lock an open file for this process and those that it hands the file to; False if another has it.

    OSError where the file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(path: Path, fd: int) -> bool:
    """Whether the path still names the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _who_we_are() -> bytes:
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return (json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n").encode()


def _holder(fd: int) -> str:
    """Who holds the lock, as its file says. The file is empty just after the lock was taken: read it again then."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            holder = json.loads(os.pread(fd, 4096, 0))
            return f"process {holder['pid']} on {holder['host']} has written there since {holder['since']}"
        except (ValueError, LookupError, TypeError):
            if time.monotonic() > deadline:
                return "another process writes there"
        time.sleep(0.01)
