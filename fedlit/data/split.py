"""Cutting clients' rows into training, validation, test and adaptation; pure functions of rows and a seed."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlit.data.partition.base import Parts, RowNumbers, tail_size
from fedlit.data.ragged import Ragged
from fedlit.errors import require
from fedlit.keys import Purpose, Stream, generator

log = logging.getLogger("fedlit")

MOST_TESTED = 10_000
"""At most so many clients are tested, unless `eval_clients` says otherwise."""


@dataclass(frozen=True)
class Shares:
    """The shares of a client's rows for test, validation and adaptation."""

    test: float
    val: float
    adapt: float = 0.0
    tail: bool = False
    """Test on the rows that were assigned last, instead of on shuffled ones."""
    ordered: bool = False
    """The same, and validate on the rows before them."""

    def __post_init__(self) -> None:
        for name in ("test", "val", "adapt"):
            value = getattr(self, name)
            require(
                0 <= value < 1,
                f"data.{name}_fraction is {value}. It is a share: set it to 0 or more and below 1, such as 0.2.",
            )


@dataclass(frozen=True)
class Splits:
    """The rows of all clients, each in exactly one part of its client."""

    train: Ragged
    val: Ragged
    test: Ragged
    adapt: Ragged
    groups: list[str]

    def limited(self, rows: int | None) -> "Splits":
        """Keep at most `rows` rows in each part of each client."""
        if rows is None:
            return self
        parts = {name: getattr(self, name).cut(0, rows) for name in ("train", "val", "test", "adapt")}
        return replace(self, **parts)

    def with_tests_of(self, clients: int | None, samples: int | None, seed: int) -> "Splits":
        """Test on so many samples of so many clients, drawn by the seed; None is all, or MOST_TESTED clients."""
        tests, stream, count = self.test, Stream(), len(self.groups)
        if samples is not None:
            generators = (stream.at(seed, Purpose.EVALUATE, client=client) for client in range(count))
            drawn = zip(tests, generators, strict=True)
            tests = Ragged.of(evaluated_part(test, samples, draws) for test, draws in drawn)
        return replace(self, test=tests.cut(0, np.where(tested_clients(count, clients, seed), tests.sizes, 0)))


def split(parts: Parts, shares: Shares, seed: int) -> Splits:
    """Cut every client's rows; parts that the recipe has fixed stay as they are."""
    rows = Ragged.of(parts.clients)
    if parts.tests is not None:
        test, rest = Ragged.of(parts.tests), rows if shares.ordered else shuffled(rows, seed)
    elif shares.tail or shares.ordered:
        kept = tail_size(rows.sizes, shares.test)
        test, rest = rows.cut(kept, rows.sizes), rows.cut(0, kept)
        rest = rest if shares.ordered else shuffled(rest, seed)
    else:
        # A client with two rows or more can be tested.
        test, rest = split_off(shuffled(rows, seed), shares.test, least=1)
    if parts.vals is not None:
        val = Ragged.of(parts.vals)
    elif shares.ordered:
        first = rest.sizes - shares_of(rest.sizes, shares.val, least=0)
        val, rest = rest.cut(first, rest.sizes), rest.cut(0, first)
    else:
        val, rest = split_off(rest, shares.val, least=0)
    adapt, train = split_off(shuffled(rest, seed) if shares.ordered else rest, shares.adapt, least=1)
    groups = list(parts.groups) if parts.groups is not None else [""] * len(rows)
    return Splits(train, val, test, adapt, groups)


def shuffled(rows: Ragged, seed: int) -> Ragged:
    """Each client's rows, shuffled independently of other clients."""
    values, stream = rows.joined.numpy(), Stream()
    ends = np.cumsum(rows.sizes)
    starts = ends - rows.sizes
    for client, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        stream.at(seed, Purpose.SPLIT, client=client).shuffle(values[start:end])
    return Ragged(values, starts, rows.sizes)


def split_off(rows: Ragged, fraction: float, least: int) -> tuple[Ragged, Ragged]:
    """A share of every client's rows, and the rest."""
    first = shares_of(rows.sizes, fraction, least)
    return rows.cut(0, first), rows.cut(first, rows.sizes)


def share(n: int, fraction: float, least: int) -> int:
    """floor(n * fraction), at least `least` unless the fraction is 0, and at most n - 1."""
    return int(shares_of(np.array([n]), fraction, least)[0])


def shares_of(sizes: RowNumbers, fraction: float, least: int) -> RowNumbers:
    """(clients,): `share` of every size."""
    # 0.29 * 100 is 28.999999999999996 in floating point; the user meant 29.
    wanted = np.floor(sizes * fraction + 1e-9).astype(np.int64)
    wanted = wanted if fraction == 0 else np.maximum(wanted, least)
    return np.asarray(np.maximum(0, np.minimum(wanted, sizes - 1)))


def tested_clients(count: int, wanted: int | None, seed: int) -> NDArray[np.bool_]:
    """(clients,) whether each is tested; unless `wanted` says how many, at most MOST_TESTED are."""
    if wanted is None and count > MOST_TESTED:
        log.info(
            f"{MOST_TESTED:,} of {count:,} clients, drawn by the seed, are tested. "
            "Set data.eval_clients for more or fewer."
        )
        wanted = MOST_TESTED
    chosen = evaluated_part(torch.arange(count), wanted, generator(seed, Purpose.EVALUATE, index=1))
    return np.isin(np.arange(count), chosen.numpy())


def evaluated_part(rows: Tensor, count: int | None, generator: np.random.Generator) -> Tensor:
    """`count` of the rows, drawn; all rows if there are no more, or if `count` is None."""
    if count is None or count >= len(rows):
        return rows
    return rows[np.sort(generator.choice(len(rows), count, replace=False))]


def union(parts: Sequence[Ragged]) -> Tensor:
    """All row numbers of several parts, each once, in ascending order."""
    ordered = np.sort(np.concatenate([part.joined.numpy() for part in parts]))  # np.unique takes five times as long
    return torch.from_numpy(ordered[np.diff(ordered, prepend=-1) > 0])


def partition_hash(parts: Sequence[Ragged], labels: bytes) -> str:
    """The first 16 hex digits of a SHA-256; sizes go in too, so that [1, 2], [3] differs from [1], [2, 3]."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(little_endian(part.sizes))
        digest.update(little_endian(part.joined))
    digest.update(labels)
    return digest.hexdigest()[:16]


def little_endian(values: Tensor | RowNumbers) -> bytes:
    """The same bytes on every machine and in every precision of a run."""
    array = np.asarray(values)
    return array.astype("<f4" if array.dtype.kind == "f" else "<i8").tobytes()
