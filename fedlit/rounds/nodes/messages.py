"""Messages between processes: plain data and tensors, point to point over torch.distributed's gloo.

A message is a dict of plain data (as JSON) and tensors (as bytes); nothing is unpickled. All sockets are on loopback.
Only sends and receives are used, because a failed collective breaks the remaining processes. The group is not torch's
default group, so Lightning does not take this process for a distributed one.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]  # torch lists the first alone

from fedlit.client.row_layout import as_bytes, bytes_as_tensor, dtype_named, name_of
from fedlit.engines.processes.rendezvous import HOST, LOOPBACK, serve_here
from fedlit.errors import ConfigError

Message = dict[str, Any]

_FOREVER = timedelta(days=365)
"""No timeout: if the other process ends, its connection closes, and that ends the wait. (A timeout would make gloo
close every connection of this process.)"""
_ALIGNED = 16


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


# ---- a message as bytes ----------------------------------------------------------------------------------------------


def pack(message: Message) -> Tensor:
    """(bytes,) uint8: the length of the plain part, the plain part, the tensors."""
    tensors: list[Tensor] = []
    plain = to_plain(message, tensors)
    parts = [stored(tensor) for tensor in tensors]
    head = json.dumps({"plain": plain, "tensors": [described(tensor) for tensor in tensors]}).encode()
    length = torch.tensor([len(head)]).view(torch.uint8)
    whole = [length, bytes_as_tensor(head), *(as_bytes(part) for part in parts)]
    return torch.cat([padded(part) for part in whole])


def unpack(packed: Tensor) -> Message:
    """The inverse of `pack`; the tensors are views of the packed bytes."""
    length = int(packed[:8].view(torch.int64))
    head = json.loads(packed[_ALIGNED : _ALIGNED + length].numpy().tobytes())
    start, tensors = _ALIGNED + aligned(length), []
    for name, shape, rows in head["tensors"]:
        dtype = dtype_named(name)
        size = dtype.itemsize * torch.Size(shape).numel()
        tensor = packed[start : start + size].view(dtype).reshape(shape)
        tensors.append(tensor if rows is None else tensor.unsqueeze(0).expand(rows, *shape))
        start += aligned(size)
    message: Message = from_plain(head["plain"], tensors)
    return message


def to_plain(value: Any, tensors: list[Tensor]) -> Any:
    """Plain data, with tensors replaced by their index in the list. Keys of dicts and tuples keep their types."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1}
    if isinstance(value, dict):
        return {"items": [[to_plain(key, tensors), to_plain(entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        entries = [to_plain(entry, tensors) for entry in value]
        return entries if isinstance(value, list) else {"tuple": entries}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"A {type(value).__name__} cannot be sent from process to process: only tensors and plain data (numbers, "
        "texts, lists, dicts) can. Let the callback's state_dict() hold nothing else."
    )


def from_plain(value: Any, tensors: list[Tensor]) -> Any:
    """The inverse of `to_plain`."""
    if isinstance(value, list):
        return [from_plain(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(from_plain(entry, tensors) for entry in value["tuple"])
    return {from_plain(key, tensors): from_plain(entry, tensors) for key, entry in value["items"]}


def described(tensor: Tensor) -> tuple[str, list[int], int | None]:
    """Type, shape, and for an expanded view the number of its rows, else None."""
    rows = len(tensor) if is_expanded(tensor) else None
    return name_of(tensor.dtype), list(stored(tensor).shape), rows


def stored(tensor: Tensor) -> Tensor:
    """The part of a tensor that is sent: one row of an expanded view (a model that every client received), else all."""
    return tensor[0] if is_expanded(tensor) else tensor


def is_expanded(tensor: Tensor) -> bool:
    """Whether all rows share the same memory."""
    return tensor.dim() > 0 and len(tensor) > 1 and tensor.stride(0) == 0


def padded(part: Tensor) -> Tensor:
    """Padded with zeros, so that the next part is aligned for every type of numbers."""
    return torch.nn.functional.pad(part, (0, aligned(len(part)) - len(part)))


def aligned(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // _ALIGNED) * _ALIGNED
