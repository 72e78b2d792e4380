"""What engines share: their contract and the plan of a client's mini-batches."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.local_optimizers import LocalOptimizer, initial_optimizer_state
from fedlit.client.net_parts import frozen
from fedlit.client.step import Phase
from fedlit.engines.progress import TrainingProgress
from fedlit.inputs import Inputs
from fedlit.keys import Purpose, Stream
from fedlit.params import Params, under_prefix, with_prefix
from fedlit.ranks import Ranks

Store = dict[str, Tensor]
Rows = Callable[[Store, Tensor], tuple[Inputs, Tensor]]
Vary = Callable[[np.ndarray, np.random.Generator], np.ndarray]


_FROZEN = "frozen"
"""Prefix of the net's frozen tensors beside the data in a store."""


def with_frozen(net: nn.Module, store: Store) -> Store:
    """The data with the net's frozen tensors: what all lanes share, and programs have as inputs."""
    return store | with_prefix(_FROZEN, frozen(net))


def frozen_tensors(store: Store) -> Params:
    """The same under their names in the store."""
    return with_prefix(_FROZEN, frozen_in(store))


def frozen_in(store: Store) -> Params:
    """The net's frozen tensors among what all lanes share."""
    return under_prefix(_FROZEN, store)


class Pieces(Protocol):
    """Row numbers of clients: each client has a piece of one array (see fedlit.data.ragged.Ragged)."""

    @property
    def values(self) -> np.ndarray:
        """All row numbers."""

    @property
    def starts(self) -> np.ndarray:
        """(clients,) where each client's piece begins."""

    @property
    def sizes(self) -> np.ndarray:
        """(clients,) the length of each client's piece."""

    def __getitem__(self, client: int, /) -> Tensor:
        """The row numbers of one client."""

    def of_clients(self, ids: Sequence[int]) -> "Pieces":
        """The pieces of some clients."""


class TrainData(Protocol):
    """What an engine needs of a round's data (see fedlit.data.base.ClientData)."""

    @property
    def store(self) -> Store:
        """The whole data set, once in memory."""

    @property
    def train(self) -> Pieces:
        """Row numbers of each client's training samples."""

    @property
    def vary(self) -> Vary | None:
        """Draws the augmentation of batches of row numbers; None without augmentation."""

    @property
    def largest(self) -> int | None:
        """The most training rows of any client in any round; None if unknown."""


@dataclass(frozen=True)
class Solved:
    """The result of a local solve, stacked by client."""

    params: Params
    buffers: Params
    losses: Tensor
    """(clients,) each client's task loss, mean over its steps; NaN without steps."""
    optimizer_state: Params
    carried: Params
    """Rows of the states that steps carry on."""

    def flat(self) -> Params:
        """All of it in one stacked dict."""
        return {
            **with_prefix("params", self.params),
            **with_prefix("buffers", self.buffers),
            **with_prefix("memory", self.optimizer_state),
            **with_prefix("state", self.carried),
            "losses": self.losses,
        }

    @classmethod
    def from_flat(cls, rows: Params) -> "Solved":
        """The inverse of `flat`."""
        parts = {name: under_prefix(name, rows) for name in ("params", "buffers", "memory", "state")}
        return cls(parts["params"], parts["buffers"], rows["losses"], parts["memory"], parts["state"])


class _ThreadStream(threading.local):
    """A stream of draws for each thread."""

    def __init__(self) -> None:
        self.stream = Stream()


