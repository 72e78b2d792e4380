"""What engines share: their contract and the plan of a client's mini-batches."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from torch import Tensor

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.keys import Purpose, Stream
from fedlit.local import LocalOptimizer, initial_memory
from fedlit.params import Params
from fedlit.ranks import Ranks
from fedlit.step import Phase

Store = dict[str, Tensor]
Rows = Callable[[Store, Tensor], tuple[Tensor, Tensor]]


class TrainData(Protocol):
    """What an engine needs of a round's data (see fedlit.data.base.ClientData)."""

    @property
    def store(self) -> Store:
        """The whole data set, once in memory."""

    @property
    def train(self) -> Sequence[Tensor]:
        """Row numbers of each client's training samples."""

    @property
    def vary(self) -> Callable[[np.ndarray, np.random.Generator], np.ndarray] | None:
        """Draws the augmentation of batches that are given as row numbers; None where there is none."""

    @property
    def largest(self) -> int | None:
        """No client of any round has more training rows; None where that is not known."""


class _OneStreamEach(threading.local):
    """A stream of draws for each thread."""

    def __init__(self) -> None:
        self.stream = Stream()


class Engine:
    """Runs local training; the only place in which training steps happen."""

    def __init__(self, seed: int, rows: Rows) -> None:
        self.seed = seed
        self.rows = rows
        self.ranks = Ranks()
        """The processes of the run; a sign goes to them after every step."""
        self._threads = _OneStreamEach()

    def train(self, client: Client, cohort: Cohort, data: TrainData, phase: Phase) -> Cohort:
        """One local solve of every client.

        Fills `params`, `buffers`, `losses`, `memory` where it is kept, and the states that steps carry.
        """
        raise NotImplementedError

    def memory_of(self, client: Client, cohort: Cohort, phase: Phase, start: Params) -> tuple[LocalOptimizer, Params]:
        """The phase's optimiser and, stacked, its state before the first step: the kept one, or a new one."""
        optimizer = phase.optimizer or client.local_optimizer()
        kept = cohort.memory if phase.optimizer is None or phase.start == "trained" else {}
        return optimizer, kept or initial_memory(optimizer, start)

    def planner(self, client: Client, cohort: Cohort, data: TrainData, phase: Phase) -> "Callable[[int], BatchPlan]":
        """k -> the mini-batches of the cohort's k-th client, drawn from (seed, round, client) alone, in any order.

        A step takes `batches_per_step` of them, one after the other.
        """
        per_epoch, steps = client.batches_per_epoch(cohort.sizes.numpy()).tolist(), cohort.steps.tolist()
        size = batch_rows(client, data)

        def plan(k: int) -> BatchPlan:
            key = {"round": cohort.key(k), "client": cohort.clients[k], "index": phase.stream}
            rng = self._threads.stream.at(self.seed, Purpose.BATCHES, **key)
            count = steps[k] * client.batches_per_step
            plan = plan_batches(rng, data.train[k].numpy(), count, size, per_epoch[k])
            return plan if data.vary is None else replace(plan, index=data.vary(plan.index, rng))

        return plan


@dataclass(frozen=True)
class BatchPlan:
    """(steps, batch) row numbers of a client's mini-batches and how many of each are real; the rest is padding."""

    index: np.ndarray
    counts: np.ndarray


def batch_rows(client: Client, data: TrainData) -> int:
    """Rows of a batch with its padding: `batch_size`, unless no client ever fills it."""
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
    """(batches, size): for batches of so many real rows, 1/n for these and 0 for the padding."""
    return np.where(np.arange(size) < counts[:, None], 1.0 / counts[:, None], 0.0)
