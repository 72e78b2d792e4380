"""The checks: each measures one figure of an algorithm and says whether it is good enough."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor

from fedlit.algorithms.fedavg import FedAvg
from fedlit.client.base import Client
from fedlit.client.cohort import WeighedCohort
from fedlit.engines.net_limits import one_lane
from fedlit.experiments.conformance.federation import federated
from fedlit.experiments.conformance.problem import (
    ROUNDS,
    TINY,
    Problem,
    ReversedSampler,
    everything,
    largest_gap,
    new_trainer,
    trained,
    users_alone,
)
from fedlit.params import clone
from fedlit.server.base import ServerCallback
from fedlit.trainer.trainer import FederatedTrainer

Make = Callable[..., Client]
"""A client class, or a function that takes a net and local options and gives a client."""


@dataclass(frozen=True)
class Measured:
    """The result of one check."""

    check: str
    passed: bool
    figure: float
    """What was measured; `demand` says what it must be."""
    demand: str
    note: str = ""


class Watching(ServerCallback):
    """Notes weights, and rows of clients that do not take part; a server's clients are changed by nobody else."""

    def __init__(self) -> None:
        self.worst_weights = 0.0
        self.outsiders_moved = 0.0
        self.outsiders = 0
        """How often a client that has rows was outside of a cohort."""
        self._before: dict[int, dict[str, Tensor]] = {}

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """The rows of those who stay outside are what they were after the step before; and the weights."""
        after = self._rows(trainer)
        for outsider in self._before.keys() - set(cohort.clients):
            self.outsiders += 1
            gap = largest_gap(self._before[outsider], after[outsider])
            self.outsiders_moved = max(self.outsiders_moved, gap)
        self._before = after
        negative = float((-cohort.weights).clamp(min=0).max())
        silent = float(cohort.weights[~cohort.reports].abs().sum())
        self.worst_weights = max(self.worst_weights, negative, silent, abs(float(cohort.weights.sum()) - 1))

    def _rows(self, trainer: Trainer) -> dict[int, dict[str, Tensor]]:
        states = trainer.loop.states  # type: ignore[attr-defined]  # FederatedTrainer's
        names, members = states.state_dict()["rows"], self.server.members.intersection(states.touched)
        return {client: clone({name: states.row(name, client) for name in names}) for client in members if names}


FIGURES = 11
"""How many figures the checks of an algorithm give."""


def check_conformance(make: Make, problem: Problem = TINY, **trainer: Any) -> list[Measured]:
    """All checks of one algorithm on a problem; `trainer` may hold weights or a server optimiser."""
    return list(figures(make, problem, **trainer))


def figures(make: Make, problem: Problem = TINY, **trainer: Any) -> Iterator[Measured]:
    """The same one after the other, as they are measured."""
    yield engines_agree(make, trainer, problem)
    yield resumes_exactly(make, trainer, problem)
    yield same_seed_same_bits(make, trainer, problem)
    yield from cohort_is_respected(make, trainer, problem)
    yield order_does_not_matter(make, trainer, problem)
    yield processes_agree(make, trainer, problem)
    yield newcomers_change_nothing(make, trainer, problem)
    yield from nodes_agree(make, trainer, problem)
    yield differs_from_averaging(make, trainer, problem)


def new(make: Make, problem: Problem = TINY) -> Client:
    """A new client of the algorithm."""
    return make(problem.net(), **problem.local)


def engines_agree(make: Make, trainer: dict[str, Any], problem: Problem = TINY, **engine: Any) -> Measured:
    """Sequential against vectorized, forced, in all that a run comes to; `engine` may hold how it is to be compiled."""
    reference = everything(trained(new(make, problem), problem, **trainer))
    several: dict[str, Any] = {"lanes": 2, "workers": 2} if one_lane(new(make, problem)) is None else {}
    fast = trained(new(make, problem), problem, engine="vectorized", **several, **engine, **trainer)
    choice = fast.loop.choice
    assert choice is not None
    form = "compiled" if choice.compiled else f"{choice.engine}, not compiled: {choice.why}"
    gap = largest_gap(reference, everything(fast))
    return Measured("engines agree", gap <= 1e-10, gap, "≤ 1e-10", form)


