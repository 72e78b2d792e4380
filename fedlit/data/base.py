"""FederatedDataModule: one data set in memory, and which of its rows belong to which client and split.

The data set is held once, as the *store*; a client owns a list of row numbers in it. Engines and metrics ask
for row numbers (`load`) and turn them into samples (`rows`) inside their own program. This file draws
nothing but the split of a client's rows, and knows neither models nor rounds of training.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning import LightningDataModule
from torch import Tensor

from fedlit.data.newcomers import PARTS, check_share, largest_part, of_clients, order_of, population_of, without_users
from fedlit.data.partition.base import Parts, RowNumbers
from fedlit.data.partition_checks import check_clients
from fedlit.data.ragged import Ragged
from fedlit.data.split import Shares, Splits, little_endian, partition_hash, split, union
from fedlit.errors import DataError, require
from fedlit.inputs import Inputs, in_store, mapped, tensors
from fedlit.recorded import Recorded

_MAY_LACK = ("group", "adapt")
"""Entries of a client's description that are left out where they are empty."""
_GATHERS = ("rows", "plain_rows")

Store = dict[str, Tensor]
"""'x' (rows, ...), or 'x.image', 'x.table' … (see `fedlit.inputs`); and, unless `rows` and `labels` are overridden,
'y' (rows, ...)."""
Vary = Callable[[RowNumbers, np.random.Generator], RowNumbers]


@dataclass(frozen=True)
class ClientData:
    """The data of some clients in a round: the store that all share, and each client's row numbers in it."""

    store: Store
    train: Ragged
    val: Ragged
    test: Ragged
    adapt: Ragged
    groups: list[str]  # each client's domain or kind of corruption; empty texts if there are none
    vary: Vary | None = None  # draws the augmentation of a client's batches, given as row numbers
    largest: int | None = None  # most training rows of any client in any round; None if unknown


