"""Limits and invariants: which setting makes one algorithm another, and what every algorithm keeps."""

from collections.abc import Callable

import pytest
import torch

from fedlit import Client, FedAvg, FedBC, FedProx, FixedSampler, TensorData
from tests.problems import kept_rows, largest_difference, run, tiny_data, tiny_net, weights_of

LOCAL = {"lr": 0.05, "batch_size": 4, "local_epochs": 2, "momentum": 0.5}


def equal_to_the_last_bit(a: Client, b: Client, **trainer: str) -> bool:
    first, second = (weights_of(run(client, **trainer)) for client in (a, b))
    return all(torch.equal(first[name], second[name]) for name in first)


def test_fedbc_with_dual_frozen_at_half_mu_equals_fedprox_to_the_last_bit() -> None:
    frozen = FedBC(tiny_net(), dual_lr=0.0, dual_init=0.35, **LOCAL)
    assert equal_to_the_last_bit(frozen, FedProx(tiny_net(), mu=0.7, **LOCAL), weights="samples")


def test_fedbc_with_dual_zero_equals_fedavg_to_the_last_bit() -> None:
    assert equal_to_the_last_bit(FedBC(tiny_net(), dual_lr=0.0, **LOCAL), FedAvg(tiny_net(), **LOCAL))


def test_fedprox_with_mu_zero_equals_fedavg_to_the_last_bit() -> None:
    assert equal_to_the_last_bit(FedProx(tiny_net(), mu=0.0, **LOCAL), FedAvg(tiny_net(), **LOCAL))


def test_single_precision_limits_hold_to_the_last_bit_too() -> None:
    frozen = FedBC(tiny_net().float(), dual_lr=0.0, dual_init=0.35, **LOCAL)
    prox = FedProx(tiny_net().float(), mu=0.7, **LOCAL)
    assert equal_to_the_last_bit(frozen, prox, weights="samples", precision="32-true")


def test_equal_duals_average_uniformly_whatever_the_sizes() -> None:
    frozen = FedBC(tiny_net(), dual_lr=0.0, dual_init=0.35, **LOCAL)
    prox = run(FedProx(tiny_net(), mu=0.7, **LOCAL), weights="uniform")
    assert largest_difference(weights_of(run(frozen)), weights_of(prox)) <= 1e-12


def test_proximal_anchor_is_not_the_live_model() -> None:
    """An anchor that aliases the weights in training has distance 0 and no gradient."""
    client = FedProx(tiny_net(), mu=1.0, **LOCAL)
    client.prepare()
    with torch.no_grad():
        client.net.linear.weight.add_(1.0)
    assert client.distance_to_global().item() == pytest.approx(client.net.linear.weight.numel())


def test_proximal_term_pulls_towards_the_received_model() -> None:
    """A reversed sign would push away: a strong pull must end nearer to z than none."""

    def moved(mu: float) -> float:
        return run(FedProx(tiny_net(), mu=mu, lr=0.05, batch_size=4), rounds=1).loop.history.last()["distance/mean"]

    assert moved(5.0) < moved(0.5) < moved(0.0)


def test_gradients_do_not_pile_up_between_steps() -> None:
    """Twice one step and one run of two steps see the same gradients; with left-over ones they would not."""
    data = tiny_data((8,))
    once = run(FedAvg(tiny_net(), lr=0.05, batch_size=16, local_steps=2), data, rounds=1, clients_per_round=1)
    twice = run(FedAvg(tiny_net(), lr=0.05, batch_size=16, local_steps=1), data, rounds=2, clients_per_round=1)
    assert largest_difference(weights_of(once), weights_of(twice)) <= 1e-12


def test_local_model_is_not_overwritten_by_the_broadcast() -> None:
    trainer = run(FedBC(tiny_net(), dual_lr=0.5, **LOCAL), rounds=3)
    rows, z = trainer.loop.states, weights_of(trainer)
    for client in rows.touched:
        assert float((rows.row("local.linear.weight", client) - z["linear.weight"]).abs().max()) > 1e-4


def test_duals_stay_inside_their_range_and_the_server_never_sees_less() -> None:
    client = FedBC(tiny_net(), dual_lr=5.0, dual_init=0.05, dual_min=0.05, dual_max=0.2, **LOCAL)
    dual = kept_rows(run(client))["dual"]
    assert float(dual.min()) >= 0.05
    assert float(dual.max()) <= 0.2


def test_fixed_zero_tolerance_never_lets_a_dual_fall() -> None:
    client = FedBC(tiny_net(), dual_lr=0.5, tolerance_lr=0.0, **LOCAL)
    trainer = run(client, sampler=FixedSampler([0, 1, 2, 3]))
    lows = trainer.loop.history.series("dual/min")[1]
    assert lows == sorted(lows)


class Quadratic(torch.nn.Module):
    """One weight vector; its output is not of classes."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(start.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.w)[:, None].expand(-1, 6)


class QuadraticProx(FedProx):
    """f(w) = 1/2 |A w - b|^2; the rows of A are the samples and b is their label's entry."""

    def sample_losses(self, batch):
        return 0.5 * len(batch.y) * (batch.x @ self.net.w - TARGETS[batch.y]).square()


class QuadraticBC(FedBC):
    sample_losses = QuadraticProx.sample_losses


TARGETS = torch.tensor([0.3, -1.2, 0.8, 2.0, -0.5, 0.1], dtype=torch.float64)
EXACT: dict[str, Callable[[torch.nn.Module], Client]] = {
    "fedprox_mu": lambda net: QuadraticProx(net, mu=0.8, lr=0.1, batch_size=6, local_steps=200),
    "fedbc_two_duals": lambda net: QuadraticBC(net, dual_lr=0.0, dual_init=0.4, lr=0.1, batch_size=6, local_steps=200),
}


@pytest.mark.parametrize("name", EXACT)
def test_many_full_steps_on_a_quadratic_reach_the_proximal_point(name: str) -> None:
    """x = (H + c I)^-1 (g + c z) with c = mu for FedProx and 2 dual for FedBC, whose penalty has no 1/2."""
    torch.manual_seed(0)
    a, z = torch.randn(6, 3).double(), torch.randn(3).double()
    data = TensorData(a, torch.arange(6), torch.zeros(6, dtype=torch.int64), test_fraction=0, val_fraction=0)
    trained = run(EXACT[name](Quadratic(z)), data, rounds=1, clients_per_round=1)
    exact = torch.linalg.solve(a.T @ a + 0.8 * torch.eye(3).double(), a.T @ TARGETS + 0.8 * z)
    torch.testing.assert_close(trained.loop.client.net.w.detach(), exact, rtol=0, atol=1e-10)
