"""Traces that need more than a cohort and batches: offline training, tensors that stay with a client, duals."""

from typing import Any

import pytest

from fedlit import FedAvg, FedBCDI, FederatedTrainer, PerFedBC
from fedlit.errors import ConfigError
from fedlit.keys import Purpose, generator
from tests.algorithms.test_oracles import BATCH, EPOCHS, PLAIN, RICH, Problem, fitted, fitted_and_traced, gap
from tests.oracles import blocks, servers
from tests.oracles import rounds as oracle
from tests.problems import run, tiny_net

ROUNDS = 6
BLOCKS = {"extrapolation": 0.7, "box": 0.6, "server_lr": 0.5}


def offline_run(problem: Problem, reporting: int, **options: Any) -> FederatedTrainer:
    """So many of four clients report, three may train."""
    client = FedBCDI(tiny_net(), batch_size=BATCH, local_epochs=EPOCHS, offline_clients=3, **PLAIN, **BLOCKS, **options)
    return run(client, problem.data, rounds=ROUNDS, clients_per_round=reporting)


@pytest.mark.parametrize("server_sum", ["mean", "sum"])
@pytest.mark.parametrize("server_over", ["active", "all"])
@pytest.mark.parametrize(("cap", "reporting"), [(1, 1), (2, 1), (4, 2)])
def test_offline_training_matches_the_trace(server_over: str, server_sum: str, cap: int, reporting: int) -> None:
    problem = Problem()
    server = {"server_over": server_over, "server_sum": server_sum}
    trainer = offline_run(problem, reporting, prox=0.3, offline_rounds=cap, **server)
    client, sampler = trainer.loop.client, trainer.loop.options.sampler
    cohorts, offline, plan, pulls = [], [], [], []
    for t in range(ROUNDS):
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
