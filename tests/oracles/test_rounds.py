"""Self-checks of the oracle `rounds`: the gradient, the SGD convention, and section 9 of algorithms.md by hand."""

import numpy as np
import pytest

from tests.oracles import rounds
from tests.oracles.rounds import Local, Problem

CLASSES, FEATURES, SIZES = 3, 4, (5, 9, 7, 12)
COHORTS = [[0, 2, 3], [3, 1], [2, 0, 1], [1, 3, 0]]
ROUGH = Local(lr=0.3, momentum=0.5, weight_decay=0.01, clip=0.8, lr_decay=0.9)
PLAIN = Local(lr=0.3)


@pytest.fixture
def problem() -> Problem:
    rng = np.random.default_rng(7)
    x = [rng.normal(i, 1.0, (n, FEATURES)) for i, n in enumerate(SIZES)]
    return Problem(x, [rng.integers(CLASSES, size=n) for n in SIZES], CLASSES)


@pytest.fixture
def init() -> rounds.Model:
    rng = np.random.default_rng(8)
    return rng.normal(size=(CLASSES, FEATURES)), rng.normal(size=CLASSES)


def epochs(cohorts: list[list[int]], batch: int = 4, count: int = 2) -> list[dict[int, list[np.ndarray]]]:
    """Shuffled epochs with a ragged last batch."""
    rng = np.random.default_rng(9)

    def one(n: int) -> list[np.ndarray]:
        order = rng.permutation(n)
        return [order[k : k + batch] for k in range(0, n, batch)]

    return [{j: [b for _ in range(count) for b in one(SIZES[j])] for j in cohort} for cohort in cohorts]


PLAN = epochs(COHORTS)


def flat(model: rounds.Model) -> np.ndarray:
    return np.concatenate([model[0].ravel(), model[1]])


def test_the_analytic_gradient_equals_central_differences(problem, init):
    x, y = problem.x[1], problem.y[1]
    _, gradient = rounds.loss_and_gradient(init, x, y)
    for part in (0, 1):
        for index in np.ndindex(init[part].shape):
            ends = []
            for sign in (1, -1):
                moved = [init[0].copy(), init[1].copy()]
                moved[part][index] += sign * 1e-6
                ends.append(rounds.loss_and_gradient(tuple(moved), x, y)[0])
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(gradient[part][index], rel=1e-6, abs=1e-8)


