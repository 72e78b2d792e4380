"""RowLayout: named rows of clients as bytes, as they travel between processes and lie on a disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedlit.params import Params


@dataclass(frozen=True)
class RowLayout:
    """Named rows as bytes, so that every type stays exact: what they are, and where they lie in a row."""

    dtypes: dict[str, torch.dtype]
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, rows: Params) -> "RowLayout":
        """Of stacked rows. The names are sorted: what comes from a set has another order in every process."""
        names = sorted(rows)
        return cls({name: rows[name].dtype for name in names}, {name: tuple(rows[name].shape[1:]) for name in names})

    @classmethod
    def agreed(cls, layouts: Sequence["RowLayout"]) -> "RowLayout":
        """That of the ranks that have rows; a wider type of any of them counts, as in a stack."""
        known = [layout for layout in layouts if layout.shapes]
        dtypes = dict(known[0].dtypes) if known else {}
        for layout in known[1:]:
            dtypes = {name: torch.promote_types(dtype, layout.dtypes[name]) for name, dtype in dtypes.items()}
        return cls(dtypes, known[0].shapes if known else {})

    def to_json(self) -> dict[str, list[Any]]:
        """Of each tensor its type and then its shape, for another rank."""
        return {name: [str(dtype).removeprefix("torch."), *self.shapes[name]] for name, dtype in self.dtypes.items()}

    @classmethod
    def from_json(cls, layout: dict[str, list[Any]]) -> "RowLayout":
        """The inverse."""
        dtypes = {name: getattr(torch, dtype) for name, (dtype, *_) in layout.items()}
        return cls(dtypes, {name: tuple(shape) for name, (_, *shape) in layout.items()})

    @property
    def widths(self) -> list[int]:
        """Bytes of each."""
        return [prod(shape) * self.dtypes[name].itemsize for name, shape in self.shapes.items()]

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return sum(self.widths)

    def write(self, rows: Params, out: Tensor) -> None:
        """Stacked rows into (rows, width) bytes."""
        for (name, dtype), place in zip(self.dtypes.items(), torch.split(out, self.widths, 1), strict=True):
            if place.numel():
                plain = rows[name].detach().to(dtype).contiguous().reshape(len(out), -1)
                place.copy_(plain.view(torch.uint8))

    def read(self, flat: Tensor) -> Params:
        """The inverse; copies, so that every tensor is whole."""
        pieces = zip(self.shapes.items(), torch.split(flat, self.widths, 1), strict=True)
        return {name: self._tensor(name, piece).reshape(len(flat), *shape) for (name, shape), piece in pieces}

    def _tensor(self, name: str, piece: Tensor) -> Tensor:
        if not piece.numel():
            return torch.empty(0, dtype=self.dtypes[name])
        return piece.clone(memory_format=torch.contiguous_format).view(self.dtypes[name])
