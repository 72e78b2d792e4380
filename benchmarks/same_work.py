"""A workload as files that any framework can read, and the proof that everyone did the same work.

The same for all: samples, rows of each client, initial weights, cohorts of every round, batch size, learning rate,
local steps. Not the same: the order of rows within an epoch, which everyone shuffles in its own way.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.handwritten import Data, federated_round
from benchmarks.measure import CountingLoop, fit, new_trainer
from benchmarks.workloads import Workload
from fedlit.client.cohort import Selection
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError, FedlitError
from fedlit.server.sampling import Arrivals, Sampler

LAYERS = {
    "W1": ("flatten", "linear"),
    "W2": ("flatten", "linear", "relu", "linear"),
    "W3": (*("conv", "relu", "pool") * 2, "flatten", *("linear", "relu") * 2, "linear"),
}
"""Networks of the workloads that peers do, as words; pools are 2x2, and weights have torch's layout."""
SCHEDULE = 200
"""Cohorts that are written; after them the schedule begins anew."""
CHECK_ROUNDS = 2
"""After so many rounds from the same start the training losses are compared."""
CHECK_TIMES = 3
"""So often everyone does them, and the falls are averaged: the order of rows alone moves one by 0.2 to 0.3 %."""
MAX_DIFFERENCE = 0.02
"""How far the fall of the training loss may be from the hand-written loop's, as a part of it."""


class PeerError(FedlitError):
    """A framework that `python -m benchmarks --peer` measures has ended, is silent, or did other work."""

    exit_code = 1


@dataclass(frozen=True)
class Outcome:
    """What the compared rounds did to the model."""

    steps: int
    fall: float
    """Training loss at the start minus the loss after the rounds, over all rows of all clients."""
    version: str = ""
    """Of a peer, as it says."""


class SameWork:
    """A workload whose start and schedule are fixed."""

    def __init__(self, workload: Workload, data: FederatedDataModule, layers: Sequence[str]) -> None:
        self.workload, self.data, self.layers = workload, data, layers
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.start = {name: value.clone() for name, value in workload.net().state_dict().items()}
        clients, rng = len(data.everyone.train), np.random.default_rng(0)
        size = workload.clients_per_round
        self.cohorts = [np.sort(rng.choice(clients, size, replace=False)).tolist() for _ in range(SCHEDULE)]

    @property
    def samples(self) -> Data:
        """Of all clients."""
        return self.data.store["x"], self.data.store["y"]

    def write(self, folder: Path, cores: int) -> None:
        """The files that `peers/serve.py` reads."""
        rows = [np.asarray(client) for client in self.data.everyone.train]
        arrays = {"x": self.samples[0].numpy(), "y": self.samples[1].numpy(), "rows": np.concatenate(rows)}
        arrays |= {"sizes": np.array([len(client) for client in rows]), "cohorts": np.array(self.cohorts)}
        arrays |= {f"weight-{k}": value.numpy() for k, value in enumerate(self.start.values())}
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        settings = self.workload.local | {"layers": self.layers, "weights": len(self.start), "cores": cores}
        (folder / "work.json").write_text(json.dumps(settings))

    # ---- what everyone's rounds came to ------------------------------------------------------------------------------

    def by_hand(self) -> Outcome:
        """The hand-written loop's."""
        net, train, clients = self.new_net(), self.workload.local_training(), self.data.everyone.train
        by_size = self.workload.algorithm.weights == "samples"
        cohorts = ([clients[k] for k in cohort] for cohort in self.cohorts[:CHECK_ROUNDS])
        steps = sum(federated_round(net, self.samples, cohort, train, by_size=by_size) for cohort in cohorts)
        return self.outcome(steps, net)

    def by_fedlit(self, workers: int, seed: int = 0) -> Outcome:
        """The vectorized engine's, with the shuffles of a seed."""
        client = self.workload.client()
        client.net.load_state_dict(self.start)
        given = GivenCohorts(self.cohorts)
        trainer = new_trainer(
            self.workload, "vectorized", workers, rounds=CHECK_ROUNDS, sampler=given, initial_weights="net", seed=seed
        )
        loop = trainer.loop = trainer.fit_loop = CountingLoop(trainer, CHECK_ROUNDS, trainer.loop.options)
        fit(trainer, client, self.data)
        return self.outcome(loop.steps, client.net)

    def by_files(self, steps: int, folder: Path, name: str) -> Outcome:
        """A peer's, from the weights that it wrote."""
        net = self.new_net()
        for k, value in enumerate(net.state_dict().values()):
            value.copy_(read_weight(folder / f"after-{k}.npy", value, name))
        return self.outcome(steps, net)

    def new_net(self) -> nn.Module:
        """At the start."""
        net = self.workload.net()
        net.load_state_dict(self.start)
        return net

    def outcome(self, steps: int, net: nn.Module) -> Outcome:
        """The fall of the training loss, computed for everyone by the same code."""
        return Outcome(steps, self.start_loss - training_loss(net, self.samples))

    @cached_property
    def start_loss(self) -> float:
        """Before any round."""
        return training_loss(self.new_net(), self.samples)


