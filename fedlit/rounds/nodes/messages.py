"""Messages between processes, point to point over torch.distributed's gloo. All sockets are on loopback.

Only sends and receives are used, because a failed collective breaks the remaining processes. The group is not torch's
default group, so Lightning does not take this process for a distributed one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]  # torch lists the first alone

from fedlit.client.messages import Message, pack, unpack
from fedlit.engines.processes.rendezvous import HOST, LOOPBACK, serve_here

_FOREVER = timedelta(days=365)
"""No timeout: if the other process ends, its connection closes, and that ends the wait. (A timeout would make gloo
close every connection of this process.)"""


class ConnectionLostError(Exception):
    """The process at the other end has ended."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"The connection to process {rank} is closed.")
        self.rank = rank


class Wire:
    """Sends messages to the other processes, and receives theirs.

    Args:
        store: the store through which the processes find each other.
        rank: number of this process.
        size: number of processes.
        patience: seconds within which all processes must connect.
    """

    def __init__(self, store: TCPStore, rank: int, size: int, patience: float) -> None:
        with loopback():
            self._group: Any = ProcessGroupGloo(store, rank, size, timedelta(seconds=patience))  # its types lack send

    def send(self, rank: int, message: Message) -> None:
        """Send a message to a process; ConnectionLostError if that process has ended."""
        packed = pack(message)
        self._transfer(rank, self._group.send, torch.tensor([len(packed)]))
        self._transfer(rank, self._group.send, packed)

    def receive(self, rank: int) -> Message:
        """Wait for the next message of a process; ConnectionLostError if that process has ended."""
        length = torch.zeros(1, dtype=torch.int64)
        self._transfer(rank, self._group.recv, length)
        packed = torch.empty(int(length), dtype=torch.uint8)
        self._transfer(rank, self._group.recv, packed)
        return unpack(packed)

    def _transfer(self, rank: int, operation: Any, tensor: Tensor) -> None:
        try:
            operation([tensor], rank, 0).wait(_FOREVER)
        except RuntimeError as error:  # gloo has no type of its own for a closed connection
            raise ConnectionLostError(rank) from error


@contextmanager
def loopback() -> Iterator[None]:
    """Inside the block, gloo listens only on loopback; it reads the interface's name from the environment."""
    name = "GLOO_SOCKET_IFNAME"
    before = os.environ.get(name)
    os.environ[name] = LOOPBACK
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def open_store(port: int, patience: float) -> TCPStore:
    """Open the store through which the processes find each other; port 0 takes a free port."""
    remedy = "Give another one, or leave --port out to take a free one"
    return serve_here(port, patience, f"--port is {port}", remedy)


def join_store(port: int, patience: float) -> TCPStore:
    """Join that store from another process."""
    return TCPStore(HOST, port, is_master=False, timeout=timedelta(seconds=patience))
