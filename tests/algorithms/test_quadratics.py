"""Closed forms on quadratics: fixed points, inner solutions and directions of every algorithm, to many digits.

f_i(w) = 1/2 |A_i w - b_i|² over all samples of a client at every step, H_i = A_i^T A_i, g_i = A_i^T b_i.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.linalg import matrix_power, solve

from fedlit import (
    Client,
    Ditto,
    FedAvg,
    FedBC,
    FedBCD,
    FedBCDI,
    FedDyn,
    FederatedTrainer,
    FedFor,
    FedProx,
    PerFedAvg,
    PFedMe,
    QFedAvg,
    Scaffold,
    TensorData,
)
from fedlit.keys import Purpose, generator
from tests.problems import run

CLIENTS, SAMPLES, SIZE = 3, 6, 3
RATE, STEPS = 0.5, 3


@dataclass(frozen=True)
class Quadratics:
    """The problem, stacked by client."""

    a: Tensor
    b: Tensor
    start: Tensor

    @cached_property
    def hessians(self) -> Tensor:
        return self.a.mT @ self.a

    @cached_property
    def linear(self) -> Tensor:
        return (self.a.mT @ self.b[..., None])[..., 0]

    def gradients(self, w: Tensor) -> Tensor:
        """(clients, size): H_i w - g_i, at one point or at one for each client."""
        return self.times(self.hessians, w) - self.linear

    @staticmethod
    def times(matrices: Tensor, vectors: Tensor) -> Tensor:
        product: Tensor = matrices @ vectors.expand(CLIENTS, SIZE)[..., None]
        return product[..., 0]

    def pulled(self, strength: float) -> Tensor:
        return self.hessians + strength * EYE

    def prox(self, strength: float, at: Tensor) -> Tensor:
        """(clients, size): (H_i + c I)^-1 (g_i + c z)."""
        point: Tensor = solve(self.pulled(strength), self.linear + strength * at)
        return point

    def path(self, steps: int) -> Tensor:
        """P_i = rate * sum over k < K of (I - rate H_i)^k: K steps from z end at z - P_i grad f_i(z)."""
        shrink = EYE - RATE * self.hessians
        return RATE * torch.stack([matrix_power(shrink, k) for k in range(steps)]).sum(0)

    def balance(self, matrices: Tensor) -> Tensor:
        """z with sum_i M_i (H_i z - g_i) = 0."""
        z: Tensor = solve((matrices @ self.hessians).sum(0), self.times(matrices, self.linear).sum(0))
        return z

    @cached_property
    def minimum(self) -> Tensor:
        return self.balance(EYE.expand(CLIENTS, SIZE, SIZE))


EYE = torch.eye(SIZE, dtype=torch.float64)


@cache
def problem() -> Quadratics:
    """Curvatures of 0.6, 1 and 1.4, in other directions for every client: a few steps solve it."""
    rng = torch.Generator().manual_seed(4)
    u, _, v = torch.linalg.svd(torch.randn(CLIENTS, SAMPLES, SIZE, generator=rng).double(), full_matrices=False)
    b, start = (torch.randn(*shape, generator=rng).double() for shape in ((CLIENTS, SAMPLES), (SIZE,)))
    return Quadratics(u @ torch.tensor([0.6, 1.0, 1.4]).double().sqrt().diag() @ v, b, start)


class Residuals(nn.Module):
    """a · w - b for samples (a, b)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(problem().start.clone())

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :-1] @ self.w - x[:, -1])[:, None]


class Squared:
    """Half the sum of the squared residuals of a full batch, whose rows are averaged."""

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        return SAMPLES * output[:, 0].square() / 2


