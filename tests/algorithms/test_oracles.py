"""Three rounds of every algorithm against NumPy traces that were written from the papers by someone else."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit import (
    Client,
    Ditto,
    ExpAlpha,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBC,
    FedBCD,
    FedBCDI,
    FedDyn,
    FederatedTrainer,
    FedFor,
    FedProx,
    FedYogi,
    PerFedAvg,
    PerFedBC,
    PFedMe,
    QFedAvg,
    Scaffold,
)
from fedlit.engines.base import plan_batches
from fedlit.errors import ConfigError
from fedlit.keys import Purpose, generator
from tests.cases import slow_but
from tests.oracles import blocks, fair, personal, servers, variates
from tests.oracles import rounds as oracle
from tests.problems import CLASSES, FEATURES, SIZES, run, tiny_data, tiny_net

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


LOCALS: dict[str, Any] = {"state": "local", "compared": "local"}
UNIFORM = {"weights": "uniform"}
BIG_DUAL = {"dual_lr": 2.0, "tolerance_lr": 0.5}
"""Rates so large that a wrong order of updates shows in the first digits."""
ADAPTIVE = {"lr": 0.1, "beta1": 0.8, "beta2": 0.7, "tau": 0.01}
DITTO = {"prox": 1.5, "personal_lr": 0.07}
PFEDME = {"prox": 4.0, "personal_lr": 0.1, "inner_steps": 3, "beta": 1.7}
CASES = {
    "fedavg": Case(FedAvg, oracle.fedavg, **LOCALS),
    "fedavg_uniform": Case(FedAvg, oracle.fedavg, asked=UNIFORM, trainer=UNIFORM, **LOCALS),
    "fedprox": Case(FedProx, oracle.fedprox, {"mu": 0.7}, **LOCALS),
    "fedbc": Case(FedBC, oracle.fedbc, BIG_DUAL, **LOCALS),
    "fedbc_one_rate": Case(FedBC, oracle.fedbc, {"dual_lr": 1.0}, **LOCALS),
    "fedbc_fixed_tolerance": Case(
        FedBC, oracle.fedbc, {"dual_lr": 2.0, "tolerance_lr": 0.0, "tolerance_init": 0.05}, **LOCALS
    ),
    "fedbc_new_dual_moves_tolerance": Case(FedBC, oracle.fedbc, BIG_DUAL | {"tolerance_uses": "new"}, **LOCALS),
    "fedbc_range": Case(FedBC, oracle.fedbc, BIG_DUAL | {"dual_init": 0.1, "dual_min": 0.1, "dual_max": 0.3}, **LOCALS),
    "fedbc_from_local": Case(FedBC, oracle.fedbc, BIG_DUAL | {"start_from": "local"}, **LOCALS),
    "fedbc_fallback": Case(FedBC, oracle.fedbc, {"dual_lr": 0.0, "fallback_weights": "uniform"}, **LOCALS),
    "fedbc_by_samples": Case(
        FedBC, oracle.fedbc, BIG_DUAL, asked=BIG_DUAL | {"weights": "samples"}, trainer={"weights": "samples"}, **LOCALS
    ),
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


def fitted(name: str, problem: Problem, net: nn.Module | None = None, **engine: Any) -> FederatedTrainer:
    """fedlit's run of the same case."""
    case = CASES[name]
    client = case.algorithm(net or tiny_net(), batch_size=BATCH, local_epochs=EPOCHS, **case.local, **case.options)
    return run(client, problem.data, rounds=ROUNDS, **case.trainer, **engine)


def fitted_and_traced(
    name: str, net: nn.Module | None = None, **engine: Any
) -> tuple[FederatedTrainer, Any, Problem, list[list[int]]]:
    """fedlit's run, the oracle's answer, the data and the cohorts."""
    problem = Problem()
    trainer = fitted(name, problem, net, **engine)
    if isinstance(net, Behind):
        problem.given = replace(problem.given, x=[x @ net.first.detach().numpy() for x in problem.given.x])
    select = trainer.loop.options.sampler.select
    cohorts = [select(0, t, problem.data.sizes.numpy(), 3).report for t in range(ROUNDS)]
    assert len({tuple(cohort) for cohort in cohorts}) > 1, "partial participation must vary"
    return trainer, trace_of(CASES[name], problem, cohorts), problem, cohorts


