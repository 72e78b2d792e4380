"""Three rounds of every algorithm against NumPy traces that were written from the papers by someone else."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlit import (
    Client,
    Ditto,
    ExpAlpha,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBCD,
    FedDyn,
    FederatedTrainer,
    FedFor,
    FedYogi,
    PerFedAvg,
    PerFedBC,
    PFedMe,
    QFedAvg,
    Scaffold,
)
from fedlit.engines.base import plan_batches
from fedlit.keys import Purpose, generator
from tests.kinds import slow_but
from tests.oracles import blocks, fair, personal, servers, variates
from tests.oracles import rounds as oracle
from tests.problems import CLASSES, SIZES, kept_rows, largest_difference, run, tiny_data, tiny_net, weights_of

ROUNDS, BATCH, EPOCHS = 3, 4, 2
PLAIN: dict[str, Any] = {"lr": 0.05, "lr_decay": 0.8}
RICH = PLAIN | {"momentum": 0.5, "weight_decay": 0.01, "clip": 2.0}
Answer = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """fedlit's algorithm with its options, and the oracle with the same."""

    algorithm: type[Client]
    answer: Answer
    options: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] | None = None
    """The oracle's options, where they differ."""
    trainer: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=lambda: RICH)
    per_step: int = 1
    state: str = ""
    """The whole-model state that `compared` gives for every touched client."""
    compared: str = "personal"


BIG_DUAL = {"dual_lr": 2.0, "tolerance_lr": 0.5}
ADAPTIVE = {"lr": 0.1, "beta1": 0.8, "beta2": 0.7, "tau": 0.01}
DITTO = {"prox": 1.5, "personal_lr": 0.07}
PFEDME = {"prox": 4.0, "personal_lr": 0.1, "inner_steps": 3, "beta": 1.7}
CASES = {
    "qfedavg": Case(QFedAvg, fair.qfedavg, {"q": 2.0}),
    "qfedavg_fraction": Case(QFedAvg, fair.qfedavg, {"q": 0.3, "lipschitz": 7.0}),
    "qfedavg_by_samples": Case(QFedAvg, fair.qfedavg, {"q": 1.0, "sample_weighted": True}),
    "exp_alpha": Case(FedAvg, fair.exp_alpha, asked={"alpha": 0.2}, trainer={"weights": ExpAlpha(0.2)}),
    "exp_alpha_prefactor": Case(
        FedAvg,
        fair.exp_alpha,
        asked={"alpha": 0.05, "size_factor": "prefactor"},
        trainer={"weights": ExpAlpha(0.05, "prefactor")},
    ),
    "exp_alpha_no_sizes": Case(
        FedAvg, fair.exp_alpha, asked={"alpha": 0.5, "size_factor": "none"}, trainer={"weights": ExpAlpha(0.5, "none")}
    ),
    "scaffold": Case(Scaffold, variates.scaffold, local=PLAIN, state="control", compared="control"),
    "scaffold_I": Case(Scaffold, variates.scaffold, {"option": "I"}, state="control", compared="control"),
    "scaffold_server_lr": Case(
        Scaffold, variates.scaffold, {"server_lr": 0.6}, local=PLAIN, state="control", compared="control"
    ),
    "scaffold_by_samples": Case(
        Scaffold, variates.scaffold, asked={"weights": "samples"}, trainer={"weights": "samples"}, local=PLAIN
    ),
    "scaffold_momentum": Case(
        Scaffold, variates.scaffold, {"allow_momentum": True}, local=RICH, state="control", compared="control"
    ),
    "feddyn": Case(FedDyn, variates.feddyn, {"alpha": 0.7}, state="gradient", compared="control"),
    "feddyn_scaled": Case(
        FedDyn, variates.feddyn, {"alpha": 0.7, "scale_alpha": True}, state="gradient", compared="control"
    ),
    "fedfor": Case(FedFor, variates.fedfor, {"strength": 0.6}),
    "fedfor_hinge": Case(FedFor, variates.fedfor, {"strength": 0.6, "form": "hinge"}, local=PLAIN),
    "ditto": Case(Ditto, personal.ditto, DITTO, state="personal"),
    "ditto_five_steps": Case(Ditto, personal.ditto, DITTO | {"personal_steps": 5}, asked=DITTO, state="personal"),
    "per_fedavg": Case(PerFedAvg, personal.per_fedavg, {"adapt_lr": 0.3}, per_step=3),
    "per_fedavg_l2": Case(PerFedAvg, personal.per_fedavg, {"adapt_lr": 0.3, "l2": 0.4}, per_step=3),
    "per_fedavg_hf_l2": Case(PerFedAvg, personal.per_fedavg, {"adapt_lr": 0.3, "form": "hf", "l2": 0.4}, per_step=3),
    "per_fedavg_hf": Case(PerFedAvg, personal.per_fedavg, {"adapt_lr": 0.3, "form": "hf"}, per_step=3),
    "per_fedavg_fo": Case(PerFedAvg, personal.per_fedavg, {"adapt_lr": 0.3, "form": "fo"}, per_step=2),
    "pfedme": Case(PFedMe, personal.pfedme, PFEDME, state="personal"),
    "pfedme_l2": Case(PFedMe, personal.pfedme, PFEDME | {"l2": 0.4}, state="personal"),
    "pfedme_from_w": Case(PFedMe, personal.pfedme, PFEDME | {"inner_start": "w"}, state="personal"),
    "pfedme_nu": Case(PFedMe, personal.pfedme, PFEDME | {"inner_nu": 0.05}, state="personal"),
    "pfedme_nesterov": Case(PFedMe, personal.pfedme, PFEDME | {"inner_momentum": 0.6}, state="personal"),
    "pfedme_nesterov_nu": Case(
        PFedMe, personal.pfedme, PFEDME | {"inner_nu": 0.05, "inner_momentum": 0.6}, state="personal"
    ),
    "pfedme_all_train": Case(PFedMe, personal.pfedme, PFEDME | {"train_all": True}, asked=PFEDME, state="personal"),
    "per_fedbc": Case(PerFedBC, personal.per_fedbc, BIG_DUAL | {"adapt_lr": 0.2}, per_step=2),
    "per_fedbc_two": Case(PerFedBC, personal.per_fedbc, BIG_DUAL | {"adapt_lr": 0.2, "adapt_steps": 2}, per_step=3),
    "fedbcd": Case(
        FedBCD,
        blocks.fedbcd,
        {"prox": 0.8, "extrapolation": 0.7, "box": 0.6, "server_lr": 0.5},
        local=PLAIN,
        state="memory",
        compared="control",
    ),
    "fedbcd_sum": Case(
        FedBCD,
        blocks.fedbcd,
        {"prox": 0.8, "extrapolation": 0.7, "box": None, "server_lr": 0.05, "server_sum": "sum"},
        local=PLAIN,
    ),
    "fedavgm": Case(
        FedAvg,
        servers.fedavg_with,
        asked={"optimizer": "fedavgm", "lr": 0.7},
        trainer={"server_optimizer": FedAvgM(0.7)},
    ),
    "fedavgm_nesterov": Case(
        FedAvg,
        servers.fedavg_with,
        asked={"optimizer": "fedavgm", "lr": 0.7, "nesterov": True},
        trainer={"server_optimizer": FedAvgM(0.7, nesterov=True)},
    ),
    "fedadam": Case(
        FedAvg,
        servers.fedavg_with,
        asked={"optimizer": "fedadam"} | ADAPTIVE,
        trainer={"server_optimizer": FedAdam(**ADAPTIVE)},
    ),
    "fedyogi": Case(
        FedAvg,
        servers.fedavg_with,
        asked={"optimizer": "fedyogi"} | ADAPTIVE,
        trainer={"server_optimizer": FedYogi(**ADAPTIVE)},
    ),
    "fedadagrad": Case(
        FedAvg,
        servers.fedavg_with,
        asked={"optimizer": "fedadagrad"} | ADAPTIVE,
        trainer={"server_optimizer": FedAdagrad(**ADAPTIVE)},
    ),
}
UP_TO_A_NORM = {"pfedme_nu", "pfedme_nesterov_nu"}
"""They take up to a hundred inner steps for each step."""