def test_one_client_in_one_fedprox_round_follows_torch_sgd_after_clip_grad_norm(problem, init):
    torch = pytest.importorskip("torch")
    mu, mine = 0.7, Local(lr=0.3, momentum=0.5, weight_decay=0.05, clip=0.4)
    plan = epochs([[1]])
    trace = rounds.fedprox(problem, init, [[1]], plan, mine, mu=mu)
    weight, bias = (torch.tensor(part, requires_grad=True) for part in init)
    z_weight, z_bias = (torch.tensor(part) for part in init)
    optimizer = torch.optim.SGD([weight, bias], lr=mine.lr, momentum=mine.momentum, weight_decay=mine.weight_decay)
    losses = []
    for batch in plan[0][1]:
        x, y = torch.tensor(problem.x[1][batch]), torch.tensor(problem.y[1][batch])
        task = torch.nn.functional.cross_entropy(x @ weight.T + bias, y)
        penalty = mu / 2 * ((weight - z_weight).square().sum() + (bias - z_bias).square().sum())
        optimizer.zero_grad()
        (task + penalty).backward()
        torch.nn.utils.clip_grad_norm_([weight, bias], mine.clip)
        optimizer.step()
        losses.append(task.item())
    np.testing.assert_allclose(trace.weight[1], weight.detach().numpy(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(trace.bias[1], bias.detach().numpy(), rtol=1e-12, atol=1e-13)
    assert trace.losses[0][0] == pytest.approx(np.mean(losses), rel=1e-12)


def test_momentum_is_forgotten_and_the_rate_decays_between_rounds(problem, init):
    cohorts = [[1], [1]]
    plan = epochs(cohorts)
    both = rounds.fedavg(problem, init, cohorts, plan, Local(lr=0.3, momentum=0.9, lr_decay=0.5))
    first = rounds.fedavg(problem, init, [[1]], plan[:1], Local(lr=0.3, momentum=0.9))
    middle = (first.weight[1], first.bias[1])
    second = rounds.fedavg(problem, middle, [[1]], plan[1:], Local(lr=0.15, momentum=0.9))
    np.testing.assert_array_equal(both.weight[2], second.weight[1])
    np.testing.assert_array_equal(both.bias[2], second.bias[1])


@pytest.mark.parametrize("uses", ["old", "new"])
@pytest.mark.parametrize("tolerance_lr", [None, 0.0, 0.4])
def test_dual_tolerance_and_weights_of_each_round_follow_section_9(problem, init, uses, tolerance_lr):
    rate = 0.2 if tolerance_lr is None else tolerance_lr
    options = {"dual_lr": 0.2, "dual_init": 0.1, "dual_max": 0.9, "tolerance_init": 0.3}
    options |= {"tolerance_lr": tolerance_lr, "tolerance_uses": uses}
    dual, tolerance = np.full(4, 0.1), np.full(4, 0.3)
    for t, cohort in enumerate(COHORTS):
        trace = rounds.fedbc(problem, init, COHORTS[: t + 1], PLAN[: t + 1], ROUGH, **options)
        z = np.concatenate([trace.weight[t].ravel(), trace.bias[t]])
        moved = np.array([np.linalg.norm(flat(trace.local[j]) - z) ** 2 for j in cohort])
        old, new = dual.copy(), dual.copy()
        new[cohort] = np.minimum(np.maximum(old[cohort] + 0.2 * (moved - tolerance[cohort]), 0.0), 0.9)
        tolerance[cohort] += rate * (old if uses == "old" else new)[cohort]
        dual = new
        np.testing.assert_allclose(trace.duals[t], dual, rtol=1e-12)
        np.testing.assert_allclose(trace.tolerances[t], tolerance, rtol=1e-12)
        shares = dual[cohort] / dual[cohort].sum()
        np.testing.assert_allclose(trace.weights[t], shares, rtol=1e-12)
        expected = sum(p * flat(trace.local[j]) for p, j in zip(shares, cohort, strict=True))
        np.testing.assert_allclose(flat((trace.weight[t + 1], trace.bias[t + 1])), expected, rtol=1e-12, atol=1e-13)


def test_a_non_finite_sum_of_duals_falls_back(problem, init):
    options = {"dual_lr": np.inf, "tolerance_lr": 0.0, "fallback_weights": "uniform"}
    trace = rounds.fedbc(problem, init, COHORTS[:1], PLAN[:1], PLAIN, **options)
    assert np.isinf(trace.duals[0]).any()
    np.testing.assert_allclose(trace.weights[0], 1 / 3)


def test_a_tolerance_wider_than_the_move_takes_the_dual_to_its_lower_bound(problem, init):
    options = {"dual_lr": 1.0, "dual_init": 0.5, "dual_min": 0.2, "tolerance_init": 1e3}
    trace = rounds.fedbc(problem, init, COHORTS[:1], PLAN[:1], ROUGH, **options)
    np.testing.assert_array_equal(trace.duals[0], [0.2, 0.5, 0.2, 0.2])
    np.testing.assert_allclose(trace.weights[0], 1 / 3)


def test_starting_from_the_local_model_takes_the_initial_model_at_first_and_the_kept_one_later(problem, init):
    cohorts = [[0, 1], [0, 2]]
    plan = [epochs(cohorts)[0], {0: [], 2: []}]
    trace = rounds.fedbc(problem, init, cohorts, plan, PLAIN, dual_lr=0.1, start_from="local")
    after_one = rounds.fedbc(problem, init, cohorts[:1], plan[:1], PLAIN, dual_lr=0.1, start_from="local")
    np.testing.assert_array_equal(flat(trace.local[0]), flat(after_one.local[0]))
    np.testing.assert_array_equal(flat(trace.local[2]), flat(init))
    assert np.isnan(trace.losses[1]).all()
