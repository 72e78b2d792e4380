"""Which sockets of a process listen, read from the system; and strangers who come to them."""

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Address and port of every TCP socket on which the processes listen; those that have ended have none."""
    inodes = {inode for pid in pids for inode in _inodes(pid)}
    tables = Path("/proc/net/tcp").read_text().splitlines()[1:] + Path("/proc/net/tcp6").read_text().splitlines()[1:]
    rows = [line.split() for line in tables]
    return {_place(row[1]) for row in rows if row[3] == LISTENS and row[9] in inodes}


def _inodes(pid: int) -> list[str]:
    links = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(os.readlink(file))
    return [link[8:-1] for link in links if link.startswith("socket:[")]


def _place(written: str) -> tuple[str, int]:
    """An address as the system writes it: words of four bytes, the lowest byte first."""
    address, port = written.split(":")
    words = [bytes.fromhex(address[k : k + 8])[::-1] for k in range(0, len(address), 8)]
    kind = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(kind, b"".join(words)), int(port, 16)


class Strangers:
    """They come to every port once: one closes at once, one stays silent, one speaks HTTP."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self._held: list[socket.socket] = []

    def visit(self, places: Iterable[tuple[str, int]]) -> None:
        """Those that are new."""
        for place in set(places) - self.seen:
            self.seen.add(place)
            for words in (None, b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 50):
                with suppress(ConnectionError):  # it may be gone by now
                    self._speak(place, words)

    def _speak(self, place: tuple[str, int], words: bytes | None) -> None:
        stranger = socket.create_connection(("127.0.0.1", place[1]), timeout=5)
        if words is None:
            stranger.close()
        else:
            self._held.append(stranger)
            stranger.sendall(words)

    def leave(self) -> None:
        """All at once."""
        for stranger in self._held:
            stranger.close()
