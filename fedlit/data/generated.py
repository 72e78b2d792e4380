"""Generated: samples are computed on demand, so that a federation can be larger than the memory.

    client of row r    i = r // samples_per_client
    classes            each client has `classes_per_client` of them, drawn from (seed, i)
    label              one of them, drawn from (seed, r)
    sample             the mean picture of its class + noise · N(0, 1), drawn from (seed, r, position)

A row number is all that is stored of a sample. The draws are a hash of row and position, in whole numbers below 2^63,
so that they are the same in every engine, on every device and inside a compiled program.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit import keys
from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.partition.base import Parts
from fedlit.errors import require
from fedlit.keys import Purpose

_WORD = 0xFFFFFFFF


class Generated(FederatedDataModule):
    """Pictures (or vectors) of a few classes, computed on demand; for benches and tests at scale.

    Args:
        num_clients: number of clients
        samples_per_client: samples of each, its tests included
        shape: of one sample
        num_classes: number of classes
        classes_per_client: how many of them a client has
        noise: standard deviation around the mean of a class, whose entries are N(0, 1)
        common: options of every data set (FederatedDataModule): test_fraction, val_fraction, seed ...
    """

    def __init__(
        self,
        *,
        num_clients: int = 1000,
        samples_per_client: int = 20,
        shape: Sequence[int] = (3, 32, 32),
        num_classes: int = 10,
        classes_per_client: int = 2,
        noise: float = 1.0,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        counts = {"num_clients": num_clients, "samples_per_client": samples_per_client, "num_classes": num_classes}
        for name, value in counts.items():
            require(value >= 1, f"data.{name} is {value}. Set it to 1 or more.")
        require(
            len(shape) > 0 and min(shape) >= 1,
            f"data.shape is {list(shape)}. Give the sizes of one sample, such as [3, 32, 32].",
        )
        require(
            1 <= classes_per_client <= num_classes,
            f"data.classes_per_client is {classes_per_client}. Set it to a number from 1 to {num_classes}.",
        )
        require(0 <= noise < math.inf, f"data.noise is {noise}. Set it to 0 or more.")
        require(
            num_clients * samples_per_client <= _WORD,
            f"data.num_clients times data.samples_per_client is {num_clients * samples_per_client:,}. "
            f"Rows are numbered up to {_WORD:,}: make fewer or smaller clients.",
        )
        self.clients = num_clients
        self.samples_per_client = samples_per_client
        self.shape = tuple(shape)
        self.classes = num_classes
        self.classes_per_client = classes_per_client
        self.noise = noise

    def build(self) -> tuple[Store, Parts]:
        """The mean of each class, and consecutive row numbers for each client."""
        means = keys.generator(self.seed, Purpose.DATA).standard_normal((self.classes, *self.shape), dtype=np.float32)
        rows = np.arange(self.clients * self.samples_per_client).reshape(self.clients, -1)
        return {"x": torch.from_numpy(means)}, Parts(list(rows))

    def count_rows(self, store: Store) -> int:
        return self.clients * self.samples_per_client

    def count_classes(self, store: Store) -> int:
        return self.classes

    def rows(self, store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and labels, computed from the row numbers alone."""
        y = self.labels(store, index)
        means = store["x"].index_select(0, y)
        positions = torch.arange(math.prod(self.shape), device=index.device)
        key = hashed(index[:, None] ^ hashed(positions + self._salt(1)))
        return means + self.noise * normals(key).to(means.dtype).reshape(means.shape), y

    def labels(self, store: Store, index: Tensor) -> Tensor:
        """One of the client's classes, which are consecutive numbers from a drawn one on."""
        client = index // self.samples_per_client
        first = hashed(client ^ self._salt(2)) % self.classes
        offset = hashed(index ^ self._salt(3)) % self.classes_per_client
        return (first + offset) % self.classes

    def _salt(self, purpose: int) -> int:
        return (self.seed * 4 + purpose) * 0x9E3779B1 & _WORD


def hashed(values: Tensor) -> Tensor:
    """A 32-bit mix of whole numbers below 2^32; its products stay below 2^63, so nothing overflows."""
    values = values & _WORD
    values = ((values ^ (values >> 16)) * 0x21F0AAAD) & _WORD
    values = ((values ^ (values >> 15)) * 0x735A2D97) & _WORD
    return values ^ (values >> 15)


def normals(key: Tensor) -> Tensor:
    """N(0, 1) from hashed numbers, by Box and Muller."""
    first, second = (hashed(key + offset).double().add(0.5).div(2.0**32) for offset in (1, 2))
    return torch.sqrt(-2 * torch.log(first)) * torch.cos(2 * math.pi * second)
