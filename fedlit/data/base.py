"""FederatedDataModule: one data set in memory, and which of its rows belong to which client and split.

The data set is held once, as the *store*; whatever a client owns is a list of row numbers in it. Engines
and metrics ask for row numbers (`load`) and turn them into samples (`rows`) inside their own program. This
file draws nothing but the split of a client's rows, and knows neither models nor rounds of training.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning import LightningDataModule
from torch import Tensor

from fedlit import keys
from fedlit.errors import DataError, require
from fedlit.keys import Purpose

Store = dict[str, Tensor]  # 'x' (rows, ...) and 'y' (rows,) int64
RowNumbers = NDArray[np.int64]


@dataclass(frozen=True)
class ClientData:
    """What some clients bring to a round: the store that all share, and each one's row numbers in it."""

    store: Store
    train: list[Tensor]  # one int64 tensor per client, here and below
    val: list[Tensor]
    test: list[Tensor]


@dataclass(frozen=True)
class Split:
    """The rows of one client, each in exactly one part."""

    train: Tensor
    val: Tensor
    test: Tensor


class FederatedDataModule(LightningDataModule, ABC):
    """The contract of every data set: a subclass says in `build` what there is and who owns it.

    Args:
        test_fraction: share of each client's samples that is kept for testing
        val_fraction: share of the remaining training samples that is kept for validation; 0 for none
        allow_empty: accept clients without training data, which then never train
        seed: governs the data and its split, apart from the seed of the training
    """

    def __init__(
        self, *, test_fraction: float = 0.2, val_fraction: float = 0.1, allow_empty: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        check_fraction("test_fraction", test_fraction)
        check_fraction("val_fraction", val_fraction)
        require(0 <= seed < 2**32, f"data.seed is {seed}. Set it to a whole number from 0 to 4294967295.")
        self.test_fraction = test_fraction
        self.val_fraction = val_fraction
        self.allow_empty = allow_empty
        self.seed = seed
        self._everyone: ClientData | None = None

    @abstractmethod
    def build(self) -> tuple[Store, list[RowNumbers]]:
        """The store, and for each client the numbers of its rows; clients may share rows."""

    def count_classes(self, store: Store) -> int:
        """How many classes there are; to be overridden where the data need not contain the last one."""
        return int(store["y"].max()) + 1

    def setup(self, stage: str | None = None) -> None:
        """Build and split the data; once, however often and for whatever stage Lightning calls it."""
        if self._everyone is not None:
            return
        store, clients = self.build()
        check_clients(clients, rows=len(store["y"]), allow_empty=self.allow_empty)
        splits = [self._split(client, rows) for client, rows in enumerate(clients)]
        self._everyone = ClientData(
            store, train=[s.train for s in splits], val=[s.val for s in splits], test=[s.test for s in splits]
        )

    def _split(self, client: int, rows: RowNumbers) -> Split:
        generator = keys.generator(self.seed, Purpose.SPLIT, client=client)
        return split(rows, self.test_fraction, self.val_fraction, generator)

    @property
    def everyone(self) -> ClientData:
        """The whole population, client i at position i."""
        if self._everyone is None:
            name = type(self).__name__
            raise DataError(f"{name} has not been built yet. Call setup() before asking for its clients or samples.")
        return self._everyone

    @property
    def store(self) -> Store:
        """The whole data set: 'x' (rows, ...), 'y' (rows,) int64."""
        return self.everyone.store

    @property
    def num_clients(self) -> int:
        """The number of clients, those without data included."""
        return len(self.everyone.train)

    @cached_property
    def num_classes(self) -> int:
        """Labels are 0 to num_classes - 1."""
        return self.count_classes(self.store)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one x."""
        return tuple(self.store["x"].shape[1:])

    @cached_property
    def sizes(self) -> Tensor:
        """(clients,) int64: n_i, the number of training samples."""
        return torch.tensor([len(rows) for rows in self.everyone.train], dtype=torch.int64)

    @property
    def groups(self) -> list[str]:
        """For each client the name of its group (a domain, a kind of corruption); empty where there are none."""
        return [""] * self.num_clients

    @cached_property
    def global_test(self) -> Tensor:
        """Row numbers of all clients' tests in ascending order, a row that several clients hold only once."""
        return union(self.everyone.test)

    @cached_property
    def global_val(self) -> Tensor:
        """Row numbers of all clients' validation samples, as for `global_test`."""
        return union(self.everyone.val)

    @cached_property
    def partition_hash(self) -> str:
        """16 hex digits over row numbers, sizes and labels: equal partitions of equal labels have equal hashes."""
        return partition_hash(self.everyone)

    def load(self, round: int, ids: Sequence[int]) -> ClientData:
        """What the clients `ids` bring to a round. Here it is the same in all; a fresh population overrides this."""
        unknown = [client for client in ids if not 0 <= client < self.num_clients]
        if unknown:
            raise DataError(f"Client {unknown[0]} does not exist. Ask for ids from 0 to {self.num_clients - 1}.")
        everyone = self.everyone
        return ClientData(
            everyone.store,
            train=[everyone.train[client] for client in ids],
            val=[everyone.val[client] for client in ids],
            test=[everyone.test[client] for client in ids],
        )

    @staticmethod
    def rows(store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
        """(x, y) of the row numbers `index` (rows,). Traced into compiled programs: no branch on a value."""
        return store["x"].index_select(0, index), store["y"].index_select(0, index)

    def cast(self, dtype: torch.dtype) -> None:
        """Hold floating-point samples in the model's dtype; pictures stay uint8."""
        for name, value in self.store.items():
            if value.is_floating_point():
                self.store[name] = value.to(dtype)

    def describe(self) -> dict[str, object]:
        """The partition in plain numbers, ready for JSON."""
        return {
            "name": type(self).__name__,
            "seed": self.seed,
            "num_clients": self.num_clients,
            "num_classes": self.num_classes,
            "hash": self.partition_hash,
            "clients": [self._describe_client(client) for client in range(self.num_clients)],
        }

    def _describe_client(self, client: int) -> dict[str, object]:
        train = self.everyone.train[client]
        counts = torch.bincount(self.store["y"][train], minlength=self.num_classes)
        return {
            "train": len(train),
            "val": len(self.everyone.val[client]),
            "test": len(self.everyone.test[client]),
            "classes": counts.tolist(),
        }


def split(rows: RowNumbers, test_fraction: float, val_fraction: float, generator: np.random.Generator) -> Split:
    """Shuffle one client's rows and cut them in three; a client with two rows or more can be tested."""
    n_test = share(len(rows), test_fraction, least=1)
    n_val = share(len(rows) - n_test, val_fraction, least=0)
    shuffled = torch.from_numpy(generator.permutation(rows))
    test, val, train = shuffled.tensor_split((n_test, n_test + n_val))
    return Split(train=train, val=val, test=test)


def share(n: int, fraction: float, least: int) -> int:
    """floor(n * fraction), raised to `least` unless the fraction is 0, with one of the n always left over."""
    # 0.29 * 100 is 28.999999999999996 in floating point; the user meant 29.
    wanted = math.floor(n * fraction + 1e-9)
    return max(0, min(wanted if fraction == 0 else max(wanted, least), n - 1))


def union(parts: list[Tensor]) -> Tensor:
    """Every row number once, in ascending order."""
    return torch.from_numpy(np.unique(torch.cat(parts).numpy()))


def partition_hash(data: ClientData) -> str:
    """The first 16 hex digits of a SHA-256; sizes go in too, so that [1, 2], [3] differs from [1], [2, 3]."""
    digest = hashlib.sha256()
    for part in (data.train, data.val, data.test):
        digest.update(little_endian(torch.tensor([len(rows) for rows in part])))
        digest.update(little_endian(torch.cat(part)))
    digest.update(little_endian(data.store["y"]))
    return digest.hexdigest()[:16]


def little_endian(values: Tensor) -> bytes:
    """The same bytes on every machine."""
    return values.numpy().astype("<i8").tobytes()


def check_fraction(name: str, value: float) -> None:
    """Refuse a share that would leave nothing to train on."""
    require(0 <= value < 1, f"data.{name} is {value}. It is a share: set it to 0 or more and below 1, such as 0.2.")


def check_clients(clients: list[RowNumbers], *, rows: int, allow_empty: bool) -> None:
    """Refuse a partition that would fail, or deceive, later in the training."""
    if not clients or not rows:
        raise DataError(f"The data set has {rows} rows and {len(clients)} clients. Both must be 1 or more.")
    for client, own in enumerate(clients):
        check_rows(client, own, rows)
    empty = [client for client, own in enumerate(clients) if len(own) == 0]
    if empty and not allow_empty:
        raise DataError(
            f"Client {empty[0]} has no training data ({len(empty)} of {len(clients)} clients have none). "
            "Make fewer or larger clients, or set data.allow_empty to true to keep clients that never train."
        )


def check_rows(client: int, own: RowNumbers, rows: int) -> None:
    """A row outside the store cannot be read; a row listed twice could be trained on and tested on."""
    if len(own) and not 0 <= own.min() <= own.max() < rows:
        raise DataError(
            f"Client {client} is given rows {own.min()} to {own.max()} of a store that has {rows}. "
            f"Let build() return row numbers from 0 to {rows - 1}."
        )
    if len(np.unique(own)) < len(own):
        raise DataError(
            f"Client {client} is given the same row twice, which could put it in both its training and its test "
            "samples. Let build() return each row number at most once per client."
        )
