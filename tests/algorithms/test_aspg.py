"""The local optimiser and the number of local steps as options of any client; FedBCD's penalties by client."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedlit import Client, Ditto, FedAvg, FedBCD, FedBCDI, FedProx, Scaffold
from fedlit.errors import ConfigError
from fedlit.keys import Purpose, generator
from tests.algorithms.test_oracles import BATCH, PLAIN, Problem, gap
from tests.oracles import projected
from tests.oracles import rounds as oracle
from tests.problems import kept_rows, largest_difference, run, tiny_net, weights_of

ROUNDS = 4
ASPG: dict[str, Any] = {"optimizer": "aspg", "extrapolation": 0.7, "box": 0.3}
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized", "compiled": False, "lanes": 2, "workers": 1},
}
Make = Callable[..., Client]


def drawn_steps(client: int, round: int, most: int = 5) -> int:
    """K_i, from the client's own stream."""
    return int(generator(0, Purpose.WORK, round=round, client=client).integers(1, most + 1))


def initial() -> oracle.Model:
    net = tiny_net()
    return net.linear.weight.detach().numpy(), net.linear.bias.detach().numpy()


# the local optimiser


BASELINES: dict[str, tuple[Make, dict[str, Any], float]] = {
    "fedavg": (FedAvg, {}, 0.0),
    "fedavg, memory kept": (FedAvg, {"keep_optimizer": True}, 0.0),
    "fedprox": (FedProx, {"mu": 5.0}, 5.0),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_with_aspg_match_the_trace(name: str, engine: str) -> None:
    make, options, mu = BASELINES[name]
    problem = Problem()
    client = make(tiny_net(), batch_size=BATCH, most_steps=5, **PLAIN, **ASPG, **options)
    trainer = run(client, problem.data, rounds=ROUNDS, **ENGINES[engine])
    select = trainer.loop.options.sampler.select
    cohorts = [select(0, t, problem.data.sizes.numpy(), 3).train for t in range(ROUNDS)]
    plan = [{k: problem.batches(k, t, steps=drawn_steps(k, t)) for k in who} for t, who in enumerate(cohorts)]
    rule = {"mu": mu, "extrapolation": 0.7, "box": 0.3, "kept": "keep_optimizer" in options}

    def answer(**other: Any) -> oracle.Trace:
        asked: dict[str, Any] = rule | other
        return projected.fedprox(problem.given, initial(), cohorts, plan, oracle.Local(**PLAIN), **asked)

    trace, states = answer(), trainer.loop.states
    assert max(gap(client.net.linear.weight, trace.weight[-1]), gap(client.net.linear.bias, trace.bias[-1])) < 1e-10
    for user in states.touched:
        weight, bias = trace.local[user]
        assert gap(states.row("local.linear.weight", user), weight) < 1e-10
        assert gap(states.row("local.linear.bias", user), bias) < 1e-10
    for other in ({"box": None}, {"extrapolation": 0.0}, {"kept": not rule["kept"]}, {"mu": mu + 1}):
        assert np.abs(answer(**other).weight[-1] - trace.weight[-1]).max() > 1e-3, f"{other} must show"


@pytest.mark.parametrize("make", [FedAvg, FedProx, FedBCD])
def test_aspg_without_extrapolation_and_box_is_sgd(make: Make) -> None:
    plain: dict[str, Any] = {"extrapolation": 0.0, "box": None, "batch_size": BATCH, "lr": 0.05}
    aspg, sgd = (weights_of(run(make(tiny_net(), optimizer=kind, **plain))) for kind in ("aspg", "sgd"))
    assert largest_difference(aspg, sgd) == 0
    extrapolated = weights_of(run(make(tiny_net(), **plain | ASPG)))
    assert largest_difference(extrapolated, sgd) > 1e-3


def test_fedbcd_takes_the_authors_optimiser() -> None:
    sgd: dict[str, Any] = {"optimizer": "sgd", "extrapolation": 0.0, "box": None, "momentum": 0.9, "weight_decay": 1e-4}
    trainer = run(FedBCD(tiny_net(), batch_size=BATCH, **sgd))
    assert "memory.linear.weight" in kept_rows(trainer), "momentum survives the round"


REFUSED: dict[str, tuple[Callable[[], Client], str]] = {
    "momentum": (lambda: FedAvg(tiny_net(), optimizer="aspg", momentum=0.5), "model.momentum is 0.5, but .* 'aspg'"),
    "weight decay": (lambda: FedBCD(tiny_net(), weight_decay=0.1), "model.weight_decay is 0.1, but .* 'aspg'"),
    "clip": (lambda: FedProx(tiny_net(), optimizer="aspg", clip=2.0), "model.clip is 2.0, but .* 'aspg'"),
    "extrapolation": (lambda: FedAvg(tiny_net(), extrapolation=0.9), "model.extrapolation is 0.9, but .* 'sgd'"),
    "box": (lambda: FedAvg(tiny_net(), box=2.0), "model.box is 2.0, but .* 'sgd'"),
    "extrapolation too large": (lambda: FedAvg(tiny_net(), optimizer="aspg", extrapolation=1.0), "below 1"),
    "box not positive": (lambda: FedAvg(tiny_net(), optimizer="aspg", box=0.0), "model.box is 0.0"),
    "another optimiser": (lambda: FedAvg(tiny_net(), optimizer="adam"), "model.optimizer is 'adam'"),  # type: ignore[arg-type]
    "FedBCD-I": (
        lambda: FedBCDI(tiny_net(), optimizer="sgd", extrapolation=0.0, box=None),
        "model.optimizer is 'sgd', but FedBCD-I's pull",
    ),
    "SCAFFOLD's path": (lambda: Scaffold(tiny_net(), **ASPG), "model.optimizer is 'aspg', but option II of SCAFFOLD"),
    "no steps": (lambda: FedAvg(tiny_net(), most_steps=0), "model.most_steps is 0"),
    "a unit of nothing": (lambda: FedAvg(tiny_net(), local_unit="epoch"), "no most_steps is given"),
    "two draws": (lambda: FedProx(tiny_net(), stragglers=0.5, most_steps=5), "both draw how much each client works"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_go_together_are_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        make()


# the number of local steps


def planned_work(client: Client, planned: list[int], method: str = "local_work") -> list[int]:
    """Steps of four clients in round 0."""
    keyed = [generator(0, Purpose.WORK, round=0, client=k) for k in range(4)]
    work: np.ndarray = getattr(client, method)(None, np.array(planned), lambda k: keyed[k])
    return [int(steps) for steps in work]


@pytest.mark.parametrize("make", [FedAvg, FedProx, FedBCD])
def test_any_client_draws_its_steps(make: Make) -> None:
    drawn = [drawn_steps(k, 0, most=9) for k in range(4)]
    assert planned_work(make(tiny_net(), most_steps=9), [4, 6, 0, 2]) == [drawn[0], drawn[1], 0, drawn[3]]


def test_epochs_are_drawn_as_whole_passes() -> None:
    client = FedAvg(tiny_net(), most_steps=3, local_unit="epoch", local_epochs=2)
    assert planned_work(client, [4, 6, 0, 2]) == [drawn_steps(k, 0, most=3) * n for k, n in enumerate([2, 3, 0, 1])]


def test_both_solves_of_ditto_draw_the_same_steps() -> None:
    client = Ditto(tiny_net(), most_steps=9)
    assert planned_work(client, [4, 6, 8, 2], "personal_work") == planned_work(client, [4, 6, 8, 2])


def test_fedbcd_without_a_draw_does_what_is_planned() -> None:
    assert planned_work(FedBCD(tiny_net(), most_steps=None), [4, 6, 0, 2]) == [4, 6, 0, 2]
