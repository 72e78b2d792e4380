"""What holds in every round of every algorithm, whatever its numbers are."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlit import (
    QFFL,
    Client,
    Cohort,
    ExpAlpha,
    FederatedTrainer,
    PFedMe,
    ServerCallback,
    TensorData,
    UniformSampler,
    WeighedCohort,
)
from fedlit.algorithms.feddyn import DynamicRegularization
from fedlit.algorithms.scaffold import ControlVariates
from fedlit.server.weights import Weighting
from tests.cases import ENTRIES, made, slow_but
from tests.problems import CLASSES, FEATURES, SIZES, kept_rows, largest_difference, run, tiny_net, weights_of
from tests.server import make_cohort

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_steps": 3}
FULL: dict[str, Any] = {"lr": 0.05, "batch_size": 64, "local_epochs": 3}
SINGLE = [name for name in ENTRIES if not ENTRIES[name].trainer and name != "centralised"]
"""Algorithms whose server averages and steps in its own way, if at all."""


class Watch(ServerCallback):
    """Everything of every round that is finished."""

    def __init__(self) -> None:
        self.cohorts: list[Cohort] = []
        self.rows: list[dict[str, Tensor]] = []
        self.order: list[list[int]] = []
        self.kept: list[dict[str, Tensor]] = []

    def on_server_step_end(self, trainer: Any, client: Client, cohort: WeighedCohort) -> None:
        self.cohorts.append(cohort)
        self.rows.append(trainer.loop.states.state_dict()["rows"])
        self.order.append(trainer.loop.states.touched)
        for callback in trainer.callbacks:
            if isinstance(callback, ControlVariates):
                self.kept.append(dict(callback.control))
            if isinstance(callback, DynamicRegularization):
                self.kept.append(dict(callback.h))


# server and clients


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize(
    ("name", "state"), [("SCAFFOLD I", "control"), ("SCAFFOLD II", "control"), ("FedDyn", "gradient")]
)
def test_the_servers_state_stays_the_mean_of_all_clients(name: str, state: str, weights: str) -> None:
    """Clients that were never drawn count 0."""
    watch = Watch()
    run(made(name, tiny_net(), **LOCAL), rounds=6, clients_per_round=2, weights=weights, callbacks=[watch])
    assert len(watch.order[0]) < len(watch.order[-1]) == 4, "partial participation must be seen"
    for server, rows in zip(watch.kept, watch.rows, strict=True):
        assert max(float(value.abs().max()) for value in server.values()) > 1e-3
        means = {parameter: rows[f"{state}.{parameter}"].sum(0) / 4 for parameter in server}
        assert largest_difference(server, means) <= 1e-12


RISKS = st.lists(st.tuples(st.integers(1, 999), st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=6)
BY_RISK = [QFFL(q=0.0), QFFL(q=0.5), QFFL(q=5.0), ExpAlpha(1e-9), ExpAlpha(0.2), ExpAlpha(1e9, "prefactor")]


@pytest.mark.parametrize("weighting", BY_RISK, ids=str)
@settings(deadline=None, max_examples=40)
@given(members=RISKS)
def test_weights_by_risk_are_weights_for_any_finite_risks(
    weighting: Weighting, members: list[tuple[int, float, float]]
) -> None:
    sizes, before, after = (list(column) for column in zip(*members, strict=True))
    cohort = make_cohort(sizes, params={"w": torch.ones(len(sizes), 2).double()})
    cohort.risk_received, cohort.risk_trained = torch.tensor(before).double(), torch.tensor(after).double()
    weights = weighting.weigh(cohort).weights
    assert float(weights.min()) >= 0
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)


# who is drawn


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", SINGLE)
def test_all_algorithms_draw_the_same_cohorts(name: str) -> None:
    watch, plain = Watch(), UniformSampler()
    trainer = run(made(name, tiny_net(), **LOCAL), rounds=3, clients_per_round=2, seed=5, callbacks=[watch])
    drawn = [[user for user, sends in zip(c.clients, c.reports, strict=True) if sends] for c in watch.cohorts]
    sizes = trainer.loop.data.sizes.numpy()
    assert drawn == [plain.select(5, round, sizes, 2).report for round in range(3)]
    assert len({tuple(cohort) for cohort in drawn}) > 1


def renamed(order: list[int]) -> TensorData:
    """The same clients under other ids: client k is called order[k]."""
    rng, owner = np.random.default_rng(7), np.repeat(np.arange(4), SIZES)
    x, y = rng.normal(size=(sum(SIZES), FEATURES)), rng.integers(CLASSES, size=sum(SIZES))
    return TensorData(x, y, np.array(order)[owner], num_classes=CLASSES, test_fraction=0, val_fraction=0)


NAMED = ["FedBC, from its own model", "FedAvg, momentum kept", "pFedMe", "FedBCD-I, over all", "centralised"]
ALL_NAMED = [*(name for name in SINGLE if "ν" not in name and "stragglers" not in name), "FedAvg, momentum kept"]


@pytest.mark.parametrize("name", slow_but(NAMED, [*ALL_NAMED, "FedBCD-I, over all", "centralised"]))
def test_clients_numbers_are_but_names(name: str) -> None:
    """With full batches; who is late and how many steps a block takes is drawn by a client's number: left out."""
    whole = FULL | ({"most_steps": 1} if "BCD" in name else {})
    order = [2, 0, 3, 1]

    plain, other = (
        run(made(name, tiny_net(), **whole), renamed(ids), rounds=2, sampler="all") for ids in ([0, 1, 2, 3], order)
    )
    assert largest_difference(weights_of(plain), weights_of(other)) <= 1e-12
    ours, theirs = kept_rows(plain), kept_rows(other)
    assert all(float((ours[row] - theirs[row][order]).abs().max()) <= 1e-12 for row in ours)


# pFedMe's three models


def rows_after_one_round(**options: Any) -> tuple[dict[str, Tensor], Watch, FederatedTrainer]:
    watch = Watch()
    trainer = run(PFedMe(tiny_net(), prox=4.0, **LOCAL, **options), rounds=1, clients_per_round=2, callbacks=[watch])
    return watch.rows[0], watch, trainer


def test_after_a_round_of_pfedme_theta_w_and_z_are_three_models() -> None:
    rows, _, trainer = rows_after_one_round()
    theta, w, z = rows["personal.linear.weight"], rows["local.linear.weight"], weights_of(trainer)["linear.weight"]
    for a, b in ((theta, w), (w, z), (theta, z)):
        assert float((a - b).abs().amax((1, 2)).min()) > 1e-4


def test_when_all_train_everyone_gets_a_personal_model_and_only_the_drawn_are_averaged() -> None:
    rows, watch, trainer = rows_after_one_round(train_all=True)
    start, cohort = tiny_net().linear.weight.detach(), watch.cohorts[0]
    assert cohort.clients == [0, 1, 2, 3]
    assert int(cohort.reports.sum()) == 2
    assert float((rows["personal.linear.weight"] - start).abs().amax((1, 2)).min()) > 1e-4
    drawn = rows["local.linear.weight"][cohort.reports].mean(0)
    torch.testing.assert_close(weights_of(trainer)["linear.weight"], drawn, rtol=0, atol=1e-12)