def fitted(algorithm: type[Client], rounds: int = 1, clients: int = CLIENTS, **options: Any) -> FederatedTrainer:
    """Full participation with equal weights."""
    squared = type(f"Squared{algorithm.__name__}", (Squared, algorithm), {})
    local = {"lr": RATE, "local_steps": STEPS, "batch_size": SAMPLES} | options
    x = torch.cat([problem().a, problem().b[..., None]], 2)[:clients].flatten(0, 1)
    owner = torch.arange(clients).repeat_interleave(SAMPLES)
    data = TensorData(x, torch.zeros_like(owner), owner, test_fraction=0, val_fraction=0)
    return run(squared(Residuals(), **local), data, rounds=rounds, sampler="all", eval_every=rounds)


def z_of(trainer: FederatedTrainer) -> Tensor:
    return trainer.loop.client.net.get_parameter("w").detach()


def rows_of(trainer: FederatedTrainer, name: str) -> Tensor:
    """(clients, size): a kept model of every client."""
    return trainer.loop.states.column(f"{name}.w")


def close(ours: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=atol)


# fixed points


def test_fedavg_rests_where_the_paths_of_its_clients_cancel_and_that_is_not_the_minimum() -> None:
    z = z_of(fitted(FedAvg, rounds=25))
    close(z, problem().balance(problem().path(STEPS)))
    assert float((z - problem().minimum).abs().max()) > 0.02


@cache
def scaffolded(option: str) -> FederatedTrainer:
    return fitted(Scaffold, rounds=60, option=option)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_finds_the_minimum_itself(option: str) -> None:
    close(z_of(scaffolded(option)), problem().minimum)


@pytest.mark.parametrize("option", ["I", "II"])
def test_control_variates_become_the_clients_gradients_at_the_minimum(option: str) -> None:
    expected = problem().gradients(problem().minimum)
    assert float(expected.abs().max()) > 0.1
    close(rows_of(scaffolded(option), "control"), expected)


def test_feddyn_finds_the_minimum_and_so_does_every_client() -> None:
    trainer = fitted(FedDyn, rounds=40, alpha=0.9, local_steps=8)
    close(z_of(trainer), problem().minimum)
    close(rows_of(trainer, "local"), problem().minimum.expand(CLIENTS, SIZE), atol=1e-8)


EXACT_PROX: dict[str, tuple[type[Client], dict[str, Any]]] = {
    "fedprox": (FedProx, {"mu": 0.5, "local_steps": 22}),
    "fedbc": (FedBC, {"dual_init": 0.25, "dual_lr": 0.0, "local_steps": 22}),  # its penalty has no factor 1/2
    "fedbcd": (FedBCD, {"prox": 0.5, "server_lr": 1.0, "box": None, "extrapolation": 0.2, "most_steps": 20}),
    "pfedme": (PFedMe, {"prox": 0.5, "lr": 2.0, "local_steps": 1, "inner_steps": 22, "personal_lr": RATE}),
}


@pytest.mark.parametrize("name", EXACT_PROX)
def test_solved_proximal_clients_share_one_fixed_point(name: str) -> None:
    algorithm, options = EXACT_PROX[name]
    z = z_of(fitted(algorithm, rounds=25, **options))
    close(z, problem().balance(torch.linalg.inv(problem().pulled(0.5))), atol=1e-8)


# one round


def test_a_client_of_fedavg_walks_along_its_path() -> None:
    expected = problem().start - problem().times(problem().path(STEPS), problem().gradients(problem().start))
    close(rows_of(fitted(FedAvg), "local"), expected)


def test_feddyn_clients_solve_their_bent_objective_and_keep_the_gradient_there() -> None:
    before, after = (fitted(FedDyn, rounds=rounds, alpha=0.7, local_steps=30) for rounds in (2, 3))
    theta = rows_of(after, "local")
    bent = problem().linear + rows_of(before, "gradient") + 0.7 * z_of(before)
    close(theta, solve(problem().pulled(0.7), bent))
    close(rows_of(after, "gradient"), problem().gradients(theta))