class GivenCohorts(Sampler):
    """The schedule that everybody has."""

    names_clients = True

    def __init__(self, cohorts: Sequence[Sequence[int]]) -> None:
        self.cohorts = cohorts

    def select(
        self, seed: int, round: int, sizes: np.ndarray, count: int, *, arrivals: Arrivals = None, server: int = 0
    ) -> Selection:
        """That of this round, however often it is asked for."""
        chosen = [*self.cohorts[round]]
        return Selection(train=chosen, report=chosen)


def layers_of(workload: Workload) -> Sequence[str]:
    """The network as words, or why peers do not do this workload."""
    if workload.name not in LAYERS:
        raise ConfigError(
            f"--peer measures FedAvg on networks that every framework has: {', '.join(LAYERS)}. {workload.name} "
            f"({workload.title}) is not one of them. Leave out --workload {workload.name}, or --peer."
        )
    return LAYERS[workload.name]


def averaged(outcomes: Sequence[Outcome]) -> Outcome:
    """What several times of the same rounds came to; steps are those of one time."""
    return Outcome(sum(one.steps for one in outcomes) // len(outcomes), mean(one.fall for one in outcomes))


def compare(name: str, seen: Outcome, by_hand: Outcome) -> None:
    """Refuse figures of someone who did other work than the hand-written loop."""
    advice = "Its figures would not be comparable, so nothing is measured: look for what its script does differently."
    if seen.steps != by_hand.steps:
        raise PeerError(
            f"{name} did {seen.steps:,} local steps in {CHECK_ROUNDS} rounds; the hand-written loop {by_hand.steps:,}. "
            + advice
        )
    if not abs(seen.fall - by_hand.fall) <= MAX_DIFFERENCE * abs(by_hand.fall):  # also where it is not a number
        raise PeerError(
            f"{name} lowered the training loss by {seen.fall:.3g} in {CHECK_ROUNDS} rounds from the same start; the "
            f"hand-written loop by {by_hand.fall:.3g}. They may differ by {MAX_DIFFERENCE:.0%}. " + advice
        )


def training_loss(net: nn.Module, samples: Data) -> float:
    """The mean cross-entropy over all rows."""
    x, y = samples
    with torch.no_grad():
        parts = [
            F.cross_entropy(net(xs), ys, reduction="sum").double()
            for xs, ys in zip(torch.split(x, 2000), torch.split(y, 2000), strict=True)
        ]
    return float(torch.stack(parts).sum()) / len(x)


def read_weight(file: Path, like: Tensor, name: str) -> Tensor:
    """An array that a peer wrote, never a pickle."""
    try:
        value = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise PeerError(
            f"{name} wrote no weights that can be read ({error}). Its script must write all of them."
        ) from None
    if value.shape != tuple(like.shape):
        raise PeerError(f"{name} wrote {file.name} with shape {value.shape}; the network has {tuple(like.shape)}.")
    return torch.from_numpy(value)