class FederatedDataModule(Recorded, LightningDataModule, ABC):
    """The contract of every data set: a subclass returns from `build` the samples and who owns them.

    Args:
        test_fraction: share of each client's samples that is kept for testing
        val_fraction: share of the remaining training samples that is kept for validation; 0 for none
        adapt_fraction: share of the then remaining ones that is kept for adapting personal models; 0 for none
        split: how the test share is taken: shuffled; tail, the last rows as they were assigned (see docs/data.md); or
            ordered, where validation has the rows before them
        limit: for a quick try: keep at most this many samples in each part of each client, and of an official test
        eval_clients: test on this many clients, drawn by the seed; unless given on all, or on 10,000 if there are more
        eval_samples: test on at most this many samples of each client, drawn by the seed
        allow_empty: accept clients without training data, which then never train
        newcomers: share of the clients that are held back, drawn by the seed: they never train with the others, and are
            measured as newcomers; clients are numbered anew, users first
        seed: decides the data and its split; the training has another seed
    """

    def __init__(
        self,
        *,
        test_fraction: float = 0.2,
        val_fraction: float = 0.1,
        adapt_fraction: float = 0.0,
        split: Literal["shuffled", "tail", "ordered"] = "shuffled",
        limit: int | None = None,
        eval_clients: int | None = None,
        eval_samples: int | None = None,
        allow_empty: bool = False,
        newcomers: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shares = Shares(test_fraction, val_fraction, adapt_fraction, split == "tail", split == "ordered")
        for name, value in (("limit", limit), ("eval_clients", eval_clients), ("eval_samples", eval_samples)):
            require(value is None or value >= 1, f"data.{name} is {value}. Set it to 1 or more, or leave it out.")
        require(0 <= seed < 2**32, f"data.seed is {seed}. Set it to a whole number from 0 to 4294967295.")
        check_share(newcomers)
        self.newcomers = newcomers
        self.limit = limit
        self.eval_clients = eval_clients
        self.eval_samples = eval_samples
        self.allow_empty = allow_empty
        self.seed = seed
        self._everyone: ClientData | None = None
        self._held_back: ClientData | None = None
        self._numbers: RowNumbers | None = None
        """The numbers that all clients had before newcomers were held back: users first, then newcomers."""

    # ---- what a data set may override ------------------------------------------------------------------------------

    @abstractmethod
    def build(self) -> tuple[Store, Parts]:
        """The store, and for each client the numbers of its rows; clients may share rows."""

    def count_classes(self, store: Store) -> int:
        """The number of classes or tokens, 0 where y is numbers; override it if the data may lack the last class."""
        return 0 if store["y"].is_floating_point() else int(store["y"].max()) + 1

    def rows(self, store: Store, index: Tensor) -> tuple[Any, Tensor]:
        """(x, y) of the row numbers `index` (rows,). Traced into compiled programs: no branch on a value.

        x is a tensor, or a dict or tuple of tensors, which the net gets as its arguments.
        """
        x = mapped(lambda values: values.index_select(0, index), in_store(store))
        return x, store["y"].index_select(0, index)

    def plain_rows(self, store: Store, index: Tensor) -> tuple[Any, Tensor]:
        """`rows` for row numbers that `vary` has not changed, such as those of tests; may be cheaper."""
        return self.rows(store, index)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        first = {name: next(k for k, kind in enumerate(cls.__mro__) if name in vars(kind)) for name in _GATHERS}
        if first["rows"] < first["plain_rows"]:  # a class that overrides `rows` alone means both
            cls.plain_rows = FederatedDataModule.plain_rows  # type: ignore[method-assign]

    def labels(self, store: Store, index: Tensor) -> Tensor:
        """y of the row numbers `index`, without their x."""
        return store["y"].index_select(0, index)

    def probe_rows(self) -> Tensor:
        """Two or more row numbers on which a net is tried before a run."""
        return torch.zeros(2, dtype=torch.int64)

    def count_rows(self, store: Store) -> int:
        """The number of rows: row numbers are below it."""
        return len(tensors(in_store(store))[0])

    is_fresh: bool = False
    """Whether every round has new clients, which never come back and have no tests."""

    client_names: Sequence[int | str] = ()
    """The name of each client, where the data have names; newcomers come last."""

    vary: Vary | None = None
    """Row numbers of batches and a generator -> row numbers that stand for augmented samples; none by default."""

    # ---- setting up ------------------------------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        """Build and split the data, at the first call only: Lightning calls it for every stage."""
        if self._everyone is not None:
            return
        store, parts = self.build()
        check_clients(parts, rows=self.count_rows(store), allow_empty=self.allow_empty)
        splits = split(parts, self.shares, self.seed).limited(self.limit)
        splits = self.adjusted(splits.with_tests_of(self.eval_clients, self.eval_samples, self.seed))
        everyone = ClientData(store, splits.train, splits.val, splits.test, splits.adapt, splits.groups, vary=self.vary)
        self._everyone = self._hold_back(everyone) if self.newcomers else everyone

    def _hold_back(self, everyone: ClientData) -> ClientData:
        """The data of the users; those of the newcomers are kept apart, and all are numbered anew."""
        self._numbers, users = order_of(len(everyone.groups), self.newcomers, self.seed)
        if len(self.client_names) == len(self._numbers):
            self.client_names = [self.client_names[number] for number in self._numbers]
        numbered = of_clients(everyone, self._numbers)
        self._held_back = without_users(numbered, users)
        return of_clients(numbered, range(users))

    def adjusted(self, splits: Splits) -> Splits:
        """Change the clients' training rows and groups; nothing by default."""
        return splits

    @property
    def everyone(self) -> ClientData:
        """The whole population, client i at position i."""
        if self._everyone is None:
            name = type(self).__name__
            raise DataError(f"{name} has not been built yet. Call setup() before asking for its clients or samples.")
        return self._everyone

    # ---- what the rest of fedlit reads -----------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The whole data set, in the form that `rows` reads."""
        return self.everyone.store

    @property
    def num_clients(self) -> int:
        """The number of clients, those without data included."""
        return len(self.everyone.train)

    @cached_property
    def newcomer_data(self) -> Self | None:
        """The newcomers as a population of its own, where there are any; None else.

        Their numbers go on after those of the users, who have no rows in it.
        """
        self.everyone  # noqa: B018  # an error if the data were not built yet
        return None if self._held_back is None else population_of(self, self._held_back)

    @cached_property
    def num_classes(self) -> int:
        """Labels are 0 to num_classes - 1; 0 where y is numbers."""
        return self.count_classes(self.store)

    @property
    def is_labelled(self) -> bool:
        """Whether every row has one label, so that samples of each class can be counted."""
        _, y = self.rows(self.store, torch.zeros(1, dtype=torch.int64))
        return y.dim() == 1 and not y.is_floating_point()

    @property
    def sample(self) -> Inputs:
        """One x, as a net gets it."""
        x, _ = self.rows(self.store, torch.zeros(1, dtype=torch.int64))
        one: Inputs = mapped(lambda values: values[0], x)
        return one

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one x, as a net gets it; of the first of several tensors."""
        return tuple(tensors(self.sample)[0].shape)

    @cached_property
    def sizes(self) -> Tensor:
        """(clients,) int64: n_i, the number of training samples."""
        return torch.from_numpy(self.everyone.train.sizes)

    @property
    def groups(self) -> list[str]:
        """For each client the name of its group (a domain, a kind of corruption); empty where there are none."""
        return self.everyone.groups

    @cached_property
    def global_test(self) -> Tensor:
        """Row numbers of all clients' tests in ascending order, each row once."""
        return union([self.everyone.test])

    @cached_property
    def global_val(self) -> Tensor:
        """Row numbers of all clients' validation samples, as for `global_test`."""
        return union([self.everyone.val])

    @cached_property
    def partition_hash(self) -> str:
        """16 hex digits of row numbers, sizes and labels: equal for equal partitions of equal labels."""
        everyone, apart = self.everyone, [] if self._held_back is None else [self._held_back]
        parts = [everyone.train, everyone.val, everyone.test, everyone.adapt, Ragged.of([self.global_test])]
        parts += [getattr(held_back, part) for held_back in apart for part in PARTS]
        return partition_hash(parts, little_endian(self.labels(self.store, union(parts))))

    @cached_property
    def largest(self) -> int:
        """The most training rows of any client, newcomers included: batches of all have one width."""
        held_back = 0 if self._held_back is None else largest_part(self._held_back.train)
        return max(largest_part(self.everyone.train), held_back)

    def client_ids(self, round: int) -> Sequence[int]:
        """The id of each client in the records of a round; its position stays 0 to num_clients - 1."""
        return range(self.num_clients)

    def load(self, round: int, ids: Sequence[int]) -> ClientData:
        """The data of the clients `ids` in a round: the same in all rounds, unless the population is fresh."""
        asked = np.asarray(ids, dtype=np.int64)
        unknown = asked[(asked < 0) | (asked >= self.num_clients)]
        if len(unknown):
            raise DataError(f"Client {unknown[0]} does not exist. Ask for ids from 0 to {self.num_clients - 1}.")
        everyone = self.everyone
        return ClientData(
            everyone.store,
            train=everyone.train.of_clients(ids),
            val=everyone.val.of_clients(ids),
            test=everyone.test.of_clients(ids),
            adapt=everyone.adapt.of_clients(ids),
            groups=[everyone.groups[client] for client in ids],
            vary=everyone.vary,
            largest=self.largest,
        )

    def cast(self, dtype: torch.dtype) -> None:
        """Hold floating-point samples in the model's dtype; pictures stay uint8."""
        for name, value in self.store.items():
            if value.is_floating_point():
                self.store[name] = value.to(dtype)

    def describe(self) -> dict[str, Any]:
        """The partition as plain numbers, for JSON."""
        return {
            "name": type(self).__name__,
            "seed": self.seed,
            "num_clients": self.num_clients,
            "num_classes": self.num_classes,
            "hash": self.partition_hash,
            "clients": self._describe_clients(),
            **self._describe_newcomers(),
        }

    def _describe_newcomers(self) -> dict[str, Any]:
        """The newcomers in order, and the number that every client had before they were held back."""
        if self.newcomer_data is None or self._numbers is None:
            return {}
        described = self.newcomer_data._describe_clients()[self.num_clients :]
        return {"newcomers": described, "numbers_before": self._numbers.tolist()}

    def _describe_clients(self) -> list[dict[str, Any]]:
        everyone = self.everyone
        sizes = {part: getattr(everyone, part).sizes.tolist() for part in ("train", "val", "test", "adapt")}
        columns = {"group": self.groups, **sizes}
        if self.is_labelled:
            columns["classes"] = self._class_counts().tolist()
        spare = [name for name in _MAY_LACK if not all(columns[name])]
        columns = {name: column for name, column in columns.items() if name not in spare or any(column)}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        for name in columns.keys() & spare:
            rows = [{key: value for key, value in row.items() if key != name or value} for row in rows]
        return rows

    def _class_counts(self) -> NDArray[np.int64]:
        """(clients, classes) training samples."""
        train, classes = self.everyone.train, self.num_classes
        labels = self.labels(self.store, train.joined).numpy()
        return np.bincount(train.owners * classes + labels, minlength=self.num_clients * classes).reshape(-1, classes)