class Engine:
    """Runs local training; the only place in which training steps happen."""

    def __init__(self, seed: int, rows: Rows) -> None:
        self.seed = seed
        self.rows = rows
        self.ranks = Ranks()
        """The processes of the run; they get a heartbeat after every step."""
        self.progress = TrainingProgress()
        """How much of `train` is done."""
        self._threads = _ThreadStream()

    def prepare(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> None:
        """Do what is needed once before a phase's first `train`; CompilerError if a program cannot be compiled."""

    def train(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> Solved:
        """One local solve of every client; the cohort is not changed."""
        raise NotImplementedError

    def memory_of(
        self, client: Client, cohort: TrainedCohort, phase: Phase, start: Params
    ) -> tuple[LocalOptimizer, Params]:
        """The phase's optimiser, and its stacked state before the first step: the kept state, or a new one."""
        optimizer = phase.optimizer or client.local_optimizer()
        kept = cohort.optimizer_state if phase.optimizer is None or phase.start == "trained" else {}
        return optimizer, kept or initial_optimizer_state(optimizer, start)

    def planner(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> "Planner":
        """Plans the mini-batches of the cohort's clients; each step takes the next `batches_per_step` of them."""
        return Planner(
            threads=self._threads,
            seed=self.seed,
            stream=phase.stream,
            rounds=cohort.draw_rounds,
            clients=cohort.clients,
            train=data.train,
            batches=cohort.steps.numpy() * client.batches_per_step,
            per_epoch=client.batches_per_epoch(cohort.sizes.numpy()),
            size=batch_rows(client, data),
            vary=data.vary,
        )

    def mask_keys(self, cohort: TrainedCohort, phase: Phase, k: int) -> np.ndarray:
        """(steps,) the key of the dropout masks of each step of the k-th client (see `dropout.KeyedDropout`)."""
        key = {"round": cohort.draw_rounds[k], "client": cohort.clients[k], "index": 1 + phase.stream}
        return self._threads.stream.at(self.seed, Purpose.DROPOUT, **key).integers(2**63, size=int(cohort.steps[k]))


@dataclass(frozen=True)
class Planner:
    """k -> the mini-batches of the cohort's k-th client, drawn from (seed, round, client) alone."""

    threads: _ThreadStream
    seed: int
    stream: int
    """Number of the phase's stream of draws."""
    rounds: list[int]
    """(clients,) the round in the key of each client's draws."""
    clients: list[int]
    train: Pieces
    batches: np.ndarray
    """(clients,) how many batches each client needs."""
    per_epoch: np.ndarray
    """(clients,) how many batches are one pass over its rows."""
    size: int
    """Rows of a batch with its padding."""
    vary: Vary | None

    @property
    def rows(self) -> Tensor:
        """The row numbers of all clients, in one tensor."""
        return torch.from_numpy(np.ascontiguousarray(self.train.values, dtype=np.int64))

    @cached_property
    def draws(self) -> np.ndarray:
        """(clients, 4) first row, number of rows, batches of one pass over them, key of the draws."""
        keys = [round << 32 | client for round, client in zip(self.rounds, self.clients, strict=True)]
        return np.stack([self.train.starts, self.train.sizes, self.per_epoch, np.array(keys, dtype=np.int64)], axis=1)

    def __call__(self, k: int) -> "BatchPlan":
        key = {"round": self.rounds[k], "client": self.clients[k], "index": self.stream}
        rng = self.threads.stream.at(self.seed, Purpose.BATCHES, **key)
        plan = plan_batches(rng, self.train[k].numpy(), int(self.batches[k]), self.size, int(self.per_epoch[k]))
        return plan if self.vary is None else replace(plan, index=self.vary(plan.index, rng))


@dataclass(frozen=True)
class BatchPlan:
    """(steps, batch) row numbers of a client's mini-batches, and how many of each are real; the rest is padding."""

    index: np.ndarray
    counts: np.ndarray


def batch_rows(client: Client, data: TrainData) -> int:
    """Rows of a batch with its padding: `batch_size`, or less if no client ever fills it."""
    return client.batch_size if data.largest is None else min(client.batch_size, max(data.largest, 1))


def plan_batches(rng: np.random.Generator, index: np.ndarray, steps: int, size: int, per_epoch: int) -> BatchPlan:
    """Shuffled passes over `index`, cut into batches of `size`, until there are `steps` of them."""
    rows, width, epochs = len(index), per_epoch * size, -(-steps // per_epoch) if steps else 0
    shuffled = np.empty((epochs, max(width, rows)), dtype=np.int64)
    shuffled[:, :rows] = index
    shuffled[:, rows:] = index[:1]  # a ragged last batch is padded with any valid row; its weight is 0
    rng.permuted(shuffled[:, :rows], axis=1, out=shuffled[:, :rows])
    return BatchPlan(shuffled[:, :width].reshape(-1, size)[:steps], _batch_counts(rows, size, per_epoch, steps))


@lru_cache(maxsize=4096)
def _batch_counts(rows: int, size: int, per_epoch: int, steps: int) -> np.ndarray:
    return np.minimum(size, rows - size * (np.arange(steps) % max(per_epoch, 1)))


def row_weights(counts: np.ndarray, size: int) -> np.ndarray:
    """(batches, size): 1/n for the n real rows of a batch, 0 for its padding."""
    return np.where(np.arange(size) < counts[:, None], 1.0 / counts[:, None], 0.0)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads inside an operation, while this lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
