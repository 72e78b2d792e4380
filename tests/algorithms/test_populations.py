"""One client, many that are the same, some that are late: what the population alone makes of an algorithm."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from fedlit import (
    Centralized,
    Client,
    Ditto,
    ExpAlpha,
    FedAvg,
    FedBC,
    FedBCD,
    FedProx,
    FixedSampler,
    QFedAvg,
    Scaffold,
    ServerCallback,
    TensorData,
    WeighedCohort,
)
from fedlit.client.cohort import Selection
from tests.cases import CASES, made
from tests.problems import CLASSES, FEATURES, largest_difference, run, tiny_data, tiny_net, weights_of

FULL: dict[str, Any] = {"lr": 0.05, "batch_size": 64, "local_epochs": 3}
"""Full batches: the order in which samples are drawn does not matter."""
LATE: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_epochs": 4}
Settings = dict[str, tuple[type[Client], dict[str, Any]]]


def samples(count: int = 9) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(count, FEATURES, generator=rng).double(), torch.arange(count) % CLASSES


def copies(count: int) -> TensorData:
    """Clients with the same nine samples."""
    x, y = samples()
    owner = torch.arange(count).repeat_interleave(len(y))
    return TensorData(x.repeat(count, 1), y.repeat(count), owner, test_fraction=0, val_fraction=0)


def trained(
    algorithm: type[Client], data: TensorData, trainer: dict[str, Any] | None = None, **options: Any
) -> dict[str, Tensor]:
    return weights_of(run(algorithm(tiny_net(), **FULL, **options), data, rounds=3, sampler="all", **(trainer or {})))


def by_hand(mu: float = 0.0, **sgd: Any) -> dict[str, Tensor]:
    """Three rounds of three steps of torch's own SGD, anew in every round; the anchor is where a round starts."""
    (x, y), net = samples(), tiny_net()
    for _ in range(3):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, **sgd)
        anchor = [value.detach().clone() for value in net.parameters()]
        for _ in range(3):
            moved = torch.stack([(v - a).square().sum() for v, a in zip(net.parameters(), anchor, strict=True)])
            slopes = torch.autograd.grad(cross_entropy(net(x), y) + mu / 2 * moved.sum(), list(net.parameters()))
            for value, slope in zip(net.parameters(), slopes, strict=True):
                value.grad = slope
            optimizer.step()
    return {name: value.detach() for name, value in net.named_parameters()}


SGD: Settings = {
    "fedavg": (FedAvg, {}),
    "scaffold I": (Scaffold, {"option": "I"}),
    "scaffold II": (Scaffold, {}),
    "qfedavg, q 0": (QFedAvg, {"q": 0.0}),
    "ditto": (Ditto, {"prox": 2.0}),
    "exp_alpha": (FedAvg, {"trainer": {"weights": ExpAlpha(0.2)}}),
    "fedbc, duals 0": (FedBC, {"dual_lr": 0.0}),
    "centralised": (Centralized, {}),
}


@pytest.mark.parametrize("name", SGD)
def test_with_one_client_these_are_torchs_own_sgd(name: str) -> None:
    algorithm, options = SGD[name]
    assert largest_difference(trained(algorithm, copies(1), **options), by_hand()) <= 1e-12


def test_local_momentum_and_decay_are_torchs_and_start_anew_every_round() -> None:
    own: dict[str, Any] = {"momentum": 0.5, "weight_decay": 0.01}
    assert largest_difference(trained(FedAvg, copies(1), **own), by_hand(**own)) <= 1e-12


PROXIMAL: Settings = {"fedprox": (FedProx, {"mu": 0.8}), "fedbc": (FedBC, {"dual_init": 0.4, "dual_lr": 0.0})}


@pytest.mark.parametrize("name", PROXIMAL)
def test_with_one_client_these_are_the_proximal_recursion(name: str) -> None:
    algorithm, options = PROXIMAL[name]
    assert largest_difference(trained(algorithm, copies(1), **options), by_hand(mu=0.8)) <= 1e-12


SAME = (
    *("FedAvg", "FedProx", "FedBC", "q-FedAvg", "SCAFFOLD II", "FedDyn", "FedFor", "Per-FedAvg, exact", "Per-FedBC"),
    *("pFedMe", "FedBCD", "FedBCD-I", "Exp-α", "FedAdam"),
)


@pytest.mark.parametrize("name", SAME)
def test_clients_that_are_all_the_same_are_one(name: str) -> None:
    once = {"most_steps": 1} if "BCD" in name else {}  # else each block draws how long it trains

    def end(count: int) -> dict[str, Tensor]:
        client = made(name, tiny_net(), **FULL, **once)
        return weights_of(run(client, copies(count), rounds=3, sampler="all", **CASES[name].trainer))

    assert largest_difference(end(4), end(1)) <= 1e-12


