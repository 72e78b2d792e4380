"""Tensors as bytes, the form in which processes exchange them and disks store them. `RowLayout`: named rows as bytes.

Bytes of a tensor are its numbers in order, so every type stays exact. An archive is the file that `torch.save` writes:
tensors and plain data, nested in any way, and read without running a line of it.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedlit.params import Params


@dataclass(frozen=True)
class RowLayout:
    """Types and shapes of named tensors, in the order in which their bytes make up a row."""

    dtypes: dict[str, torch.dtype]
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, rows: Params) -> "RowLayout":
        """The layout of stacked rows. Names are sorted: those of a set come in another order in every process."""
        names = sorted(rows)
        return cls({name: rows[name].dtype for name in names}, {name: tuple(rows[name].shape[1:]) for name in names})

    @classmethod
    def agreed(cls, layouts: Sequence["RowLayout"]) -> "RowLayout":
        """The common layout of the ranks that have rows; where types differ, the wider one counts."""
        known = [layout for layout in layouts if layout.shapes]
        dtypes = dict(known[0].dtypes) if known else {}
        for layout in known[1:]:
            dtypes = {name: torch.promote_types(dtype, layout.dtypes[name]) for name, dtype in dtypes.items()}
        return cls(dtypes, known[0].shapes if known else {})

    def to_json(self) -> dict[str, list[Any]]:
        """The type and then the shape of each tensor, for another rank."""
        return {name: [name_of(dtype), *self.shapes[name]] for name, dtype in self.dtypes.items()}

    @classmethod
    def from_json(cls, layout: dict[str, list[Any]]) -> "RowLayout":
        """The inverse of `to_json`; ValueError for an unknown type."""
        dtypes = {name: dtype_named(dtype) for name, (dtype, *_) in layout.items()}
        return cls(dtypes, {name: tuple(shape) for name, (_, *shape) in layout.items()})

    @property
    def widths(self) -> list[int]:
        """Bytes of each tensor in a row."""
        return [prod(shape) * self.dtypes[name].itemsize for name, shape in self.shapes.items()]

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return sum(self.widths)

    def write(self, rows: Params, out: Tensor) -> None:
        """Write stacked rows into (rows, width) bytes."""
        for (name, dtype), columns in zip(self.dtypes.items(), torch.split(out, self.widths, 1), strict=True):
            if columns.numel():
                columns.copy_(as_bytes(rows[name].to(dtype)).view(len(out), -1))

    def read(self, flat: Tensor) -> Params:
        """The inverse of `write`; copies, so that every tensor is contiguous."""
        pieces = zip(self.shapes.items(), torch.split(flat, self.widths, 1), strict=True)
        return {name: self._tensor(name, piece).reshape(len(flat), *shape) for (name, shape), piece in pieces}

    def _tensor(self, name: str, piece: Tensor) -> Tensor:
        if not piece.numel():
            return torch.empty(0, dtype=self.dtypes[name])
        return piece.clone(memory_format=torch.contiguous_format).view(self.dtypes[name])


def as_bytes(value: Tensor) -> Tensor:
    """(bytes,) uint8; the same memory where the numbers lie in order."""
    flat = value.detach().contiguous().view(-1)
    if len(flat) == 1:  # one number of an expanded tensor counts as contiguous, with stride 0
        flat = flat.as_strided((1,), (1,))
    return flat.view(torch.uint8)


def bytes_as_tensor(content: bytes, size: int = 0) -> Tensor:
    """(bytes,) uint8, with zeros up to a size."""
    return torch.frombuffer(bytearray(content.ljust(size, b"\0")), dtype=torch.uint8)


def name_of(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The inverse; ValueError where it is no type."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is not a type of numbers")
    return dtype


def archive(content: Any) -> bytes:
    """Tensors and plain data, as a file of torch.save; in memory, because torch reports a full disk in its own way."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def read_archive(content: bytes) -> Any:
    """The inverse, on the host; nothing in it is run."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
