"""FederatedDataModule: one data set in memory, and which of its rows belong to which client and split.

The data set is held once, as the *store*; whatever a client owns is a list of row numbers in it. Engines
and metrics ask for row numbers (`load`) and turn them into samples (`rows`) inside their own program. This
file draws nothing but the split of a client's rows, and knows neither models nor rounds of training.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor

from fedlit import keys
from fedlit.data.partition.base import Parts, RowNumbers
from fedlit.data.split import Shares, Split, evaluated_part, little_endian, partition_hash, split, union
from fedlit.errors import DataError, require
from fedlit.keys import Purpose
from fedlit.recorded import Recorded

Store = dict[str, Tensor]  # 'x' (rows, ...) and, unless `rows` and `labels` are overridden, 'y' (rows,) int64
Vary = Callable[[RowNumbers, np.random.Generator], RowNumbers]


@dataclass(frozen=True)
class ClientData:
    """What some clients bring to a round: the store that all share, and each one's row numbers in it."""

    store: Store
    train: list[Tensor]  # one int64 tensor per client, here and below
    val: list[Tensor]
    test: list[Tensor]
    adapt: list[Tensor]
    groups: list[str]  # of each client a domain or a kind of corruption; empty texts where there are none
    vary: Vary | None = None  # draws the augmentation of a client's batches, given as row numbers
    largest: int | None = None  # no client of any round has more training rows; None where that is not known