def test_pfedme_solves_the_proximal_point_and_follows_the_gradient_of_the_moreau_envelope() -> None:
    start = problem().start
    solved = fitted(PFedMe, prox=2.0, lr=0.1, local_steps=1, inner_steps=60, personal_lr=0.3)
    close(rows_of(solved, "personal"), problem().prox(2.0, start))
    step = (start - rows_of(solved, "local")) / 0.1
    close(step, 2.0 * (start - problem().prox(2.0, start)))
    close(step, 2.0 * solve(problem().pulled(2.0), problem().gradients(start)))


def test_nesterovs_descent_comes_nearer_to_the_proximal_point_in_as_many_steps() -> None:
    exact = problem().prox(2.0, problem().start)
    few: dict[str, Any] = {"prox": 2.0, "lr": 0.1, "local_steps": 1, "inner_steps": 12, "personal_lr": 0.05}
    plain, ahead = (fitted(PFedMe, **few, inner_momentum=momentum) for momentum in (0.0, 0.4))
    away = [float((rows_of(run, "personal") - exact).norm()) for run in (plain, ahead)]
    assert away[1] < away[0] / 3


def meta_direction(**options: Any) -> Tensor:
    moved = rows_of(fitted(PerFedAvg, adapt_lr=0.2, local_steps=1, **options), "local")
    return (problem().start - moved) / RATE


@pytest.mark.parametrize(
    "options",
    [{"form": "exact"}, *({"form": "hf", "hessian_delta": delta} for delta in (1e-3, 0.1, 10.0))],
    ids=["exact", "hf 0.001", "hf 0.1", "hf 10"],
)
def test_the_meta_gradient_has_two_factors_however_the_hessian_is_had(options: dict[str, Any]) -> None:
    shrink = EYE - 0.2 * problem().hessians
    close(meta_direction(**options), problem().times(shrink @ shrink, problem().gradients(problem().start)))


def test_the_first_order_meta_gradient_has_one_factor() -> None:
    shrink = EYE - 0.2 * problem().hessians
    close(meta_direction(form="fo"), problem().times(shrink, problem().gradients(problem().start)))


@pytest.mark.parametrize("order", ["personal_first", "interleaved"])
def test_solved_personal_models_of_ditto_are_proximal_points_of_the_received_model(order: str) -> None:
    trainer = fitted(Ditto, prox=1.5, order=order, local_steps=30, personal_lr=0.4)
    close(rows_of(trainer, "personal"), problem().prox(1.5, problem().start))


def test_a_pull_of_fedbcd_i_leaves_the_same_share_of_the_way_at_every_step() -> None:
    start = problem().start
    trainer = fitted(FedBCDI, prox=0.3, extrapolation=0.0, box=None, offline_clients=CLIENTS)
    counts = [int(generator(0, Purpose.WORK, round=0, client=k).integers(1, 6)) for k in range(CLIENTS)]
    assert len(set(counts)) > 1
    paths = torch.stack([problem().path(count)[k] for k, count in enumerate(counts)])
    left = 0.7 ** torch.tensor(counts, dtype=torch.float64)[:, None]
    close(rows_of(trainer, "local"), start - left * problem().times(paths, problem().gradients(start)))


def test_fedfor_walks_along_the_last_global_move_too() -> None:
    before, after = (fitted(FedFor, rounds=rounds, strength=0.6) for rounds in (1, 2))
    z = z_of(before)
    bent = problem().gradients(z) + 0.6 * (problem().start - z) / (RATE * STEPS)
    close(rows_of(after, "local"), z - problem().times(problem().path(STEPS), bent))


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0])
def test_one_client_and_one_step_of_qfedavg_go_as_far_as_its_loss_allows(q: float) -> None:
    z, slope = problem().start, problem().gradients(problem().start)[0]
    loss = (problem().a[0] @ z - problem().b[0]).square().sum() / 2
    moved = z_of(fitted(QFedAvg, clients=1, q=q, lipschitz=4.0, lr=0.25, local_steps=1))
    close(moved, z - slope / (q * slope.square().sum() / loss + 4.0), atol=1e-9)