class Problem:
    """The tiny data, and what the engine draws from it: the oracles draw nothing."""

    def __init__(self, sizes: tuple[int, ...] = SIZES) -> None:
        self.data = tiny_data(sizes)
        self.data.setup()
        self.rows = [rows.numpy() for rows in self.data.everyone.train]
        x, y = self.data.store["x"].numpy(), self.data.store["y"].numpy()
        self.given = oracle.Problem([x[rows] for rows in self.rows], [y[rows] for rows in self.rows], CLASSES)

    def steps(self, client: int) -> int:
        return EPOCHS * -(-len(self.rows[client]) // BATCH)

    def batches(self, client: int, round: int, *, steps: int, per_step: int = 1, stream: int = 0) -> list[Any]:
        """The mini-batches as positions among the client's own samples, in tuples where a step has several."""
        rows = self.rows[client]
        rng = generator(0, Purpose.BATCHES, round=round, client=client, index=stream)
        plan = plan_batches(rng, rows, steps * per_step, BATCH, -(-len(rows) // BATCH))
        position = {row: k for k, row in enumerate(rows.tolist())}
        cut = [
            np.array([position[row] for row in batch[:count].tolist()])
            for batch, count in zip(plan.index, plan.counts, strict=True)
        ]
        return cut if per_step == 1 else [tuple(cut[k : k + per_step]) for k in range(0, len(cut), per_step)]


def trace_of(case: Case, problem: Problem, cohorts: list[list[int]]) -> Any:
    """The oracle's answer on the same data, cohorts and batches."""
    net, asked = tiny_net(), dict(case.options if case.asked is None else case.asked)
    everyone = list(range(len(problem.rows)))
    trained = [everyone] * ROUNDS if case.options.get("train_all") else cohorts
    steps: list[dict[int, int]] = [{k: problem.steps(k) for k in who} for who in trained]
    if case.algorithm is FedBCD:
        for t, who in enumerate(trained):
            steps[t] = {k: int(generator(0, Purpose.WORK, round=t, client=k).integers(1, 6)) for k in who}
    plan = [
        {k: problem.batches(k, t, steps=count, per_step=case.per_step) for k, count in own.items()}
        for t, own in enumerate(steps)
    ]
    if case.algorithm is Ditto:
        asked["personal_plan"] = [
            {
                k: problem.batches(k, t, steps=case.options.get("personal_steps", count), stream=1)
                for k, count in own.items()
            }
            for t, own in enumerate(steps)
        ]
    if case.options.get("train_all"):
        asked["trained"] = trained
    if "allow_momentum" in case.options:
        asked["allow_momentum"] = True
    init = (net.linear.weight.detach().numpy(), net.linear.bias.detach().numpy())
    return case.answer(problem.given, init, cohorts, plan, oracle.Local(**case.local), **asked)


def fitted(name: str, problem: Problem, **engine: Any) -> FederatedTrainer:
    """fedlit's run of the same case."""
    case = CASES[name]
    client = case.algorithm(tiny_net(), batch_size=BATCH, local_epochs=EPOCHS, **case.local, **case.options)
    return run(client, problem.data, rounds=ROUNDS, **case.trainer, **engine)


def differences(name: str, **engine: Any) -> dict[str, float]:
    """The largest difference to the trace in z and in the rows that are compared."""
    case, problem = CASES[name], Problem()
    trainer = fitted(name, problem, **engine)
    select = trainer.loop.options.sampler.select
    cohorts = [select(0, t, problem.data.sizes.numpy(), 3).report for t in range(ROUNDS)]
    assert len({tuple(cohort) for cohort in cohorts}) > 1, "partial participation must vary"
    trace = trace_of(case, problem, cohorts)
    net, states = trainer.loop.client.net, trainer.loop.states
    found = {"weight": gap(net.linear.weight, trace.weight[-1]), "bias": gap(net.linear.bias, trace.bias[-1])}
    if case.state:
        rows = getattr(trace, case.compared)
        for user in states.touched:
            weight, bias = rows[user]
            found[f"{case.state} weight {user}"] = gap(states.row(f"{case.state}.linear.weight", user), weight)
            found[f"{case.state} bias {user}"] = gap(states.row(f"{case.state}.linear.bias", user), bias)
    return found


def gap(ours: Tensor, theirs: np.ndarray) -> float:
    return float(np.abs(ours.detach().numpy() - theirs).max())


@pytest.mark.parametrize("name", slow_but(set(CASES) - {"pfedme_nu"}, CASES))
def test_three_rounds_match_the_trace(name: str) -> None:
    found = differences(name)
    assert max(found.values()) < 1e-10, found


IN_LANES = (
    *("qfedavg", "exp_alpha", "scaffold", "feddyn", "fedfor_hinge", "ditto", "per_fedavg", "per_fedavg_hf"),
    *("per_fedavg_fo", "pfedme", "pfedme_all_train", "per_fedbc_two", "fedbcd"),
)
"""Every kind of local step. What else differs is the server's, which is the same code for all engines."""


@pytest.mark.parametrize("name", slow_but(IN_LANES, CASES))
def test_the_vectorized_engine_matches_the_trace_too(name: str) -> None:
    found = differences(name, engine="vectorized", compiled=False, lanes=2, workers=1)
    assert max(found.values()) < 1e-10, found


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", sorted(UP_TO_A_NORM))
def test_inner_steps_up_to_a_norm_are_the_same_in_both_engines(name: str) -> None:
    one, other = (
        fitted(name, Problem(), engine=engine, **options)
        for engine, options in (("sequential", {}), ("vectorized", {"compiled": False, "lanes": 2, "workers": 1}))
    )
    assert largest_difference(weights_of(one), weights_of(other)) < 1e-10
    assert largest_difference(kept_rows(one), kept_rows(other)) < 1e-10


@pytest.mark.slow  # the conformance suite proves it for every algorithm
def test_traces_differ_from_plain_averaging() -> None:
    problem = Problem()
    plain = run(FedAvg(tiny_net(), batch_size=BATCH, local_epochs=EPOCHS, **RICH), problem.data, rounds=ROUNDS)
    for name in set(CASES) - {"ditto", "ditto_five_steps"}:  # whose z is FedAvg's, whatever its personal models do
        moved = (fitted(name, problem).loop.client.net.linear.weight - plain.loop.client.net.linear.weight).detach()
        assert float(moved.abs().max()) > 1e-3, name
    assert torch.is_grad_enabled()
