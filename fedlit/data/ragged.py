"""Ragged: the row numbers of many clients in one array; each client has a piece of it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedlit.data.partition.base import RowNumbers


class Ragged(Sequence[Tensor]):
    """A sequence of int64 tensors, one for each client, which are views of one array.

    Args:
        values: all row numbers.
        starts: where each client's piece begins.
        sizes: the length of each piece.
    """

    def __init__(self, values: RowNumbers, starts: RowNumbers, sizes: RowNumbers) -> None:
        self.values, self.starts, self.sizes = values, starts, sizes
        self._tensor = torch.from_numpy(values)

    @classmethod
    def of(cls, pieces: Iterable[ArrayLike]) -> "Ragged":
        """Join pieces into a new array."""
        arrays = [np.asarray(piece, dtype=np.int64) for piece in pieces]
        sizes = np.array([len(piece) for piece in arrays], dtype=np.int64)
        values = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
        return cls(values, np.cumsum(sizes) - sizes, sizes)

    @classmethod
    def empty(cls, clients: int) -> "Ragged":
        """Clients without any rows."""
        nothing = np.zeros(clients, dtype=np.int64)
        return cls(np.empty(0, dtype=np.int64), nothing, nothing)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> "Ragged": ...
    def __getitem__(self, client: int | slice) -> "Tensor | Ragged":
        if isinstance(client, slice):
            return Ragged(self.values, self.starts[client], self.sizes[client])
        start = self.starts[client]
        return self._tensor[start : start + self.sizes[client]]

    def __iter__(self) -> Iterator[Tensor]:
        return (self._tensor[start : start + size] for start, size in zip(self.starts, self.sizes, strict=True))

    def of_clients(self, ids: Sequence[int]) -> "Ragged":
        """The pieces of some clients, in this order; nothing is copied."""
        chosen = np.asarray(ids, dtype=np.int64)
        return Ragged(self.values, self.starts[chosen], self.sizes[chosen])

    def cut(self, first: ArrayLike, last: ArrayLike) -> "Ragged":
        """For every client, its rows from `first` up to but not including `last`; both may differ by client."""
        first, last = np.asarray(first, dtype=np.int64), np.minimum(last, self.sizes)
        return Ragged(self.values, self.starts + first, np.maximum(last - first, 0))

    @property
    def owners(self) -> RowNumbers:
        """(rows,): the client that owns each row of `joined`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def joined(self) -> Tensor:
        """All clients' rows, one client after the other."""
        ends = np.cumsum(self.sizes)
        indices = np.arange(self.sizes.sum()) + np.repeat(self.starts - (ends - self.sizes), self.sizes)
        return torch.from_numpy(self.values[indices])
