"""Corruption of clients' training data: exponential class imbalance, or flipped labels (Exp-α).

A recipe takes the rows that a client may draw from and returns its training rows; only training data are corrupted,
never validation or test. The client's kind (its ratio, or whether it is flipped) is its group in clients.parquet.

    imbalance  n_c ∝ ratio^(c / (C - 1)), c = 0 .. C - 1, in all the client's number of samples
    flip       round(C p) classes, drawn for each client, exchange their labels

Readings, where Exp-α is silent: class profiles are those of LDAM's public code, in the order of the labels unless
`permute_classes`; rounded by largest remainder; a class that has too few samples is drawn from with replacement. The
shipped configs permute: otherwise balanced clients get the smallest weights, but the largest in Exp-α's figure 2.
Flipped classes exchange labels by a random permutation without fixed points; a single one gets a random other label.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlit.data.partition.base import RowNumbers
from fedlit.data.row_encoding import RowCode
from fedlit.errors import require
from fedlit.recorded import Recorded


@dataclass(frozen=True, eq=False)
class Pool:
    """The rows that a client may draw from."""

    rows: RowNumbers
    y: NDArray[np.int64]  # (pictures,): the labels of the whole set
    code: RowCode

    def of_class(self, label: int) -> RowNumbers:
        """The rows of one class."""
        rows: RowNumbers = self.rows[self.y[self.rows] == label]
        return rows


@dataclass(frozen=True, eq=False)
class Corrupted:
    """A client's training rows, and its group."""

    rows: RowNumbers
    group: str


class Corruption(Recorded, ABC):
    """A recipe that corrupts training data; its draws depend on the generator alone."""

    @abstractmethod
    def draw(self, pool: Pool, size: int, position: int, generator: np.random.Generator) -> Corrupted:
        """`size` training rows for the client at this position of its population or round."""


@dataclass
class Imbalance(Corruption):
    """Exponential class imbalance: the last class has `ratio` times the samples of the first.

    Args:
        ratios: ratios that clients have, each above 0 and at most 1
        in_order: the client at position k has ratio number k (a fixed composition), instead of a ratio drawn for it
        permute_classes: which class is frequent is drawn for each client, instead of being the order of the labels
    """

    ratios: Sequence[float] = (1.0, 0.5, 0.1, 0.05, 0.01, 0.005, 0.001)
    in_order: bool = False
    permute_classes: bool = False

    def __post_init__(self) -> None:
        require(
            len(self.ratios) > 0 and all(0 < ratio <= 1 for ratio in self.ratios),
            f"data.corruption.ratios is {list(self.ratios)}. Give at least one, each above 0 and at most 1.",
        )

    def draw(self, pool: Pool, size: int, position: int, generator: np.random.Generator) -> Corrupted:
        """Draw a ratio, then the samples of each class by it."""
        drawn = int(generator.integers(len(self.ratios)))
        ratio = self.ratios[position % len(self.ratios) if self.in_order else drawn]
        classes = np.arange(pool.code.classes)
        order = generator.permutation(classes) if self.permute_classes else classes
        stock = [pool.of_class(label) for label in order.tolist()]
        counts = class_profile(ratio, size, np.array([len(rows) > 0 for rows in stock]))
        parts = [
            generator.choice(rows, count, replace=count > len(rows))
            for rows, count in zip(stock, counts, strict=True)
            if count
        ]
        return Corrupted(np.concatenate(parts), f"ratio {ratio:g}")


@dataclass
class LabelFlip(Corruption):
    """Some clients have wrong labels on some classes; the same sample may carry another label at another client.

    Args:
        rate: probability that a client is flipped
        flip_ratio: p: share of the classes that a flipped client mislabels
        exactly: flip this many clients, the first of the population or of each round, instead of drawing them
    """

    rate: float = 1 / 3
    flip_ratio: float = 1.0
    exactly: int | None = None

    def __post_init__(self) -> None:
        for name in ("rate", "flip_ratio"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"data.corruption.{name} is {value}. It is a share: set it to 0 to 1.")
        require(
            self.exactly is None or self.exactly >= 0,
            f"data.corruption.exactly is {self.exactly}. Set it to a number of clients, or leave it out.",
        )

    def draw(self, pool: Pool, size: int, position: int, generator: np.random.Generator) -> Corrupted:
        """Draw samples of any class, with wrong labels if this client is flipped."""
        chance = generator.random()
        rows = generator.choice(pool.rows, size, replace=size > len(pool.rows))
        if not (position < self.exactly if self.exactly is not None else chance < self.rate):
            return Corrupted(rows, "clean")
        label_map = flipped_labels(pool.code.classes, self.flip_ratio, generator)
        labels = label_map[pool.y[rows]]
        wrong = labels != pool.y[rows]
        return Corrupted(np.where(wrong, pool.code.relabelled(rows, labels), rows), "flipped")


def class_profile(ratio: float, size: int, occurs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(classes,): ratio^(c / (C - 1)) of the classes that occur, scaled to `size` and rounded by largest remainder."""
    shares = ratio ** np.linspace(0, 1, len(occurs)) * occurs
    wanted = size * shares / shares.sum()
    counts: NDArray[np.int64] = np.floor(wanted).astype(np.int64)
    first = np.argsort(-(wanted - counts), kind="stable")[: size - counts.sum()]
    counts[first] += 1
    return counts


def flipped_labels(classes: int, ratio: float, generator: np.random.Generator) -> NDArray[np.int64]:
    """(classes,): the new label of each class."""
    labels = np.arange(classes)
    chosen = generator.choice(classes, round(classes * ratio), replace=False)
    if len(chosen) == 1 and classes > 1:
        labels[chosen] = (chosen + generator.integers(1, classes)) % classes
    elif len(chosen) > 1:
        labels[chosen] = derangement(chosen, generator)
    return labels


def derangement(values: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """A uniform random permutation without fixed points; takes about e = 2.7 draws."""
    while True:
        permuted = generator.permutation(values)
        if (permuted != values).all():
            return permuted