def gap(ours: Tensor, theirs: np.ndarray) -> float:
    return float(np.abs(ours.detach().numpy() - theirs).max())


class Behind(nn.Module):
    """The tiny net behind a frozen layer: the oracles see the samples as that layer gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = tiny_net().linear
        torch.manual_seed(6)
        self.first = nn.Parameter(torch.randn(FEATURES, FEATURES, dtype=torch.float64) / 2, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.linear(x @ self.first)
        return logits


@pytest.mark.parametrize("name", slow_but(set(CASES) - {"pfedme_nu"}, CASES))
def test_three_rounds_match_the_trace(name: str) -> None:
    """In z, in the model that each client keeps, and in duals and tolerances."""
    assert_follows(name, *fitted_and_traced(name)[:2])


QUICK = {
    "fedbc_range",
    "qfedavg",
    "scaffold_I",
    "feddyn",
    "fedfor",
    "ditto",
    "per_fedavg",
    "pfedme",
    "fedbcd",
    "fedadam",
}


@pytest.mark.parametrize("engine", [{}, {"engine": "vectorized", "compiled": False}], ids=["sequential", "vectorized"])
@pytest.mark.parametrize("name", slow_but(QUICK, CASES))
def test_behind_a_frozen_layer_they_match_the_trace_on_its_outputs(name: str, engine: dict[str, Any]) -> None:
    """Nothing of the frozen layer is in a distance, a norm, an average or an optimiser's state."""
    assert_follows(name, *fitted_and_traced(name, Behind(), **engine)[:2])


def assert_follows(name: str, trainer: FederatedTrainer, trace: Any) -> None:
    case = CASES[name]
    net, states = trainer.loop.client.net, trainer.loop.states
    found = {"weight": gap(net.linear.weight, trace.weight[-1]), "bias": gap(net.linear.bias, trace.bias[-1])}
    for user in states.touched:
        if case.state:
            weight, bias = getattr(trace, case.compared)[user]
            found[f"{case.state} weight {user}"] = gap(states.row(f"{case.state}.linear.weight", user), weight)
            found[f"{case.state} bias {user}"] = gap(states.row(f"{case.state}.linear.bias", user), bias)
        if states.keeps("dual"):
            found[f"dual {user}"] = gap(states.row("dual", user), trace.duals[-1][user])
            found[f"tolerance {user}"] = gap(states.row("tolerance", user), trace.tolerances[-1][user])
    assert max(found.values()) < 1e-10, found


def test_training_loss_is_the_task_loss_weighted_by_size() -> None:
    trainer, trace, problem, cohorts = fitted_and_traced("fedbc")
    sizes = problem.data.sizes.numpy()
    expected = [np.average(losses, weights=sizes[cohort]) for losses, cohort in zip(trace.losses, cohorts, strict=True)]
    assert trainer.loop.history.series("train/loss")[1] == pytest.approx(expected, abs=1e-10)


# offline training, tensors that stay with a client, what the server keeps

OFFLINE_ROUNDS = 6
BLOCKS = {"extrapolation": 0.7, "box": 0.6, "server_lr": 0.5}


def offline_run(problem: Problem, reporting: int, **options: Any) -> FederatedTrainer:
    """So many of four clients report, three may train."""
    client = FedBCDI(tiny_net(), batch_size=BATCH, local_epochs=EPOCHS, offline_clients=3, **PLAIN, **BLOCKS, **options)
    return run(client, problem.data, rounds=OFFLINE_ROUNDS, clients_per_round=reporting)


