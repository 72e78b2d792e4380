"""GrowingFile: a text file of a run that grows by one line a round, each in one system call."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from fedlit.errors import explained
from fedlit.files import write_text


class GrowingFile:
    """Lines of rounds. The last line can be taken back, if its round is undone.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._last = (-1, 0)  # its round, and where its line begins

    def start(self, lines: Iterable[str]) -> None:
        """Write the file anew with these lines, which have their ends, and keep it open."""
        self.close()
        write_text(self.path, "".join(lines))
        with explained(self.path):
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._last = (-1, 0)

    def append(self, round: int, line: str) -> None:
        """Append the line of one round: the whole of it, or nothing."""
        assert self._fd is not None, "start opens the file"
        content = line.encode()
        with explained(self.path):
            self._last = (round, os.fstat(self._fd).st_size)
            written = os.write(self._fd, content)
            if written < len(content):  # the disk became full within this line
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def forget_after(self, round: int) -> None:
        """Remove the last line if it belongs to a later round."""
        last, start = self._last
        if last > round and self._fd is not None:
            with explained(self.path):
                os.ftruncate(self._fd, start)
            self._last = (round, start)

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        if self._fd is not None:
            with explained(self.path):
                os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; `start` opens it again."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
