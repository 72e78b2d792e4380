"""FlatLayout: named tensors as columns of one flat row, so that a client's numbers are copied at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedlit.params import Params


@dataclass(frozen=True)
class FlatLayout:
    """The positions of named tensors in a flat row."""

    shapes: dict[str, tuple[int, ...]]
    skipped: frozenset[str] = frozenset()
    """Tensors that no step reads: they keep their columns, but `write` does not fill them."""
    as_bytes: dict[str, torch.dtype] = field(default_factory=dict)
    """Tensors of another dtype than the row's (such as counters): one number for each byte, so that they stay exact."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], *, stacked: bool = False) -> "FlatLayout":
        """The layout of these tensors; `stacked` ones have the client as first dimension."""
        shapes = {name: tuple(value.shape[1:] if stacked else value.shape) for name, value in tensors.items()}
        first = next((value.dtype for value in tensors.values()), None)
        others = {name: value.dtype for name, value in tensors.items() if value.dtype != first}
        return cls(shapes, as_bytes=others)

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers of a row each tensor takes, in order."""
        width = {name: dtype.itemsize for name, dtype in self.as_bytes.items()}
        return [prod(shape) * width.get(name, 1) for name, shape in self.shapes.items()]

    @cached_property
    def places(self) -> dict[str, slice]:
        """Tensor -> its columns in a row, except those in `skipped`."""
        begins = accumulate(self.sizes, initial=0)
        columns = zip(self.shapes, begins, self.sizes, strict=False)  # a row's end begins nothing
        return {name: slice(begin, begin + size) for name, begin, size in columns if name not in self.skipped}

    def split(self, flat: Tensor) -> Params:
        """(rows, D) -> name -> (rows, *shape); views for tensors of the row's dtype."""
        pieces = dict(zip(self.shapes, torch.split(flat, self.sizes, 1), strict=True))
        pieces |= {name: _from_bytes(pieces[name], dtype) for name, dtype in self.as_bytes.items()}
        return {name: pieces[name].reshape(len(flat), *shape) for name, shape in self.shapes.items()}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `split`."""
        parts = dict(tensors) | {name: _to_bytes(tensors[name], dtype) for name, dtype in self.as_bytes.items()}
        return torch.cat([parts[name].reshape(len(parts[name]), -1) for name in self.shapes], 1)

    def write(self, row: np.ndarray, arrays: Mapping[str, np.ndarray], k: int) -> None:
        """Copy the k-th entry of stacked arrays into one flat row, except those in `skipped`."""
        for name, columns in self.places.items():
            row[columns] = arrays[name][k].reshape(-1)


def _to_bytes(value: Tensor, dtype: torch.dtype) -> Tensor:
    """(rows, …) -> (rows, bytes), numbers from 0 to 255, which every floating-point format represents exactly."""
    plain = value.to(dtype).reshape(len(value), -1).clone(memory_format=torch.contiguous_format)
    return plain.to(torch.uint8) if dtype == torch.bool else plain.view(torch.uint8)


def _from_bytes(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse, without the shape. Booleans are compared: in compiled programs they cannot be views of bytes."""
    return numbers.reshape(-1) != 0 if dtype == torch.bool else numbers.reshape(-1).to(torch.uint8).view(dtype)