def test_centralised_training_is_one_client_that_holds_everything() -> None:
    x, y = samples(20)
    split, whole = (
        TensorData(x, y, owner, test_fraction=0, val_fraction=0)
        for owner in (torch.arange(20) % 4, torch.zeros(20, dtype=torch.int64))
    )
    assert largest_difference(trained(Centralized, split), trained(FedAvg, whole)) <= 1e-12


def test_one_full_step_of_everyone_is_one_step_on_the_pooled_loss() -> None:
    x, y = samples(20)
    data = TensorData(x, y, torch.arange(20).clamp(max=9) // 2, test_fraction=0, val_fraction=0)
    averaged = run(FedAvg(tiny_net(), lr=0.05, batch_size=64, local_epochs=1), data, rounds=1, sampler="all")
    start = {name: value.detach() for name, value in tiny_net().named_parameters()}
    net = tiny_net()
    slope = grad(lambda at: cross_entropy(functional_call(net, at, (x,)), y))(start)
    expected = {name: value - 0.05 * slope[name] for name, value in start.items()}
    assert largest_difference(weights_of(averaged), expected) <= 1e-12


class Watch(ServerCallback):
    """Steps, weights and changes of risk, round by round."""

    needs = frozenset({"risk_received", "risk_trained"})

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.weights: list[Tensor] = []
        self.changes: list[Tensor] = []

    def on_server_step_end(self, trainer: Any, client: Client, cohort: WeighedCohort) -> None:
        self.steps.append(cohort.steps.tolist())
        self.weights.append(cohort.weights)
        self.changes.append(cohort.risk_trained - cohort.risk_received)


def test_stragglers_do_one_epoch_or_more_but_never_all() -> None:
    watch, data = Watch(), tiny_data()
    client = FedProx(tiny_net(), stragglers=1.0, lr=0.05, batch_size=4, local_epochs=4)
    run(client, data, rounds=12, sampler="all", callbacks=[watch])
    epochs = np.array(watch.steps) / client.batches_per_epoch(data.sizes.numpy())
    assert set(epochs.flatten().tolist()) == {1.0, 2.0, 3.0}


@pytest.mark.parametrize(("share", "late"), [(0.25, 1), (0.5, 2), (0.9, 4)])
def test_every_cohort_has_its_share_of_stragglers(share: float, late: int) -> None:
    watch, data = Watch(), tiny_data()
    client = FedProx(tiny_net(), stragglers=share, lr=0.05, batch_size=4, local_epochs=4)
    run(client, data, rounds=8, sampler="all", callbacks=[watch])
    behind = np.array(watch.steps) < client.planned_steps(data.sizes.numpy())
    assert behind.sum(1).tolist() == [late] * 8
    assert late == 4 or len({tuple(round) for round in behind.tolist()}) > 1


def worked(client: Client, order: list[int]) -> list[dict[int, int]]:
    """Steps of each client by round, with the cohort in this order."""

    class InOrder(FixedSampler):
        def select(self, seed: int, round: int, sizes: np.ndarray, count: int) -> Selection:
            return Selection(train=order, report=order)

    watch = Watch()
    run(client, tiny_data(), rounds=3, sampler=InOrder(order), callbacks=[watch])
    return [dict(zip(order, steps, strict=True)) for steps in watch.steps]


@pytest.mark.parametrize("options", [{"stragglers": 0.5}, {"stragglers": 1.0}], ids=["half", "all"])
def test_who_is_late_and_how_much_does_not_depend_on_the_order_of_clients(options: dict[str, Any]) -> None:
    forward, backward = (worked(FedProx(tiny_net(), **LATE, **options), order) for order in ([0, 1, 2], [2, 1, 0]))
    assert forward == backward


def test_how_long_a_block_trains_is_its_own_draw_whoever_else_takes_part() -> None:
    whole, other, alone = (worked(FedBCD(tiny_net(), batch_size=4), order) for order in ([0, 1, 2, 3], [3, 1], [1]))
    assert [round[1] for round in whole] == [round[1] for round in other] == [round[1] for round in alone]
    assert len({tuple(round.values()) for round in whole}) > 1


def test_a_cold_exp_alpha_takes_the_client_whose_loss_fell_least() -> None:
    watch = Watch()
    run(FedAvg(tiny_net(), **FULL), rounds=2, sampler="all", weights=ExpAlpha(1e-9, "none"), callbacks=[watch])
    for weights, changes in zip(watch.weights, watch.changes, strict=True):
        assert weights.tolist() == (changes == changes.max()).double().tolist()
