"""Frames: a small head and bytes, over a Unix socket between a relay and the process that it works for.

Relays are started for every message, so nothing here needs more than Python itself.
"""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

Head = dict[str, Any]

_LENGTH = struct.Struct("<Q")
_LONGEST_HEAD = 2**24
MOST_BYTES = 2**33
"""Bytes of a frame, at most."""


class ClosedError(Exception):
    """The other end has closed the socket, or sent what is no frame."""


def connect(path: str, timeout: float | None = None) -> socket.socket:
    """A connection to the process that listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    connection.connect(path)
    return connection


def send(connection: socket.socket, head: Head, blobs: Sequence[bytes] = ()) -> None:
    """Send a frame: plain data, and any number of byte strings."""
    content = json.dumps({"head": head, "sizes": [len(blob) for blob in blobs]}).encode()
    connection.sendall(_LENGTH.pack(len(content)) + content)
    for blob in filter(None, blobs):  # the other end may be gone by then
        connection.sendall(blob)


def receive(connection: socket.socket, most: int = MOST_BYTES) -> tuple[Head, list[bytes]]:
    """The next frame; ClosedError if there is none, or it is longer than `most` bytes."""
    [length] = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > _LONGEST_HEAD:
        raise ClosedError(f"a head of {length:,} bytes")
    content = json.loads(_exactly(connection, length))
    if sum(content["sizes"]) > most:
        raise ClosedError(f"a message of {sum(content['sizes']):,} bytes, and {most:,} are allowed")
    return content["head"], [_exactly(connection, size) for size in content["sizes"]]


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray(size)
    view, done = memoryview(received), 0
    while done < size:
        count = connection.recv_into(view[done:])
        if not count:
            raise ClosedError("the other end has closed the connection")
        done += count
    return bytes(received)
