"""Partition: a pure function from labels and a seed to the rows of each client.

A recipe sees labels and row numbers, never samples. The data module, not the recipe, cuts a client's rows into
training, validation and test parts, unless the recipe itself fixes the tests.
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
    """The input of a recipe."""

    y: NDArray[np.int64]  # (rows,): the labels of the whole store, 0 to num_classes - 1
    official_train: RowNumbers  # the rows of the set's own training part
    official_test: RowNumbers  # the rows of its own test part; may be empty
    num_classes: int
    test_is_apart: bool = False  # whether the set's own test part is kept for the global test only

    def __post_init__(self) -> None:
        wrong = np.flatnonzero((self.y < 0) | (self.y >= self.num_classes))
        if len(wrong):
            raise DataError(
                f"Row {wrong[0]} has label {self.y[wrong[0]]}, but labels go from 0 to {self.num_classes - 1} "
                f"(num_classes is {self.num_classes}). Renumber the classes from 0, or correct num_classes."
            )

    @property
    def rows(self) -> RowNumbers:
        """The rows that recipes (but Diversity) hand out: the training part, then the test part unless it is apart."""
        parts = [self.official_train] if self.test_is_apart else [self.official_train, self.official_test]
        return np.concatenate(parts).astype(np.int64)

    def by_class(self, rows: RowNumbers) -> list[RowNumbers]:
        """The rows of each class that occurs, by ascending label; within a class they keep their order."""
        y = self.y[rows]
        ends = np.cumsum(np.bincount(y, minlength=self.num_classes))
        classes = np.split(rows[np.argsort(y, kind="stable")], ends[:-1])
        return [rows_of_class for rows_of_class in classes if len(rows_of_class)]


@dataclass(frozen=True, eq=False)
class Parts:
    """The result of a recipe, client i at position i."""

    clients: list[RowNumbers]  # in the order in which the rows were assigned, on which `tail_split` depends
    tests: list[RowNumbers] | None = None  # fixed by the recipe, or None: a share of each client's rows
    vals: list[RowNumbers] | None = None  # as for tests
    groups: list[str] | None = None  # the kind of each client: a domain, a corruption


class Partition(Recorded, ABC):
    """Base class of recipes. Subclasses take their options as keywords; draws depend on labels and seed alone."""

    @abstractmethod
    def assign(self, labels: Labels, seed: int) -> Parts:
        """The rows of each client: always the same for the same labels and seed."""


def tail_split(rows: RowNumbers, test_fraction: float) -> tuple[RowNumbers, RowNumbers]:
    """(train, test): the first floor((1 - test_fraction) n) rows and, without a shuffle, the rest; as FedBC's code.

    On rows that were assigned class by class, the test part holds the classes that came last, and some of them may
    not occur in the training part at all. One row at least is left for training.
    """
    n_train = int(tail_size(np.array([len(rows)]), test_fraction)[0])
    return rows[:n_train], rows[n_train:]


def tail_size(sizes: RowNumbers, test_fraction: float) -> RowNumbers:
    """(clients,): how many rows `tail_split` leaves for training, for clients of these sizes."""
    # (1 - 0.9) * 30 is 2.9999999999999996 in floating point; the user meant 3.
    wanted = np.floor((1 - test_fraction) * sizes + 1e-9).astype(np.int64)
    return np.asarray(np.minimum(sizes, np.maximum(1, wanted)))


def deal(stock: list[RowNumbers], counts: NDArray[np.int64]) -> list[RowNumbers]:
    """The rows of each client, class by class; counts (clients, classes) is how many of each class it gets."""
    cut = [np.split(rows, np.cumsum(counts[:, c]))[:-1] for c, rows in enumerate(stock)]
    return [np.concatenate(pieces) for pieces in zip(*cut, strict=True)]


def check_whole(**options: int) -> None:
    """Refuse numbers of clients, classes, samples or shards below 1."""
    for name, value in options.items():
        require(value >= 1, f"data.partition.{name} is {value}. Set it to a whole number of 1 or more.")


def check_enough(rows: RowNumbers, num_clients: int, **each: int) -> None:
    """Refuse to hand out more samples than there are: one per client, or as many as the option in `each`."""
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
