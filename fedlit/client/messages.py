"""Messages: plain data and tensors as bytes, between processes and machines, and in the files of nodes.

A message is a dict. Its plain part is JSON, its tensors are their numbers in order; nothing is unpickled. What is read
may come from anybody: every length is checked against the bytes that are there before a tensor is made.
"""

import json
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedlit.client.row_layout import as_bytes, bytes_as_tensor, dtype_named, name_of
from fedlit.errors import ConfigError, MessageError

Message = dict[str, Any]

_ALIGNED = 16
_MOST_ROWS = 2**24
"""Rows of an expanded view, at most: a message of a few bytes must not stand for a memory full of numbers."""


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
    """The inverse of `pack`; the tensors are views of the packed bytes. MessageError if it is none."""
    try:
        return _unpacked(packed)
    except (ValueError, LookupError, TypeError, RuntimeError, RecursionError) as error:
        raise MessageError(
            f"A message of {len(packed):,} bytes cannot be read ({type(error).__name__}: {str(error)[:100]}): it is "
            "damaged, or another program has sent it."
        ) from error


def _unpacked(packed: Tensor) -> Message:
    length = int(packed[:8].view(torch.int64))
    start = _ALIGNED + aligned(length)
    if not 0 < length <= len(packed) - _ALIGNED:
        raise ValueError("its plain part is longer than the message")
    head = json.loads(packed[_ALIGNED : _ALIGNED + length].numpy().tobytes())
    tensors = []
    for name, shape, rows in head["tensors"]:
        tensor = tensor_of(packed[start:], dtype_named(name), shape)
        start += aligned(tensor.nbytes)
        if rows is not None and not 0 < rows <= _MOST_ROWS:
            raise ValueError(f"a tensor is repeated {rows} times")
        tensors.append(tensor if rows is None else tensor.unsqueeze(0).expand(rows, *shape))
    message: Message = from_plain(head["plain"], tensors)
    if not isinstance(message, dict):
        raise ValueError("it is not a dict")
    return message


def tensor_of(content: Tensor, dtype: torch.dtype, shape: list[int]) -> Tensor:
    """The tensor at the beginning of these bytes; ValueError if they are too few."""
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"a tensor has the shape {shape}")
    size = dtype.itemsize * prod(shape)
    if size > len(content):
        raise ValueError(f"a tensor of shape {shape} is longer than the message")
    return content[:size].view(dtype).reshape(shape)


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
