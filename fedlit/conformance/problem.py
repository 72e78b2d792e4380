"""The tiny problem on which algorithms are checked: four clients with ragged batches, in float64."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit.client import Client
from fedlit.cohort import Selection
from fedlit.data.tensor import TensorData
from fedlit.models import Softmax
from fedlit.server.sampling import UniformSampler
from fedlit.trainer import FederatedTrainer

FEATURES, CLASSES, SIZES, ROUNDS = 5, 3, (9, 14, 19, 26), 4
LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 4, "local_epochs": 2}
"""Local options of every check: the last batch of each client is ragged."""


def tiny_data() -> TensorData:
    """Clients of different sizes and distributions."""
    rng = np.random.default_rng(5)
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    x = rng.normal(size=(len(client), FEATURES)) + client[:, None] / 2
    return TensorData(x, rng.integers(CLASSES, size=len(client)), client, num_classes=CLASSES, test_fraction=0.25)


def tiny_net() -> Softmax:
    """Softmax regression whose weights are not small."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Softmax(FEATURES, CLASSES).double()


class ReversedSampler(UniformSampler):
    """The same cohorts, in the opposite order."""

    def select(self, seed: int, round: int, sizes: np.ndarray, count: int, **known: Any) -> Selection:
        """Reversed."""
        drawn = super().select(seed, round, sizes, count, **known)
        return Selection(drawn.train[::-1], drawn.report[::-1])


def trained(client: Client, **options: Any) -> FederatedTrainer:
    """A few rounds with three of the four clients; sequential unless asked otherwise."""
    given: dict[str, Any] = {"rounds": ROUNDS, "clients_per_round": 3, "engine": "sequential"}
    trainer = new_trainer(**(given | options))
    trainer.fit(client, datamodule=tiny_data())
    return trainer


def new_trainer(**options: Any) -> FederatedTrainer:
    """In float64, from the weights that the net brings, without a word."""
    silent: dict[str, Any] = {"enable_progress_bar": False, "logger": False}
    return FederatedTrainer(**options, **silent, precision="64-true", initial_weights="net")


def everything(trainer: FederatedTrainer) -> dict[str, Tensor]:
    """z and all that is kept for clients, by name and client."""
    states = trainer.loop.states
    kept = states.state_dict()["rows"]
    rows = {f"{name} of {client}": states.row(name, client) for name in kept for client in states.touched}
    return {**{f"z.{name}": value for name, value in trainer.loop.server.model.items()}, **rows}


def largest_gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest difference of any number; infinite where one has what the other lacks."""
    if a.keys() != b.keys():
        return float("inf")
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