@pytest.mark.parametrize("server_sum", ["mean", "sum"])
@pytest.mark.parametrize("server_over", ["active", "all"])
@pytest.mark.parametrize(("cap", "reporting"), [(1, 1), (2, 1), (4, 2)])
def test_offline_training_matches_the_trace(server_over: str, server_sum: str, cap: int, reporting: int) -> None:
    problem = Problem()
    server = {"server_over": server_over, "server_sum": server_sum}
    trainer = offline_run(problem, reporting, prox=0.3, offline_rounds=cap, **server)
    client, sampler = trainer.loop.client, trainer.loop.options.sampler
    cohorts, offline, plan, pulls = [], [], [], []
    for t in range(OFFLINE_ROUNDS):
        drawn = sampler.select(0, t, problem.data.sizes.numpy(), reporting)
        selection = client.select(drawn, 4, generator(0, Purpose.COHORT, round=t, index=1))
        work = {k: int(generator(0, Purpose.WORK, round=t, client=k).integers(1, 6)) for k in selection.train}
        cohorts.append(selection.report)
        offline.append(selection.train)
        plan.append({k: problem.batches(k, t, steps=count) for k, count in work.items()})
        pulls.append({k: work[k] for k in selection.report})
    net = tiny_net()
    init = (net.linear.weight.detach().numpy(), net.linear.bias.detach().numpy())
    options = {"pull": 0.3, "cap": cap, "offline": offline, "pulls": pulls, **server}
    trace = blocks.fedbcd_i(problem.given, init, cohorts, plan, oracle.Local(**PLAIN), **options, **BLOCKS)
    states = trainer.loop.states
    assert gap(client.net.linear.weight, trace.weight[-1]) < 1e-10
    for user in states.touched:
        weight, bias = trace.local[user]
        assert gap(states.row("local.linear.weight", user), weight) < 1e-10
        assert gap(states.row("local.linear.bias", user), bias) < 1e-10
        assert float(states.row("offline", user)) == trace.counters[-1][user]


def test_a_bias_that_stays_with_its_client_matches_the_trace() -> None:
    problem = Problem()
    client = FedAvg(tiny_net(), batch_size=BATCH, local_epochs=EPOCHS, keep_local="linear.bias", **RICH)
    trainer = run(client, problem.data, rounds=3)
    cohorts = [trainer.loop.options.sampler.select(0, t, problem.data.sizes.numpy(), 3).train for t in range(3)]
    plan = [{k: problem.batches(k, t, steps=problem.steps(k)) for k in who} for t, who in enumerate(cohorts)]
    net = tiny_net()
    init = (net.linear.weight.detach().numpy(), net.linear.bias.detach().numpy())
    trace = servers.fedavg_keeping_bias(problem.given, init, cohorts, plan, oracle.Local(**RICH))
    assert gap(client.net.linear.weight, trace.weight[-1]) < 1e-10
    for user in trainer.loop.states.touched:
        assert gap(trainer.loop.states.row("own.linear.bias", user), trace.personal[user][1]) < 1e-10
        assert gap(trainer.loop.round_evaluator.models.personal(user)["linear.bias"], trace.personal[user][1]) < 1e-10
        assert gap(trainer.loop.round_evaluator.models.personal(user)["linear.weight"], trace.personal[user][0]) < 1e-10
    assert gap(client.net.linear.bias, init[1]) == 0


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_server_state_matches_the_trace(name: str) -> None:
    trainer, trace, _, _ = fitted_and_traced(name)
    (callback,) = trainer.loop._server_callbacks()
    held = callback.state_dict()["control" if name == "scaffold" else "h"]
    weight, bias = trace.server["c" if name == "scaffold" else "h"][-1]
    assert max(gap(held["linear.weight"], weight), gap(held["linear.bias"], bias)) < 1e-10


@pytest.mark.usefixtures("few_inner_steps")
def test_an_algorithm_that_cannot_be_compiled_says_so() -> None:
    trainer = fitted("pfedme_nu", Problem(), engine="vectorized")
    assert trainer.summary["compiled"] is False
    assert "inner_nu" in trainer.loop.choice.line()


def test_per_fedbc_starts_from_the_received_model_only() -> None:
    with pytest.raises(ConfigError, match="model.start_from is 'local'"):
        PerFedBC(tiny_net(), start_from="local")
