"""Self-checks of the newer oracles: derivatives, and what each computes, by hand. No fedlit.

Limits and invariants are checked of fedlit, which gives the oracles' numbers: tests/algorithms has them.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.oracles import blocks, fair, personal, rounds, servers, variates
from tests.oracles.rounds import Local, Model, Problem, Trace

CLASSES, FEATURES, SIZES = 3, 4, (5, 9, 7, 12)
EVERYONE = list(range(len(SIZES)))
COHORTS = [[0, 2, 3], [3, 1], [2, 0, 1], [1, 3, 0]]
ROUGH = Local(lr=0.3, momentum=0.5, weight_decay=0.01, clip=0.8, lr_decay=0.9)
STEADY = Local(lr=0.3, weight_decay=0.01, clip=0.8, lr_decay=0.9)
PLAIN = Local(lr=0.3)


@pytest.fixture
def problem() -> Problem:
    rng = np.random.default_rng(7)
    x = [rng.normal(i, 1.0, (n, FEATURES)) for i, n in enumerate(SIZES)]
    return Problem(x, [rng.integers(CLASSES, size=n) for n in SIZES], CLASSES)


@pytest.fixture
def init() -> Model:
    rng = np.random.default_rng(8)
    return rng.normal(size=(CLASSES, FEATURES)), rng.normal(size=CLASSES)


def draw(cohorts: list[list[int]], steps: int = 3, seed: int = 9) -> list[dict[int, list[np.ndarray]]]:
    """Ragged batches; client j takes steps + j of them."""
    rng = np.random.default_rng(seed)

    def one(n: int) -> np.ndarray:
        return rng.permutation(n)[: rng.integers(2, 5)]

    return [{j: [one(SIZES[j]) for _ in range(steps + j)] for j in cohort} for cohort in cohorts]


def tuples(cohorts: list[list[int]], count: int, steps: int = 2) -> list[dict[int, list[tuple[np.ndarray, ...]]]]:
    many = [draw(cohorts, steps, seed) for seed in range(count)]
    return [{j: list(zip(*(plan[t][j] for plan in many), strict=True)) for j in c} for t, c in enumerate(cohorts)]


def whole(cohorts: list[list[int]], steps: int = 1) -> list[dict[int, list[np.ndarray]]]:
    return [{j: [np.arange(SIZES[j])] * steps for j in cohort} for cohort in cohorts]


PLAN = draw(COHORTS)
TRIPLES = tuples(COHORTS, 3)


def join(model: Model) -> np.ndarray:
    return np.concatenate([model[0], model[1][:, None]], axis=1)


def split(theta: np.ndarray) -> Model:
    return theta[:, :-1], theta[:, -1]


def z_of(trace: Trace, t: int) -> np.ndarray:
    return join((trace.weight[t], trace.bias[t]))


def grad(problem: Problem, j: int, theta: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
    return join(rounds.loss_and_gradient(split(theta), problem.x[j][rows], problem.y[j][rows])[1])


def risk(problem: Problem, j: int, theta: np.ndarray, rows: Any = slice(None)) -> float:
    return rounds.loss_and_gradient(split(theta), problem.x[j][rows], problem.y[j][rows])[0]


def central(function: Callable[[np.ndarray], Any], theta: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """The derivative of a scalar function in each entry of theta."""
    out = np.zeros_like(theta)
    for index in np.ndindex(theta.shape):
        move = np.zeros_like(theta)
        move[index] = h
        out[index] = (function(theta + move) - function(theta - move)) / (2 * h)
    return out


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def same_path(a: Trace, b: Trace, tolerance: float = 1e-12) -> None:
    for t, _ in enumerate(b.weight):
        close(z_of(a, t), z_of(b, t), tolerance)
    assert len(a.weight) == len(b.weight)


def farther_than(a: Trace, b: Trace, gap: float = 1e-3) -> bool:
    return bool(np.abs(z_of(a, 2) - z_of(b, 2)).max() > gap)


# Derivatives


def test_gradient_and_hessian_vector_product_equal_central_differences(problem, init):
    theta = join(init)
    close(grad(problem, 1, theta), central(lambda w: risk(problem, 1, w), theta), 1e-8)
    direction = np.random.default_rng(1).normal(size=theta.shape)
    ours = join(personal.hessian_vector(init, problem.x[1], problem.y[1], split(direction)))
    close(ours, central(lambda w: np.sum(direction * grad(problem, 1, w)), theta), 1e-8)


def test_the_exact_meta_gradient_is_the_derivative_of_the_loss_after_one_step(problem, init):
    alpha, rows = 0.4, np.array([0, 2, 3, 7])
    plan = [{1: [(rows, rows, rows)]}]
    trace = personal.per_fedavg(problem, init, [[1]], plan, PLAIN, adapt_lr=alpha)
    theta = join(init)
    meta = central(lambda w: risk(problem, 1, w - alpha * grad(problem, 1, w, rows), rows), theta)
    close(z_of(trace, 1), theta - PLAIN.lr * meta, 1e-8)


# q-FedAvg


def test_one_client_and_one_step_of_qfedavg_has_the_length_of_section_3_at_the_rate_of_the_round(problem, init):
    q, decaying = 2.0, Local(lr=0.3, lr_decay=0.5)
    trace = fair.qfedavg(problem, init, [[1]] * 2, whole([[1]] * 2), decaying, q=q)
    for t in (0, 1):
        z = z_of(trace, t)
        g, loss = grad(problem, 1, z), risk(problem, 1, z) + 1e-10
        constant = 1 / (0.3 * 0.5**t)
        close(z_of(trace, t + 1), z - g / (q * np.sum(g**2) / loss + constant))


def test_qfedavg_leans_to_the_client_with_the_larger_loss_at_the_received_model(problem, init):
    trace = fair.qfedavg(problem, init, [EVERYONE], draw([EVERYONE]), PLAIN, q=1.5)
    losses = [risk(problem, j, join(init)) + 1e-10 for j in EVERYONE]
    close(trace.weights[0] / trace.weights[0][0], (np.array(losses) / losses[0]) ** 1.5)
    assert trace.weights[0].sum() < 1


# Exp-alpha


def test_exp_weights_of_two_equal_clients_are_logistic_and_ignore_a_common_constant():
    d, sizes = np.array([-0.3, -0.8]), np.array([6.0, 6.0])
    for size_factor in ("both", "prefactor", "none"):
        ours = fair.exp_weights(d, sizes, 0.2, size_factor)
        close(ours[0], 1 / (1 + np.exp((d[1] - d[0]) / 0.2)))
        close(fair.exp_weights(d + 3.0, sizes, 0.2, size_factor), ours)
    assert ours[0] > ours[1]


def test_exp_weights_with_sizes_follow_corollary_1_1_over_the_cohort():
    d, sizes, alpha = np.array([-0.3, -0.8, 0.1]), np.array([4.0, 6.0, 2.0]), 0.7
    r = np.array([1.0, 1.5, 0.5])
    for size_factor, raw in (("both", r * np.exp(r * d / alpha)), ("prefactor", r * np.exp(d / alpha))):
        close(fair.exp_weights(d, sizes, alpha, size_factor), raw / raw.sum())


def test_exp_weights_drop_non_finite_risks_and_are_proportional_without_a_finite_one():
    sizes = np.array([4.0, 6.0, 6.0])
    close(fair.exp_weights(np.array([np.nan, -1.0, np.inf]), sizes, 0.2), [0, 1, 0])
    close(fair.exp_weights(np.full(3, np.nan), sizes, 0.2, "none"), [0.25, 0.375, 0.375])


# SCAFFOLD


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_by_hand(problem, init, option):
    trace = variates.scaffold(problem, init, COHORTS, PLAN, STEADY, option=option, weights="samples", server_lr=0.7)
    x, c = join(init), np.zeros_like(join(init))
    own = [c] * 4
    for t, cohort in enumerate(COHORTS):
        rate, move, change, n = 0.3 * 0.9**t, 0.0, 0.0, sum(SIZES[j] for j in cohort)
        for j in cohort:
            y = x
            for batch in PLAN[t][j]:
                g = grad(problem, j, y, batch) - own[j] + c
                y = y - rate * (g * min(1.0, 0.8 / (np.linalg.norm(g) + 1e-6)) + 0.01 * y)
            new = grad(problem, j, x) if option == "I" else own[j] - c + (x - y) / (len(PLAN[t][j]) * rate)
            move, change = move + SIZES[j] / n * (y - x), change + new - own[j]
            own[j] = new
        x, c = x + 0.7 * move, c + change / 4
        close(z_of(trace, t + 1), x)
        close(join(trace.server["c"][t]), c)


def test_option_two_refuses_momentum_or_counts_the_gradients_of_the_displacement(problem, init):
    with pytest.raises(ValueError, match="plain SGD"):
        variates.scaffold(problem, init, COHORTS, PLAN, ROUGH)
    assert variates._gradients_in_displacement(200, 0.5) / 200 == pytest.approx(1.99)
    still, heavy = np.arange(SIZES[1]), Local(lr=1e-9, momentum=0.5)
    trace = variates.scaffold(problem, init, [[1]], [{1: [still] * 6}], heavy, allow_momentum=True)
    close(join(trace.control[1]), grad(problem, 1, join(init)), 1e-6)


# FedDyn


def test_a_solved_feddyn_client_keeps_the_gradient_at_its_solution(problem, init):
    cohorts = [[1, 2], [1, 3]]
    trace = variates.feddyn(problem, init, cohorts, whole(cohorts, 800), Local(lr=0.1), alpha=1.0)
    for j in (1, 3):
        close(join(trace.control[j]), grad(problem, j, join(trace.local[j])), 1e-6)


# FedFor


def test_one_step_of_linear_fedfor_adds_the_last_global_move_times_the_strength(problem, init):
    cohorts, decaying = [[1]] * 3, Local(lr=0.3, lr_decay=0.5)
    trace = variates.fedfor(problem, init, cohorts, whole(cohorts), decaying, strength=0.2)
    for t in (1, 2):
        z, before = z_of(trace, t), z_of(trace, t - 1)
        close(z_of(trace, t + 1), z - 0.3 * 0.5**t * grad(problem, 1, z) - 0.2 * (before - z))


def test_hinged_fedfor_pulls_back_only_what_moved_along_the_pseudo_gradient(problem, init):
    cohorts = [[1], [1]]
    trace = variates.fedfor(problem, init, cohorts, whole(cohorts, 2), PLAIN, strength=0.2, form="hinge")
    z, pseudo = z_of(trace, 1), z_of(trace, 0) - z_of(trace, 1)
    first = z - 0.3 * grad(problem, 1, z)  # no penalty at x = z
    against = pseudo * (first - z) > 0
    assert 0 < against.sum() < against.size
    close(z_of(trace, 2), first - 0.3 * (grad(problem, 1, first) + 0.2 / (0.3 * 2) * pseudo * against))


# Ditto


def test_ditto_without_prox_is_local_training_and_with_it_is_anchored_at_the_received_model(problem, init):
    own = draw(COHORTS, seed=31)
    for prox in (0.0, 0.7):
        trace = personal.ditto(problem, init, COHORTS, PLAN, ROUGH, prox=prox, personal_lr=0.1, personal_plan=own)
        for j in EVERYONE:
            v = join(init)
            for t, cohort in enumerate(COHORTS):
                for batch in own[t][j] if j in cohort else []:
                    v = v - 0.1 * (grad(problem, j, v, batch) + prox * (v - z_of(trace, t)))
            close(join(trace.personal[j]), v)


# Per-FedAvg


def test_the_hessian_free_form_is_close_to_exact_and_the_first_order_one_is_not(problem, init):
    exact, free, first = (
        personal.per_fedavg(problem, init, COHORTS, TRIPLES, ROUGH, adapt_lr=0.3, form=form)
        for form in ("exact", "hf", "fo")
    )
    same_path(free, exact, 1e-5)
    assert farther_than(first, exact)
    coarse = personal.per_fedavg(problem, init, COHORTS, TRIPLES, ROUGH, adapt_lr=0.3, form="hf", hessian_delta=1.0)
    assert np.abs(z_of(coarse, 1) - z_of(exact, 1)).max() > 10 * np.abs(z_of(free, 1) - z_of(exact, 1)).max()


def test_one_step_of_per_fedavg_uses_its_three_batches_where_section_7_says(problem, init):
    w, alpha = join(init), 0.3
    first, second, third = TRIPLES[0][3][0]
    u = grad(problem, 3, w - alpha * grad(problem, 3, w, first), second)
    hessian_u = central(lambda theta: np.sum(u * grad(problem, 3, theta, third)), w)
    trace = personal.per_fedavg(problem, init, [[3]], [{3: [(first, second, third)]}], PLAIN, adapt_lr=alpha)
    close(z_of(trace, 1), w - PLAIN.lr * (u - alpha * hessian_u), 1e-8)


# pFedMe


@pytest.mark.parametrize("inner_start", ["warm", "w"])
def test_pfedme_by_hand(problem, init, inner_start):
    local, options = Local(0.05, momentum=0.4, weight_decay=0.02, clip=3.0, lr_decay=0.5), {"inner_start": inner_start}
    trace = personal.pfedme(
        problem, init, [[1], [1]], draw([[1]] * 2), local, prox=4.0, personal_lr=0.1, inner_steps=2, **options
    )
    for t in (0, 1):
        w = theta = z_of(trace, t)
        velocity = np.zeros_like(w)
        for batch in draw([[1]] * 2)[t][1]:
            theta = theta if inner_start == "warm" else w
            for _ in range(2):
                theta = theta - 0.1 * (grad(problem, 1, theta, batch) + 4.0 * (theta - w))
            outer = 4.0 * (w - theta)
            outer = outer * min(1.0, 3.0 / (np.linalg.norm(outer) + 1e-6)) + 0.02 * w
            velocity = 0.4 * velocity + outer
            w = w - 0.05 * 0.5**t * velocity
        close(z_of(trace, t + 1), w)
    close(join(trace.personal[1]), theta)


def test_the_accuracy_level_stops_the_inner_solve_and_a_hundred_steps_do_too(problem, init):
    plan = [{1: [np.arange(9)]}]
    options = {"prox": 2.0, "personal_lr": 0.1}
    for nu, capped in ((1e-4, False), (0.0, True)):
        trace = personal.pfedme(problem, init, [[1]], plan, Local(0.1), inner_nu=nu, **options)
        theta = join(trace.personal[1])
        slope = np.linalg.norm(grad(problem, 1, theta) + 2.0 * (theta - join(init)))
        assert capped or nu / 10 < slope <= nu
        fixed = personal.pfedme(problem, init, [[1]], plan, Local(0.1), inner_steps=100, **options)
        assert np.array_equal(theta, join(fixed.personal[1])) == capped
    idle = personal.pfedme(problem, init, [[1]], plan, Local(0.1), inner_nu=1e9, **options)
    close(z_of(idle, 1), join(init), 0.0)


def test_clients_that_train_without_reporting_keep_theta_and_leave_z_alone(problem, init):
    options = {"prox": 4.0, "personal_lr": 0.05}
    everyone = [EVERYONE] * 2
    plan = draw(everyone)
    few = personal.pfedme(problem, init, COHORTS[:2], plan, ROUGH, **options)
    many = personal.pfedme(problem, init, COHORTS[:2], plan, ROUGH, trained=everyone, **options)
    same_path(few, many, 0.0)
    assert set(few.personal) == {0, 1, 2, 3} == set(many.personal)
    close(join(few.personal[3]), join(many.personal[3]), 0.0)
    assert np.abs(join(few.personal[0]) - join(many.personal[0])).max() > 1e-3
    with pytest.raises(ValueError, match="has trained"):
        personal.pfedme(problem, init, COHORTS[:1], plan, ROUGH, trained=[[0]], **options)


# Per-FedBC and fine-tuning


def test_per_fedbc_by_hand(problem, init):
    plan, lam, gamma = tuples([[1], [1]], 3), 0.2, 0.1
    options = {"adapt_lr": 0.1, "adapt_steps": 2, "dual_init": lam, "tolerance_init": gamma}
    trace = personal.per_fedbc(
        problem, init, [[1], [1]], plan, Local(0.2, lr_decay=0.5), dual_lr=0.3, tolerance_lr=0.4, **options
    )
    for t in (0, 1):
        w = z = z_of(trace, t)
        for first, second, last in plan[t][1]:
            v = w
            for batch in (first, second):
                v = v - 0.1 * (grad(problem, 1, v, batch) + 2 * lam * (v - z))
            w = w - 0.2 * 0.5**t * grad(problem, 1, v, last)
        close(z_of(trace, t + 1), w)
        lam, gamma = max(0.0, lam + 0.3 * (np.sum((w - z) ** 2) - gamma)), gamma + 0.4 * lam
        close(trace.duals[t][1], lam)
        close(trace.tolerances[t][1], gamma)
        close(trace.duals[t][0], 0.2)
    with pytest.raises(ValueError, match="2 batches"):
        personal.per_fedbc(problem, init, [[1]], plan, PLAIN, adapt_lr=0.1, dual_lr=0.1)


def test_per_fedbc_weighs_by_the_new_duals(problem, init):
    trace = personal.per_fedbc(
        problem, init, COHORTS, tuples(COHORTS, 2), ROUGH, adapt_lr=0.1, dual_lr=0.3, tolerance_lr=0.0
    )
    for t, cohort in enumerate(COHORTS):
        close(trace.weights[t], trace.duals[t][cohort] / trace.duals[t][cohort].sum())
    cohort, last = COHORTS[-1], trace.weights[-1]
    close(z_of(trace, -1), sum(p * join(trace.local[j]) for p, j in zip(last, cohort, strict=True)))


def test_finetuning_is_one_gradient_step_on_the_given_rows(problem, init):
    x, y = problem.x[1][:4], problem.y[1][:4]
    moved = join(init) - 0.2 * grad(problem, 1, join(init), slice(4))
    close(join(personal.finetuned(init, x, y, 0.2)), moved)
    close(join(personal.adapted(init, x, y, 0.2)), moved)
    close(join(personal.finetuned(init, x, y, 0.0)), join(init), 0.0)


# FedBCD


def test_the_extrapolated_points_without_a_box_are_the_iterates_of_nesterov_sgd(problem, init):
    torch = pytest.importorskip("torch")
    plan, zeta = draw([[1]], 6), 0.9
    trace = blocks.fedbcd(problem, init, [[1]], plan, PLAIN, prox=0.5, extrapolation=zeta, server_lr=0.5)
    point, anchor = torch.tensor(join(init), requires_grad=True), torch.tensor(join(init))
    optimizer = torch.optim.SGD([point], lr=PLAIN.lr, momentum=zeta, nesterov=True)
    for batch in plan[0][1]:
        x, y = torch.tensor(problem.x[1][batch]), torch.tensor(problem.y[1][batch])
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ point[:, :-1].T + point[:, -1], y)
        (loss + 0.25 * (point - anchor).square().sum()).backward()
        optimizer.step()
    x, before = join(trace.personal[1]), join(trace.control[1])
    close(x + zeta * (x - before), point.detach().numpy())


def test_fedbcd_by_hand(problem, init):
    options = {"prox": 0.8, "extrapolation": 0.6, "server_lr": 0.5, "box": 1.5}
    cohorts = [[1], [0, 1]]
    plan = draw(cohorts)
    trace = blocks.fedbcd(problem, init, cohorts, plan, STEADY, **options)
    x = before = join(init)
    for t in (0, 1):
        for batch in plan[t][1]:
            ex = x + 0.6 * (x - before)
            g = grad(problem, 1, ex, batch) + 0.8 * (ex - z_of(trace, t))
            g = g * min(1.0, 0.8 / (np.linalg.norm(g) + 1e-6)) + 0.01 * ex
            x, before = np.minimum(np.maximum(ex - 0.3 * 0.9**t * g, -1.5), 1.5), x
    close(join(trace.personal[1]), x)
    close(join(trace.control[1]), before)


def test_the_memory_of_fedbcd_outlives_rounds_of_absence(problem, init):
    options = {"prox": 0.0, "extrapolation": 0.9, "server_lr": 0.0, "server_sum": "sum"}
    cohorts = [[1], [2], [1]]
    plan = draw(cohorts)
    parted = blocks.fedbcd(problem, init, cohorts, plan, PLAIN, **options)
    joined = blocks.fedbcd(problem, init, [[1]], [{1: plan[0][1] + plan[2][1]}], PLAIN, **options)
    close(join(parted.personal[1]), join(joined.personal[1]), 0.0)
    close(join(parted.control[1]), join(joined.control[1]), 0.0)


def test_the_server_of_fedbcd_counts_stale_and_initial_models(problem, init):
    options = {"prox": 0.8, "extrapolation": 0.9, "server_lr": 0.5}
    cohorts = [[0, 1], [1, 2]]
    plan = draw(cohorts)
    first = blocks.fedbcd(problem, init, cohorts[:1], plan, PLAIN, **options)
    trace = blocks.fedbcd(problem, init, cohorts, plan, PLAIN, **options)
    close(join(trace.personal[0]), join(first.personal[0]), 0.0)
    close(join(trace.personal[3]), join(init), 0.0)
    z = z_of(trace, 1)
    close(z_of(trace, 2), z - 0.5 * (z - np.mean([join(trace.personal[j]) for j in EVERYONE], axis=0)))
    close(z_of(trace, 1), 0.5 * join(init) + 0.5 * np.mean([join(first.personal[j]) for j in EVERYONE], axis=0))
    summed = options | {"server_lr": 0.5 / (0.8 * 4), "server_sum": "sum"}
    same_path(blocks.fedbcd(problem, init, cohorts, plan, PLAIN, **summed), trace)


def test_the_box_bounds_every_client_model_and_not_the_gradient_point(problem, init):
    small = (init[0] / 10, init[1] / 10)
    cohorts = [EVERYONE] * 2
    trace = blocks.fedbcd(
        problem, small, cohorts, draw(cohorts), PLAIN, prox=0.1, extrapolation=0.9, server_lr=0.5, box=0.25
    )
    largest = [np.abs(join(trace.personal[j])).max() for j in EVERYONE]
    assert max(largest) == 0.25
    assert np.abs(z_of(trace, -1)).max() <= 0.25
    with pytest.raises(ValueError, match="own momentum"):
        blocks.fedbcd(problem, init, cohorts, draw(cohorts), ROUGH, prox=0.1, extrapolation=0.9, server_lr=0.5)


# FedBCD-I

OFFLINE = [[0, 1, 2], [1, 2, 3], [0, 1, 2, 3]]
ACTIVE = [[0], [1, 3], [1, 2]]
PULLS = [{0: 2}, {1: 3, 3: 1}, {1: 2, 2: 4}]
INDEPENDENT: dict[str, Any] = {"extrapolation": 0.9, "offline": OFFLINE, "pulls": PULLS}


def test_pulls_without_a_box_shrink_the_distance_geometrically_and_leave_the_last_two_iterates(problem, init):
    plan = draw(OFFLINE)
    options = INDEPENDENT | {"server_lr": 0.5}
    none = [dict.fromkeys(entry, 0) for entry in PULLS]
    pulled = blocks.fedbcd_i(problem, init, ACTIVE[:1], plan, PLAIN, pull=0.2, **options)
    free = blocks.fedbcd_i(problem, init, ACTIVE[:1], plan, PLAIN, pull=0.2, **options | {"pulls": none})
    z, x = join(init), join(free.personal[0])
    close(join(pulled.personal[0]), z + 0.8**2 * (x - z))
    close(join(pulled.control[0]), z + 0.8 * (x - z))
    close(z_of(pulled, 1), z - 0.5 * (z - join(pulled.personal[0])))
    for j in (1, 2):
        close(join(pulled.personal[j]), join(free.personal[j]), 0.0)


def test_a_pull_of_one_is_the_global_model_and_a_pull_of_zero_keeps_the_model(problem, init):
    plan, options = draw(OFFLINE), INDEPENDENT | {"server_lr": 0.5}
    one = blocks.fedbcd_i(problem, init, ACTIVE, plan, PLAIN, pull=1.0, **options)
    close(join(one.personal[1]), z_of(one, 2))
    close(z_of(one, -1), z_of(one, 0))
    zero = blocks.fedbcd_i(problem, init, ACTIVE, plan, PLAIN, pull=0.0, **options)
    alone = blocks.fedbcd(
        problem, init, OFFLINE, plan, PLAIN, prox=0.0, extrapolation=0.9, server_lr=0.0, server_sum="sum"
    )
    close(join(zero.personal[2]), join(alone.personal[2]), 0.0)  # active in the last round only
    assert np.abs(join(zero.personal[1]) - join(alone.personal[1])).max() > 1e-3  # its memory was pulled to x itself


def test_fedbcd_i_without_offline_clients_memory_or_pulls_is_local_training(problem, init):
    options = {"extrapolation": 0.0, "server_lr": 0.5, "offline": COHORTS, "cap": np.inf}
    options["pulls"] = [dict.fromkeys(cohort, 3) for cohort in COHORTS]
    ours = blocks.fedbcd_i(problem, init, COHORTS, PLAN, STEADY, pull=0.0, **options)
    alone = blocks.fedbcd(
        problem, init, COHORTS, PLAN, STEADY, prox=0.0, extrapolation=0.0, server_lr=0.0, server_sum="sum"
    )
    for j in EVERYONE:
        close(join(ours.personal[j]), join(alone.personal[j]), 0.0)


def test_a_client_trains_until_its_counter_is_at_the_cap_and_again_after_it_was_active(problem, init):
    offline, active = [[0, 1]] * 5, [[1], [1], [1], [0], [0]]
    plan = draw(offline)
    options = {"extrapolation": 0.5, "server_lr": 0.5, "pull": 0.2, "cap": 2}
    options |= {"offline": offline, "pulls": [{j: 1 for j in cohort} for cohort in active]}
    paths = [blocks.fedbcd_i(problem, init, active[:t], plan, PLAIN, **options) for t in range(1, 6)]
    assert [int(c[0]) for c in paths[-1].counters] == [1, 2, 2, 0, 0]
    assert [int(c[1]) for c in paths[-1].counters] == [0, 0, 0, 1, 2]
    x = [join(trace.personal[0]) for trace in paths]
    close(x[1], x[2], 0.0)
    z = z_of(paths[-1], 3)
    close(x[3], z + 0.8 * (x[2] - z))  # active at the cap: it pulls, and does not train
    assert np.isnan(paths[-1].losses[3][0])
    assert not np.isnan(paths[-1].losses[4][0])


def test_the_server_of_fedbcd_i_over_all_takes_what_each_client_sent_last(problem, init):
    plan, options = draw(OFFLINE), INDEPENDENT | {"server_lr": 0.5, "pull": 0.2}
    trace = blocks.fedbcd_i(problem, init, ACTIVE[:2], plan, PLAIN, server_over="all", **options)
    first = blocks.fedbcd_i(problem, init, ACTIVE[:1], plan, PLAIN, server_over="all", **options)
    sent = [join(first.personal[0]), join(trace.personal[1]), join(init), join(trace.personal[3])]
    z = z_of(trace, 1)
    close(z_of(trace, 2), z - 0.5 * (z - np.mean(sent, axis=0)))
    with pytest.raises(ValueError, match="may train"):
        blocks.fedbcd_i(problem, init, [[3]], plan, PLAIN, **options)


def test_pulls_stay_in_the_box(problem, init):
    options = INDEPENDENT | {"server_lr": 0.5, "pull": 0.2, "box": 0.25}
    trace = blocks.fedbcd_i(problem, init, ACTIVE[:1], draw(OFFLINE), PLAIN, **options)
    x = join(trace.personal[0])
    assert np.abs(x).max() == 0.25
    assert np.abs(join(init)).max() > 0.25


# Server optimisers and FedPer


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavgm_is_torch_sgd_on_the_pseudo_gradient(problem, init, nesterov):
    torch = pytest.importorskip("torch")
    trace = servers.fedavg_with(
        problem, init, COHORTS, PLAN, ROUGH, optimizer="fedavgm", lr=0.7, momentum=0.6, nesterov=nesterov
    )
    z = torch.tensor(join(init), requires_grad=True)
    optimizer = torch.optim.SGD([z], lr=0.7, momentum=0.6, nesterov=nesterov)
    for t, cohort in enumerate(COHORTS):
        start = (z.detach().numpy()[:, :-1].copy(), z.detach().numpy()[:, -1].copy())
        lr = ROUGH.lr * ROUGH.lr_decay**t
        once = rounds.fedavg(
            problem, start, [cohort], PLAN[t:], Local(lr, ROUGH.momentum, ROUGH.weight_decay, ROUGH.clip)
        )
        z.grad = torch.tensor(join(start) - z_of(once, 1))
        optimizer.step()
        close(z_of(trace, t + 1), z.detach().numpy())


@pytest.mark.parametrize("optimizer", ["fedadam", "fedyogi", "fedadagrad"])
def test_two_steps_of_the_adaptive_servers_by_hand(problem, init, optimizer):
    tau, b1, b2 = 0.1, 0.6, 0.8
    trace = servers.fedavg_with(
        problem, init, [[1]] * 2, draw([[1]] * 2), PLAIN, optimizer=optimizer, lr=0.2, beta1=b1, beta2=b2, tau=tau
    )
    m, v = 0.0, tau**2
    for t in (0, 1):
        z = z_of(trace, t)
        once = rounds.fedavg(problem, split(z), [[1]], draw([[1]] * 2)[t:], PLAIN)
        move = z_of(once, 1) - z
        m = b1 * m + (1 - b1) * move
        if optimizer == "fedadam":
            v = b2 * v + (1 - b2) * move**2
        elif optimizer == "fedyogi":
            v = np.where(v > move**2, v - (1 - b2) * move**2, v + (1 - b2) * move**2)
        else:
            v = v + move**2
        close(z_of(trace, t + 1), z + 0.2 * m / (np.sqrt(v) + tau))
        close(join(trace.server["m"][t]), m)
        close(join(trace.server["v"][t]), v)


def test_the_defaults_of_the_adaptive_servers(problem, init):
    for optimizer, beta1 in (("fedadam", 0.9), ("fedyogi", 0.9), ("fedadagrad", 0.0)):
        given = {"beta1": beta1, "beta2": 0.99, "tau": 1e-3, "v_init": 1e-6}
        left = servers.fedavg_with(problem, init, COHORTS, PLAN, ROUGH, optimizer=optimizer, lr=0.01)
        right = servers.fedavg_with(problem, init, COHORTS, PLAN, ROUGH, optimizer=optimizer, lr=0.01, **given)
        same_path(left, right, 0.0)


def test_each_client_keeps_its_bias_and_the_weights_are_averaged_by_size(problem, init):
    trace = servers.fedavg_keeping_bias(problem, init, COHORTS, PLAN, ROUGH)
    weight, biases = init[0], [init[1]] * 4
    for t, cohort in enumerate(COHORTS):
        local = Local(ROUGH.lr * ROUGH.lr_decay**t, ROUGH.momentum, ROUGH.weight_decay, ROUGH.clip)
        trained = {j: rounds.fedavg(problem, (weight, biases[j]), [[j]], PLAN[t:], local) for j in cohort}
        n = sum(SIZES[j] for j in cohort)
        weight = sum(SIZES[j] / n * trained[j].weight[1] for j in cohort)
        for j in cohort:
            biases[j] = trained[j].bias[1]
        close(trace.weight[t + 1], weight)
        assert np.isnan(trace.bias[t + 1]).all()
    for j in EVERYONE:
        close(trace.personal[j][0], weight)
        close(trace.personal[j][1], biases[j])
    unseen = servers.fedavg_keeping_bias(problem, init, COHORTS[:1], PLAN, ROUGH)
    close(unseen.personal[1][1], init[1], 0.0)


# All of them

RUNS: dict[str, Callable[[Problem, Model, list[list[int]]], Trace]] = {
    "fedbc": lambda p, i, c: rounds.fedbc(p, i, c, PLAN, STEADY, dual_lr=0.1),
    "qfedavg": lambda p, i, c: fair.qfedavg(p, i, c, PLAN, STEADY, q=1.0),
    "exp_alpha": lambda p, i, c: fair.exp_alpha(p, i, c, PLAN, STEADY, alpha=0.2),
    "scaffold": lambda p, i, c: variates.scaffold(p, i, c, PLAN, STEADY),
    "feddyn": lambda p, i, c: variates.feddyn(p, i, c, PLAN, STEADY, alpha=0.3),
    "fedfor": lambda p, i, c: variates.fedfor(p, i, c, PLAN, STEADY, strength=0.3),
    "ditto": lambda p, i, c: personal.ditto(p, i, c, PLAN, STEADY, prox=1.0, personal_lr=0.1, personal_plan=PLAN),
    "per_fedavg": lambda p, i, c: personal.per_fedavg(p, i, c, TRIPLES, STEADY, adapt_lr=0.1),
    "pfedme": lambda p, i, c: personal.pfedme(p, i, c, PLAN, STEADY, prox=4.0, personal_lr=0.1),
    "per_fedbc": lambda p, i, c: personal.per_fedbc(p, i, c, TRIPLES, STEADY, adapt_lr=0.1, adapt_steps=2, dual_lr=0.1),
    "fedbcd": lambda p, i, c: blocks.fedbcd(p, i, c, PLAN, STEADY, prox=1.0, extrapolation=0.5, server_lr=0.5, box=2.0),
    "fedbcd_i": lambda p, i, c: blocks.fedbcd_i(
        p,
        i,
        c,
        PLAN,
        STEADY,
        pull=0.2,
        extrapolation=0.5,
        server_lr=0.5,
        offline=c,
        pulls=[dict.fromkeys(s, 2) for s in c],
    ),
    "fedavg_with": lambda p, i, c: servers.fedavg_with(p, i, c, PLAN, STEADY, optimizer="fedyogi", lr=0.1),
    "fedavg_keeping_bias": lambda p, i, c: servers.fedavg_keeping_bias(p, i, c, PLAN, STEADY),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_oracle_leaves_its_inputs_ignores_the_order_of_the_cohort_and_refuses_a_bad_one(problem, init, name):
    before = join(init).copy(), [x.copy() for x in problem.x]
    run = RUNS[name]
    ours, turned = run(problem, init, COHORTS), run(problem, init, [cohort[::-1] for cohort in COHORTS])
    for t in range(len(COHORTS) + 1):
        close(ours.weight[t], turned.weight[t], 1e-10)
    assert len(ours.weights) == len(COHORTS)
    close(join(init), before[0], 0.0)
    for x, old in zip(problem.x, before[1], strict=True):
        close(x, old, 0.0)
    for bad in ([[]], [[1, 1]]):
        with pytest.raises(ValueError, match="distinct"):
            run(problem, init, bad)


def test_every_oracle_starts_with_the_same_five_arguments():
    for module in (fair, variates, personal, blocks, servers):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name in RUNS and function.__module__ == module.__name__:
                names = list(inspect.signature(function).parameters)
                assert names[:5] == ["problem", "init", "cohorts", "plan", "local"]
