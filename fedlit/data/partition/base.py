"""Partition: a pure function from labels and a seed to the rows of each client.

A recipe sees labels and row numbers, never samples. It does not cut a client's rows into training, validation and
test parts (the data module does), unless the recipe itself fixes who is tested on what.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlit.errors import DataError, require
from fedlit.recorded import Recorded

RowNumbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Labels:
    """What a recipe sees."""

    y: NDArray[np.int64]  # (rows,): the labels of the whole store, 0 to num_classes - 1
    official_train: RowNumbers  # the rows of the set's own training part
    official_test: RowNumbers  # the rows of its own test part; may be empty
    num_classes: int
    test_is_apart: bool = False  # whether the set's own test part is kept for the global test

    def __post_init__(self) -> None:
        wrong = np.flatnonzero((self.y < 0) | (self.y >= self.num_classes))
        if len(wrong):
            raise DataError(
                f"Row {wrong[0]} has label {self.y[wrong[0]]}, but labels go from 0 to {self.num_classes - 1} "
                f"(num_classes is {self.num_classes}). Renumber the classes from 0, or correct num_classes."
            )

    @property
    def rows(self) -> RowNumbers:
        """What all recipes but Diversity hand out: training and test part merged, in this order, unless it is apart."""
        parts = [self.official_train] if self.test_is_apart else [self.official_train, self.official_test]
        return np.concatenate(parts).astype(np.int64)

    def by_class(self, rows: RowNumbers) -> list[RowNumbers]:
        """The rows of each class that occurs among them, by ascending label and otherwise in the order given."""
        y = self.y[rows]
        ends = np.cumsum(np.bincount(y, minlength=self.num_classes))
        classes = np.split(rows[np.argsort(y, kind="stable")], ends[:-1])
        return [own for own in classes if len(own)]


@dataclass(frozen=True, eq=False)
class Parts:
    """What a recipe answers, client i at position i."""

    clients: list[RowNumbers]  # in the order in which the rows were assigned, on which `tail_split` depends
    tests: list[RowNumbers] | None = None  # fixed by the recipe, or None: a share of each client's own rows
    vals: list[RowNumbers] | None = None  # likewise
    groups: list[str] | None = None  # the kind of each client: a domain, a corruption


class Partition(Recorded, ABC):
    """A recipe. Subclasses take their options as keywords; the draws depend on labels and seed alone."""

    @abstractmethod
    def assign(self, labels: Labels, seed: int) -> Parts:
        """Who gets which rows: the same answer for the same labels and seed, whatever ran before."""


def tail_split(rows: RowNumbers, test_fraction: float) -> tuple[RowNumbers, RowNumbers]:
    """(train, test): the first floor((1 - test_fraction) n) rows and, without a shuffle, the rest; as FedBC's code.

    On rows that were assigned class by class, the test part holds the classes that came last, and some of them may
    not occur in the training part at all. One row at least is left for training.
    """
    n_train = int(tail_size(np.array([len(rows)]), test_fraction)[0])
    return rows[:n_train], rows[n_train:]


def tail_size(sizes: RowNumbers, test_fraction: float) -> RowNumbers:
    """How many rows `tail_split` leaves for training, of clients of these sizes."""
    # (1 - 0.9) * 30 is 2.9999999999999996 in floating point; the user meant 3.
    wanted = np.floor((1 - test_fraction) * sizes + 1e-9).astype(np.int64)
    return np.asarray(np.minimum(sizes, np.maximum(1, wanted)))


def deal(stock: list[RowNumbers], counts: NDArray[np.int64]) -> list[RowNumbers]:
    """The rows of each client, class by class: counts (clients, classes) says how many of each class's rows it gets."""
    cut = [np.split(rows, np.cumsum(counts[:, c]))[:-1] for c, rows in enumerate(stock)]
    return [np.concatenate(own) for own in zip(*cut, strict=True)]


def check_whole(**options: int) -> None:
    """Numbers of clients, classes, samples or shards."""
    for name, value in options.items():
        require(value >= 1, f"data.partition.{name} is {value}. Set it to a whole number of 1 or more.")


def check_enough(rows: RowNumbers, num_clients: int, **each: int) -> None:
    """Refuse to hand out more than there is: one sample per client, or as many as the one option `each` says."""
    needed = num_clients * max(each.values(), default=1)
    if len(rows) < needed:
        options = " or ".join(f"data.partition.{name}" for name in ("num_clients", *each))
        raise DataError(
            f"The data set has {len(rows)} samples, but {num_clients} clients need {needed} at least. "
            f"Lower {options}, or use more data."
        )


def check_classes(classes_per_client: int, occurring: int) -> None:
    """Refuse to give a client more classes than occur."""
    if classes_per_client > occurring:
        raise DataError(
            f"data.partition.classes_per_client is {classes_per_client}, but the data set has samples of "
            f"{occurring} classes. Set it to {occurring} or less."
        )
