"""What engines share: their contract and the plan of a client's mini-batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedlit.client import Client, Phase
from fedlit.cohort import Cohort
from fedlit.keys import Purpose, generator

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


class Engine:
    """Runs local training; the only place in which training steps happen."""

    def __init__(self, seed: int, rows: Rows) -> None:
        self.seed = seed
        self.rows = rows

    def train(self, client: Client, cohort: Cohort, data: TrainData, phase: Phase) -> Cohort:
        """One local solve of every client: fills `params`, `buffers`, `losses` and carried states of the cohort."""
        raise NotImplementedError

    def start_of(self, cohort: Cohort, phase: Phase) -> dict[str, Tensor]:
        """Stacked parameters from which the phase starts."""
        return cohort.received if phase.start == "received" else cohort.model(phase.start)

    def plan(self, client: Client, cohort: Cohort, data: TrainData, k: int) -> "BatchPlan":
        """The mini-batches of the cohort's k-th client, drawn from (seed, round, client) alone."""
        rng = generator(self.seed, Purpose.BATCHES, round=cohort.round, client=cohort.clients[k])
        index = data.train[k].numpy()
        batches = int(client.batches_per_epoch(np.array(len(index))))
        return plan_batches(rng, index, int(cohort.steps[k]), client.batch_size, batches)


@dataclass(frozen=True)
class BatchPlan:
    """(steps, batch) row numbers of a client's mini-batches and how many of each are real; the rest is padding."""

    index: np.ndarray
    counts: np.ndarray


def plan_batches(rng: np.random.Generator, index: np.ndarray, steps: int, size: int, per_epoch: int) -> BatchPlan:
    """Shuffled passes over `index`, cut into batches of `size`, until there are `steps` of them."""
    epochs = -(-steps // per_epoch)
    shuffled = rng.permuted(np.broadcast_to(index, (epochs, len(index))), axis=1)
    width = per_epoch * size
    if width > len(index):  # a ragged last batch: pad with any valid row, its weight is 0
        padding = np.broadcast_to(index[:1], (epochs, width - len(index)))
        shuffled = np.concatenate([shuffled, padding], axis=1)
    counts = np.tile(_batch_counts(len(index), size, per_epoch), epochs)
    return BatchPlan(shuffled[:, :width].reshape(-1, size)[:steps], counts[:steps])


@lru_cache(maxsize=4096)
def _batch_counts(rows: int, size: int, per_epoch: int) -> np.ndarray:
    return np.minimum(size, rows - size * np.arange(per_epoch))


@lru_cache(maxsize=64)
def row_weights(size: int) -> np.ndarray:
    """(size + 1, size): line n holds 1/n for the first n rows and 0 for the padding."""
    counts = np.arange(size + 1)[:, None]
    return np.where(np.arange(size) < counts, 1.0 / np.maximum(counts, 1), 0.0)


def check_finite(cohort: Cohort) -> int | None:
    """Position of the first client whose loss or parameters are not finite, or None."""
    bad = ~torch.isfinite(cohort.losses) & (cohort.steps > 0)
    for value in cohort.params.values():
        bad |= ~torch.isfinite(value.flatten(1)).all(1)
    return int(torch.nonzero(bad)[0]) if bool(bad.any()) else None