class FederatedDataModule(Recorded, LightningDataModule, ABC):
    """The contract of every data set: a subclass says in `build` what there is and who owns it.

    Args:
        test_fraction: share of each client's samples that is kept for testing
        val_fraction: share of the remaining training samples that is kept for validation; 0 for none
        adapt_fraction: share of the then remaining ones that is kept for adapting personal models; 0 for none
        split: how the test share is taken: shuffled, or tail, the last rows as they were assigned (see docs/data.md)
        limit: for a quick try: keep at most so many samples in each part of each client, and of an official test
        eval_clients: test on so many clients, drawn by the seed, instead of on all
        eval_samples: test on at most so many samples of each client, drawn by the seed
        allow_empty: accept clients without training data, which then never train
        seed: governs the data and its split, apart from the seed of the training
    """

    def __init__(
        self,
        *,
        test_fraction: float = 0.2,
        val_fraction: float = 0.1,
        adapt_fraction: float = 0.0,
        split: Literal["shuffled", "tail"] = "shuffled",
        limit: int | None = None,
        eval_clients: int | None = None,
        eval_samples: int | None = None,
        allow_empty: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shares = Shares(test_fraction, val_fraction, adapt_fraction, tail=split == "tail")
        for name, value in (("limit", limit), ("eval_clients", eval_clients), ("eval_samples", eval_samples)):
            require(value is None or value >= 1, f"data.{name} is {value}. Set it to 1 or more, or leave it out.")
        require(0 <= seed < 2**32, f"data.seed is {seed}. Set it to a whole number from 0 to 4294967295.")
        self.limit = limit
        self.eval_clients = eval_clients
        self.eval_samples = eval_samples
        self.allow_empty = allow_empty
        self.seed = seed
        self._everyone: ClientData | None = None

    # ---- what a data set may override ------------------------------------------------------------------------------

    @abstractmethod
    def build(self) -> tuple[Store, Parts]:
        """The store, and for each client the numbers of its rows; clients may share rows."""

    def count_classes(self, store: Store) -> int:
        """How many classes there are; to be overridden where the data need not contain the last one."""
        return int(store["y"].max()) + 1

    def rows(self, store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
        """(x, y) of the row numbers `index` (rows,). Traced into compiled programs: no branch on a value."""
        return store["x"].index_select(0, index), store["y"].index_select(0, index)

    def labels(self, store: Store, index: Tensor) -> Tensor:
        """y of the row numbers `index`, without their x."""
        return store["y"].index_select(0, index)

    def count_rows(self, store: Store) -> int:
        """Row numbers go from 0 up to, but not including, this."""
        return len(store["x"])

    is_fresh: bool = False
    """Whether every round has clients of its own, which are never seen again and have no tests."""

    vary: Vary | None = None
    """Row numbers of batches and a generator -> row numbers that stand for augmented samples; none by default."""

    # ---- setting up ------------------------------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        """Build and split the data; once, however often and for whatever stage Lightning calls it."""
        if self._everyone is not None:
            return
        store, parts = self.build()
        check_clients(parts, rows=self.count_rows(store), allow_empty=self.allow_empty)
        splits = [self.split_client(client, parts) for client in range(len(parts.clients))]
        tested = self._tested(len(splits))
        self._everyone = ClientData(
            store,
            train=[part.train for part in splits],
            val=[part.val for part in splits],
            test=[part.test if k in tested else part.test[:0] for k, part in enumerate(splits)],
            adapt=[part.adapt for part in splits],
            groups=[part.group for part in splits],
            vary=self.vary,
        )

    def split_client(self, client: int, parts: Parts) -> Split:
        """The parts of one client; a data set may change its training rows here."""
        own = split(client, parts, self.shares, keys.generator(self.seed, Purpose.SPLIT, client=client))
        own = own.limited(self.limit)
        generator = keys.generator(self.seed, Purpose.EVALUATE, client=client)
        return replace(own, test=evaluated_part(own.test, self.eval_samples, generator))

    def _tested(self, clients: int) -> set[int]:
        """The clients whose tests count."""
        everyone = torch.arange(clients)
        chosen = evaluated_part(everyone, self.eval_clients, keys.generator(self.seed, Purpose.EVALUATE, index=1))
        return set(chosen.tolist())

    @property
    def everyone(self) -> ClientData:
        """The whole population, client i at position i."""
        if self._everyone is None:
            name = type(self).__name__
            raise DataError(f"{name} has not been built yet. Call setup() before asking for its clients or samples.")
        return self._everyone

    # ---- what the rest of fedlit asks for --------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The whole data set, in the form that `rows` reads."""
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
        """The shape of one x, as a net gets it."""
        x, _ = self.rows(self.store, torch.zeros(1, dtype=torch.int64))
        return tuple(x.shape[1:])

    @cached_property
    def sizes(self) -> Tensor:
        """(clients,) int64: n_i, the number of training samples."""
        return torch.tensor([len(rows) for rows in self.everyone.train], dtype=torch.int64)

    @property
    def groups(self) -> list[str]:
        """For each client the name of its group (a domain, a kind of corruption); empty where there are none."""
        return self.everyone.groups

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
        parts = [self.everyone.train, self.everyone.val, self.everyone.test, self.everyone.adapt, [self.global_test]]
        rows = union([rows for part in parts for rows in part])
        return partition_hash(parts, little_endian(self.labels(self.store, rows)))

    def client_ids(self, round: int) -> Sequence[int]:
        """The id of each client in the records of a round; its position stays 0 to num_clients - 1."""
        return range(self.num_clients)

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
            adapt=[everyone.adapt[client] for client in ids],
            groups=[everyone.groups[client] for client in ids],
            vary=everyone.vary,
            largest=int(self.sizes.max()),
        )

    def cast(self, dtype: torch.dtype) -> None:
        """Hold floating-point samples in the model's dtype; pictures stay uint8."""
        for name, value in self.store.items():
            if value.is_floating_point():
                self.store[name] = value.to(dtype)

    def describe(self) -> dict[str, Any]:
        """The partition in plain numbers, ready for JSON."""
        return {
            "name": type(self).__name__,
            "seed": self.seed,
            "num_clients": self.num_clients,
            "num_classes": self.num_classes,
            "hash": self.partition_hash,
            "clients": [self._describe_client(client) for client in range(self.num_clients)],
        }

    def _describe_client(self, client: int) -> dict[str, Any]:
        everyone = self.everyone
        train = everyone.train[client]
        counts = torch.bincount(self.labels(self.store, train), minlength=self.num_classes)
        named = {"group": self.groups[client]} if self.groups[client] else {}
        return {
            **named,
            "train": len(train),
            "val": len(everyone.val[client]),
            "test": len(everyone.test[client]),
            **({"adapt": len(everyone.adapt[client])} if len(everyone.adapt[client]) else {}),
            "classes": counts.tolist(),
        }


def check_clients(parts: Parts, *, rows: int, allow_empty: bool) -> None:
    """Refuse a partition that would fail, or deceive, later in the training."""
    if not parts.clients or not rows:
        raise DataError(f"The data set has {rows} rows and {len(parts.clients)} clients. Both must be 1 or more.")
    for client, own in enumerate(parts.clients):
        fixed = [part[client] for part in (parts.tests, parts.vals) if part is not None]
        check_rows(client, np.concatenate([own, *fixed]), rows)
    empty = [client for client, own in enumerate(parts.clients) if len(own) == 0]
    if empty and not allow_empty:
        raise DataError(
            f"Client {empty[0]} has no training data ({len(empty)} of {len(parts.clients)} clients have none). "
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
