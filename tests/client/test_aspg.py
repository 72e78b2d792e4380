"""The local optimiser and the number of local steps as options of any client; FedBCD's penalties by client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlit import Client, Ditto, FedAvg, FedBCD, FedBCDI, FederatedTrainer, FedProx, Scaffold
from fedlit.errors import ConfigError
from fedlit.keys import Purpose, generator
from tests.algorithms.test_oracles import BATCH, PLAIN, Problem, gap
from tests.oracles import clouds, projected
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


# a penalty of its own for each client


GAMMAS = [0.9, 0.2, 0.0, 0.5]
PULLS = [0.9, 0.2, 1.0, 0.5]
CLOUDS: dict[str, tuple[Make, dict[str, Any], dict[str, Any]]] = {
    "fedbcd": (FedBCD, {"prox": GAMMAS}, {}),
    "fedbcd, sum": (FedBCD, {"prox": GAMMAS, "server_sum": "sum", "server_lr": 0.25}, {}),
    "fedbcd_i": (FedBCDI, {"prox": PULLS}, {"weights": "gamma"}),
    "fedbcd_i, sum": (FedBCDI, {"prox": PULLS, "server_sum": "sum"}, {}),
    "fedbcd_i, all": (FedBCDI, {"prox": PULLS, "server_over": "all"}, {"weights": "gamma", "over": "all"}),
    "fedbcd_i, sum over all": (
        FedBCDI,
        {"prox": PULLS, "server_over": "all", "server_sum": "sum", "server_lr": 0.25},
        {"over": "all"},
    ),
}


def cloud_draws(problem: Problem, trainer: FederatedTrainer, *, offline: bool) -> list[clouds.Draw]:
    """What the run drew in each round: who took part, how often, on which batches."""
    draws, client, options = [], trainer.loop.client, trainer.loop.options
    for t in range(ROUNDS):
        drawn = options.sampler.select(0, t, problem.data.sizes.numpy(), 2)
        chosen = client.select(drawn, 4, generator(0, Purpose.COHORT, round=t, index=1))
        steps = {k: drawn_steps(k, t) for k in chosen.train}
        batches = {k: problem.batches(k, t, steps=count) for k, count in steps.items()}
        draws.append(clouds.Draw(chosen.report, batches, steps, chosen.train if offline else None, tau=1.0))
    return draws


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CLOUDS)
def test_penalties_by_client_match_the_trace(name: str, engine: str) -> None:
    make, options, asked = CLOUDS[name]
    problem, offline = Problem(), make is FedBCDI
    blocks: dict[str, Any] = {"extrapolation": 0.7, "box": 0.3, "server_lr": 0.5} | options
    extra = {"offline_clients": 3, "offline_rounds": 2} if offline else {}
    client = make(tiny_net(), batch_size=BATCH, lr=0.05, **blocks, **extra)
    trainer = run(client, problem.data, rounds=ROUNDS, clients_per_round=2, **ENGINES[engine])
    draws = cloud_draws(problem, trainer, offline=offline)

    def answer(gamma: float | list[float]) -> clouds.Event:
        rule = clouds.Rule(
            "fedbcd_i" if offline else "fedbcd",
            eta_x=0.05,
            eta_z=blocks["server_lr"],
            gamma=gamma,
            zeta=0.7,
            box=0.3,
            form=blocks.get("server_sum", "mean"),
            cap=2,
            **asked,
        )
        return clouds.sync_cloud(problem.given, [[0, 1, 2, 3]], initial(), [draws], rule, ROUNDS)[-1]

    event, states = answer(options["prox"]), trainer.loop.states
    z = np.concatenate([client.net.linear.weight.detach().numpy(), client.net.linear.bias.detach().numpy()[:, None]], 1)
    assert np.abs(z - event.z[0]).max() < 1e-10
    for user in states.touched:
        assert gap(states.row("local.linear.weight", user), event.x[user][:, :-1]) < 1e-10
        assert gap(states.row("local.linear.bias", user), event.x[user][:, -1]) < 1e-10
    assert len(states.touched) > 2, "stale clients must count"
    assert np.abs(answer(float(np.mean(options["prox"]))).z - event.z).max() > 1e-3, "own penalties must show"


@pytest.mark.parametrize("make", [FedBCD, FedBCDI])
def test_equal_penalties_are_one_penalty(make: Make) -> None:
    one, many = (weights_of(run(make(tiny_net(), prox=prox, batch_size=BATCH))) for prox in (0.4, [0.4] * 4))
    assert largest_difference(one, many) < 1e-14


BAD_PENALTIES: dict[str, tuple[Make, dict[str, Any], str]] = {
    "too few": (FedBCD, {"prox": [0.5, 0.5]}, "model.prox has 2 numbers, but the data have 4 clients"),
    "none": (FedBCD, {"prox": []}, "model.prox is an empty list"),
    "negative": (FedBCD, {"prox": [1.0, -0.5, 1.0, 1.0]}, r"model.prox\[1\] is -0.5; give 0 or more"),
    "not a number": (FedBCD, {"prox": [1.0, 1.0, float("nan"), 1.0]}, r"model.prox\[2\] is nan"),
    "negative for all": (FedBCD, {"prox": -1.0}, "model.prox is -1.0; give 0 or more"),
    "nothing to divide by": (FedBCD, {"prox": [0.0] * 4}, "the mean form divides by its sum"),
    "past the server": (FedBCDI, {"prox": [0.2, 0.2, 1.5, 0.2]}, r"model.prox\[2\] is 1.5; a pull moves x to z"),
    "sum too large": (
        FedBCD,
        {"server_sum": "sum", "prox": [0.5, 1.0, 0.5, 0.5]},
        "over 4 clients with γ up to 1. .* Set server_lr to 0.25 or less, or server_sum to mean",
    ),
    "sum of those who report too large": (
        FedBCDI,
        {"server_sum": "sum", "prox": 0.9, "server_lr": 0.4},
        "over 3 clients with γ up to 0.9. .* Set server_lr to 0.37037037 or less",
    ),
}


@pytest.mark.parametrize("name", BAD_PENALTIES)
def test_penalties_that_do_not_fit_are_refused_before_a_folder_is_made(name: str, tmp_path: Path) -> None:
    make, options, message = BAD_PENALTIES[name]
    with pytest.raises(ConfigError, match=message):
        run(make(tiny_net(), batch_size=BATCH, **options), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_largest_rate_of_the_sum_is_taken() -> None:
    run(FedBCDI(tiny_net(), batch_size=BATCH, server_sum="sum", prox=0.9, server_lr=0.37037037), rounds=1)