def resumes_exactly(make: Make, trainer: dict[str, Any], problem: Problem = TINY) -> Measured:
    """Half the rounds, a checkpoint, the other half; against all at once."""
    whole = everything(trained(new(make, problem), problem, **trainer))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half.ckpt"
        half = trained(new(make, problem), problem, rounds=ROUNDS // 2, **trainer)
        half.save_checkpoint(path)
        options = {"rounds": ROUNDS, "clients_per_round": 3, "engine": "sequential", **trainer}
        resumed = continued(new(make, problem), problem, path, options)
    gap = largest_gap(whole, everything(resumed))
    return Measured("resumes exactly", gap == 0, gap, "= 0")


def continued(client: Client, problem: Problem, path: Path, options: dict[str, Any]) -> Any:
    """A run that goes on from a checkpoint."""
    trainer = new_trainer(**options)
    trainer.fit(client, datamodule=problem.data(), ckpt_path=path)
    return trainer


def same_seed_same_bits(make: Make, trainer: dict[str, Any], problem: Problem = TINY) -> Measured:
    """Two runs."""
    first, second = (everything(trained(new(make, problem), problem, **trainer)) for _ in range(2))
    gap = largest_gap(first, second)
    return Measured("same seed, same bits", gap == 0, gap, "= 0")


def cohort_is_respected(make: Make, trainer: dict[str, Any], problem: Problem = TINY) -> list[Measured]:
    """Clients outside the cohort keep their rows; weights are shares."""
    watching = Watching()
    trained(new(make, problem), problem, callbacks=[watching], **trainer)
    outside = f"{watching.outsiders} times outside"
    return [
        Measured("others untouched", watching.outsiders_moved == 0, watching.outsiders_moved, "= 0", outside),
        Measured("weights are shares", watching.worst_weights <= 1e-12, watching.worst_weights, "≤ 1e-12"),
    ]


def order_does_not_matter(make: Make, trainer: dict[str, Any], problem: Problem = TINY) -> Measured:
    """The same cohorts in the opposite order."""
    forward = everything(trained(new(make, problem), problem, **trainer))
    backward = everything(trained(new(make, problem), problem, sampler=ReversedSampler(), **trainer))
    gap = largest_gap(forward, backward)
    return Measured("order does not matter", gap <= 1e-12, gap, "≤ 1e-12")


def newcomers_change_nothing(make: Make, trainer: dict[str, Any], problem: Problem = TINY) -> Measured:
    """One of the four clients is held back and measured in every round; against a run that never heard of it."""
    few = trainer | {"clients_per_round": min(2, trainer.get("clients_per_round", 2))}
    data = problem.data(newcomers=1 / 4)
    met = trained(new(make, problem), problem, data=data, newcomers_every=1, **few)
    alone = trained(new(make, problem), problem, data=users_alone(problem.data(newcomers=1 / 4)), **few)
    gap = largest_gap(everything(alone), everything(met))
    measured = sum("newcomers/acc" in row for row in met.loop.history.rows)
    return Measured("newcomers change nothing", gap == 0, gap, "= 0", f"{measured} times measured")


class Keeping(Callback):
    """The first rank leaves all that a run has computed in a file: its processes are gone when it is over."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """There it is."""
        assert isinstance(trainer, FederatedTrainer)
        if trainer.is_global_zero:
            torch.save(everything(trainer), self.path)


def processes_agree(make: Make, trainer: dict[str, Any], problem: Problem = TINY) -> Measured:
    """One process against two, which are copies of this one."""
    alone = everything(trained(new(make, problem), problem, **trainer))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.pt"
        two = {"devices": 2, "strategy": "ddp_fork", "callbacks": [*trainer.get("callbacks", []), Keeping(path)]}
        trained(new(make, problem), problem, **(trainer | two))
        gap = largest_gap(alone, torch.load(path))
    return Measured("2 processes", gap == 0, gap, "= 0")


def nodes_agree(make: Make, trainer: dict[str, Any], problem: Problem = TINY) -> list[Measured]:
    """Clients that are nodes: the server has nothing of what stays with them, and sends and gets what is declared."""
    checks = ("clients elsewhere", "numbers as declared")
    if new(make, problem).pools_data:
        return [Measured(check, True, 0.0, "= 0", "one client has all data") for check in checks]
    reference = everything(trained(new(make, problem), problem, **trainer))
    with tempfile.TemporaryDirectory() as folder:
        apart = federated(partial(new, make, problem), problem, Path(folder), **trainer)
        gap = largest_gap(reference, apart.everything())
    loop = apart.trainer.loop
    down, up = loop.client.traffic()
    declared = down, up + loop.parts.told_numbers - 1  # n_i is told before the first round
    off = max(abs(sent - said) for pair in apart.link.numbers for sent, said in zip(pair, declared, strict=True))
    return [Measured(checks[0], gap == 0, gap, "= 0"), Measured(checks[1], off == 0, float(off), "= 0")]


def differs_from_averaging(make: Make, trainer: dict[str, Any], problem: Problem = TINY) -> Measured:
    """Its z or personal models against FedAvg's after the same rounds: the special term acts."""
    plain, special = averaging(problem), trained(new(make, problem), problem, **trainer)
    if type(special.loop.client) is FedAvg and not trainer and not special.loop.client.local_tensors:
        return Measured("differs from FedAvg", True, 0.0, "> 1e-3", "it is FedAvg")
    gap = max(
        float((personal(special, user)[name] - value).abs().max())
        for user in range(4)
        for name, value in personal(plain, user).items()
    )
    return Measured("differs from FedAvg", gap > 1e-3, gap, "> 1e-3")


def averaging(problem: Problem) -> FederatedTrainer:
    """Plain averaging on the problem, which every other algorithm must differ from."""
    return trained(FedAvg(problem.net(), **problem.local), problem)


def personal(trainer: Any, user: int) -> dict[str, Tensor]:
    """A user's personal model, unadapted."""
    model: dict[str, Tensor] = trainer.loop.round_evaluator.models.personal(user)
    return {name: value.detach().to(torch.float64) for name, value in model.items()}
