"""Three rounds of each algorithm against NumPy traces that were written from the papers by someone else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedlit import Client, FedAvg, FedBC, FederatedTrainer, FedProx, TensorData
from fedlit.engines.base import plan_batches
from fedlit.keys import Purpose, generator
from tests.oracles import rounds as oracle
from tests.problems import CLASSES, run, tiny_data, tiny_net

ROUNDS, BATCH, EPOCHS = 3, 4, 2
LOCAL: dict[str, Any] = {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.01, "clip": 2.0, "lr_decay": 0.8}
BIG_DUAL = {"dual_lr": 2.0, "tolerance_lr": 0.5}
"""Rates so large that a wrong order of updates shows in the first digits."""
CASES: dict[str, tuple[type[Client], Callable[..., oracle.Trace], dict[str, Any], dict[str, Any]]] = {
    "fedavg": (FedAvg, oracle.fedavg, {}, {}),
    "fedavg_uniform": (FedAvg, oracle.fedavg, {}, {"weights": "uniform"}),
    "fedprox": (FedProx, oracle.fedprox, {"mu": 0.7}, {}),
    "fedbc": (FedBC, oracle.fedbc, BIG_DUAL, {}),
    "fedbc_one_rate": (FedBC, oracle.fedbc, {"dual_lr": 1.0}, {}),
    "fedbc_fixed_tolerance": (FedBC, oracle.fedbc, {"dual_lr": 2.0, "tolerance_lr": 0.0, "tolerance_init": 0.05}, {}),
    "fedbc_new_dual_moves_tolerance": (FedBC, oracle.fedbc, BIG_DUAL | {"tolerance_uses": "new"}, {}),
    "fedbc_range": (FedBC, oracle.fedbc, BIG_DUAL | {"dual_init": 0.1, "dual_min": 0.1, "dual_max": 0.3}, {}),
    "fedbc_from_local": (FedBC, oracle.fedbc, BIG_DUAL | {"start_from": "local"}, {}),
    "fedbc_fallback": (FedBC, oracle.fedbc, {"dual_lr": 0.0, "fallback_weights": "uniform"}, {}),
    "fedbc_by_samples": (FedBC, oracle.fedbc, BIG_DUAL, {"weights": "samples"}),
}


def own_rows(data: TensorData) -> list[np.ndarray]:
    """Row numbers of each client's training samples."""
    return [rows.numpy() for rows in data.everyone.train]


def batches_of(data: TensorData, client: int, round: int) -> list[np.ndarray]:
    """The engine's mini-batches as positions among the client's own samples: the oracle draws nothing."""
    rows = own_rows(data)[client]
    per_epoch = -(-len(rows) // BATCH)
    rng = generator(0, Purpose.BATCHES, round=round, client=client)
    plan = plan_batches(rng, rows, EPOCHS * per_epoch, BATCH, per_epoch)
    position = {row: k for k, row in enumerate(rows.tolist())}
    return [
        np.array([position[row] for row in batch[:count].tolist()])
        for batch, count in zip(plan.index, plan.counts, strict=True)
    ]


def trace_of(case: str, cohorts: list[list[int]], data: TensorData) -> oracle.Trace:
    """The oracle's answer on the same data, cohorts and batches."""
    _, answer, options, trainer = CASES[case]
    net = tiny_net()
    x, y = data.store["x"].numpy(), data.store["y"].numpy()
    problem = oracle.Problem([x[rows] for rows in own_rows(data)], [y[rows] for rows in own_rows(data)], CLASSES)
    plan = [{k: batches_of(data, k, t) for k in cohort} for t, cohort in enumerate(cohorts)]
    init = (net.linear.weight.detach().numpy(), net.linear.bias.detach().numpy())
    return answer(problem, init, cohorts, plan, oracle.Local(**LOCAL), **options, **trainer)


def fitted(case: str, data: TensorData) -> FederatedTrainer:
    """fedlit's run of the same case."""
    algorithm, _, options, trainer = CASES[case]
    client = algorithm(tiny_net(), batch_size=BATCH, local_epochs=EPOCHS, **LOCAL, **options)
    return run(client, data, rounds=ROUNDS, **trainer)


@pytest.mark.parametrize("case", CASES)
def test_three_rounds_match_the_trace(case: str) -> None:
    data = tiny_data()
    trainer = fitted(case, data)
    select = trainer.loop.options.sampler.select
    cohorts = [select(0, t, data.sizes.numpy(), 3).train for t in range(ROUNDS)]
    trace = trace_of(case, cohorts, data)
    net, states = trainer.loop.client.net, trainer.loop.states
    assert len({tuple(cohort) for cohort in cohorts}) > 1, "partial participation must vary"
    np.testing.assert_allclose(net.linear.weight.detach(), trace.weight[-1], rtol=0, atol=1e-10)
    np.testing.assert_allclose(net.linear.bias.detach(), trace.bias[-1], rtol=0, atol=1e-10)
    for client, (weight, bias) in trace.local.items():
        np.testing.assert_allclose(states.row("local.linear.weight", client), weight, rtol=0, atol=1e-10)
        np.testing.assert_allclose(states.row("local.linear.bias", client), bias, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("fedbc")])
def test_duals_and_tolerances_match_the_trace(case: str) -> None:
    data = tiny_data()
    trainer = fitted(case, data)
    select = trainer.loop.options.sampler.select
    cohorts = [select(0, t, data.sizes.numpy(), 3).train for t in range(ROUNDS)]
    trace, states = trace_of(case, cohorts, data), trainer.loop.states
    for client in states.touched:
        assert float(states.row("dual", client)) == pytest.approx(trace.duals[-1][client], abs=1e-10)
        assert float(states.row("tolerance", client)) == pytest.approx(trace.tolerances[-1][client], abs=1e-10)


def test_training_loss_is_the_task_loss_weighted_by_size() -> None:
    data = tiny_data()
    trainer = fitted("fedbc", data)
    select, sizes = trainer.loop.options.sampler.select, data.sizes.numpy()
    cohorts = [select(0, t, sizes, 3).train for t in range(ROUNDS)]
    trace = trace_of("fedbc", cohorts, data)
    expected = [np.average(losses, weights=sizes[cohort]) for losses, cohort in zip(trace.losses, cohorts, strict=True)]
    assert trainer.loop.history.series("train/loss")[1] == pytest.approx(expected, abs=1e-10)
