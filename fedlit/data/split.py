"""A client's rows in parts: training, validation, test and adaptation; pure functions of rows and a generator."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlit.data.partition.base import Parts, RowNumbers, tail_split
from fedlit.errors import require


@dataclass(frozen=True)
class Shares:
    """How much of a client's rows goes where."""

    test: float
    val: float
    adapt: float = 0.0
    tail: bool = False
    """Test on the rows that were assigned last, instead of on shuffled ones."""

    def __post_init__(self) -> None:
        for name in ("test", "val", "adapt"):
            value = getattr(self, name)
            require(
                0 <= value < 1,
                f"data.{name}_fraction is {value}. It is a share: set it to 0 or more and below 1, such as 0.2.",
            )


@dataclass(frozen=True)
class Split:
    """The rows of one client, each in exactly one part."""

    train: Tensor
    val: Tensor
    test: Tensor
    adapt: Tensor
    group: str = ""

    def limited(self, rows: int | None) -> "Split":
        """At most so many rows in each part."""
        return Split(self.train[:rows], self.val[:rows], self.test[:rows], self.adapt[:rows], self.group)


def split(client: int, parts: Parts, shares: Shares, generator: np.random.Generator) -> Split:
    """Cut one client's rows; the parts that the recipe has fixed stay as they are."""
    own = parts.clients[client]
    if parts.tests is not None:
        test, rest = parts.tests[client], generator.permutation(own)
    elif shares.tail:
        rest, test = tail_split(own, shares.test)
        rest = generator.permutation(rest)
    else:
        # A client with two rows or more can be tested.
        test, rest = np.split(generator.permutation(own), [share(len(own), shares.test, least=1)])
    if parts.vals is not None:
        val = parts.vals[client]
    else:
        val, rest = np.split(rest, [share(len(rest), shares.val, least=0)])
    adapt, train = np.split(rest, [share(len(rest), shares.adapt, least=1)])
    group = parts.groups[client] if parts.groups is not None else ""
    parts_of_it = {"train": train, "val": val, "test": test, "adapt": adapt}
    return Split(**{name: torch.from_numpy(rows) for name, rows in parts_of_it.items()}, group=group)


def share(n: int, fraction: float, least: int) -> int:
    """floor(n * fraction), raised to `least` unless the fraction is 0, with one of the n always left over."""
    # 0.29 * 100 is 28.999999999999996 in floating point; the user meant 29.
    wanted = math.floor(n * fraction + 1e-9)
    return max(0, min(wanted if fraction == 0 else max(wanted, least), n - 1))


def evaluated_part(rows: Tensor, count: int | None, generator: np.random.Generator) -> Tensor:
    """So many of the rows, drawn; all where there are no more, or no number is given."""
    if count is None or count >= len(rows):
        return rows
    return rows[np.sort(generator.choice(len(rows), count, replace=False))]


def union(parts: list[Tensor]) -> Tensor:
    """Every row number once, in ascending order."""
    return torch.from_numpy(np.unique(torch.cat(parts).numpy()))


def partition_hash(parts: list[list[Tensor]], labels: bytes) -> str:
    """The first 16 hex digits of a SHA-256; sizes go in too, so that [1, 2], [3] differs from [1], [2, 3]."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(little_endian(torch.tensor([len(rows) for rows in part])))
        digest.update(little_endian(torch.cat(part)))
    digest.update(labels)
    return digest.hexdigest()[:16]


def little_endian(values: Tensor | RowNumbers) -> bytes:
    """The same bytes on every machine."""
    return np.asarray(values).astype("<i8").tobytes()
