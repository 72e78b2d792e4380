"""Ditto, Per-FedAvg, pFedMe and Per-FedBC on softmax regression in NumPy float64.

Nothing is drawn; conventions are those of `rounds` and `variates`, section numbers those of the reference
(algorithms.md). f(w; D) is the mean loss over the rows D.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.oracles.rounds import (
    Array,
    Batches,
    Local,
    Model,
    Plan,
    Problem,
    _clipped,
    _cross_entropy,
    _dual_shares,
    _join,
    _shares,
    _sizes,
    _split,
    _train,
)
from tests.oracles.variates import (
    Cohorts,
    Gradient,
    Rows,
    StateTrace,
    TuplePlan,
    begin,
    check,
    descend,
    end_round,
    mix,
    rate,
    split_all,
)


def _regularised(theta: Array, x: np.ndarray, y: np.ndarray, l2: float) -> tuple[float, Array]:
    """f and its gradient for f(theta) = mean cross-entropy + (l2/2) |theta|^2, bias included."""
    loss, gradient = _cross_entropy(theta, x, y)
    return loss + l2 / 2.0 * float(np.sum(theta**2)), gradient + l2 * theta


def hessian_vector(model: Model, x: np.ndarray, y: np.ndarray, vector: Model) -> Model:
    """Hess f(theta) U for the mean cross-entropy over the rows of x; see `_curvature`."""
    return _split(_curvature(_join(model), x, y, _join(vector)))


def _curvature(theta: Array, x: np.ndarray, y: np.ndarray, direction: Array) -> Array:
    """Mean over rows of (p * (r - <p, r>)) x^T, with p = softmax(theta x) and r = U x. The labels drop out."""
    x = np.concatenate([np.asarray(x, np.float64), np.ones((len(y), 1))], axis=1)
    logits = x @ theta.T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    r = x @ direction.T
    change = p * (r - np.sum(p * r, axis=1, keepdims=True))
    return np.asarray(change.T @ x / len(y))


def finetuned(model: Model, x: np.ndarray, y: np.ndarray, lr: float) -> Model:
    """Section 10: one plain SGD step on the given rows, w - lr grad f(w)."""
    theta = _join(model)
    return _split(theta - lr * _cross_entropy(theta, x, y)[1])


def adapted(model: Model, x: np.ndarray, y: np.ndarray, lr: float) -> Model:
    """Sections 7 and 11: the personal model is z after the same step."""
    return finetuned(model, x, y, lr)


def ditto(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    prox: float,
    personal_lr: float,
    personal_plan: Plan,
    weights: str = "samples",
) -> StateTrace:
    """Section 6. v_i (start z^0): plain steps v <- v - personal_lr (g_i(v) + prox (v - z)) on personal_plan[t][client],
    with z the received model; personal_lr does not decay. The rest is FedAvg. `personal` is v_i of all clients."""
    z, trace = begin(init)
    own, kept, plain = [z for _ in problem.x], dict[int, Array](), Local(personal_lr)
    for t, cohort in enumerate(cohorts):
        check(cohort)
        losses = []
        for j in cohort:
            x, y = problem.x[j], problem.y[j]
            own[j], _ = _train(own[j], z, prox, x, y, personal_plan[t][j], plain, personal_lr)
            kept[j], loss = _train(z, z, 0.0, x, y, plan[t][j], local, rate(local, t))
            losses.append(loss)
        p = _shares(weights, _sizes(problem, cohort))
        z = mix(p, [kept[j] for j in cohort])
        end_round(trace, z, p, losses)
    trace.local, trace.personal = split_all(kept), split_all(own)
    return trace


def _meta_gradient(x: np.ndarray, y: np.ndarray, adapt_lr: float, form: str, delta: float, l2: float = 0.0) -> Gradient:
    def gradient(w: Array, step: Sequence[Rows]) -> tuple[float, Array]:
        first, second = step[0], step[1]
        moved = w - adapt_lr * _regularised(w, x[first], y[first], l2)[1]
        loss, u = _regularised(moved, x[second], y[second], l2)
        if form == "fo":
            return loss, u
        rows, labels = x[step[2]], y[step[2]]
        if form == "exact":
            hessian_u = _curvature(w, rows, labels, u) + l2 * u
        else:
            ends = [_regularised(w + sign * delta * u, rows, labels, l2)[1] for sign in (1.0, -1.0)]
            hessian_u = (ends[0] - ends[1]) / (2.0 * delta)
        return loss, u - adapt_lr * hessian_u

    return gradient


def per_fedavg(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: TuplePlan,
    local: Local,
    *,
    adapt_lr: float,
    form: str = "exact",
    hessian_delta: float = 1e-3,
    l2: float = 0.0,
) -> StateTrace:
    """Section 7. A local step has the batches (D, D1, D2), for `fo` (D, D1); with alpha = adapt_lr, from w = z:

    w~ = w - alpha grad f(w; D); u = grad f(w~; D1); a local step from w with the gradient u - alpha Hess f(w; D2) u
    (`exact`), Hess u as [grad f(w + delta u; D2) - grad f(w - delta u; D2)] / (2 delta) (`hf`), or u alone (`fo`).

    Server: uniform mean. `losses` is the mean of f(w~; D1). The personal model is `adapted(z, ...)`. With `l2`, f has a
    term (l2/2) |w|^2: in both gradients and, as l2 u, in the Hessian's product.
    """
    if form not in ("exact", "hf", "fo"):
        raise ValueError(f"unknown form: {form!r}")
    z, trace = begin(init)
    kept = dict[int, Array]()
    for t, cohort in enumerate(cohorts):
        check(cohort)
        losses = []
        for j in cohort:
            gradient = _meta_gradient(problem.x[j], problem.y[j], adapt_lr, form, hessian_delta, l2)
            kept[j], loss = descend(z, plan[t][j], gradient, local, rate(local, t))
            losses.append(loss)
        p = _shares("uniform", _sizes(problem, cohort))
        z = mix(p, [kept[j] for j in cohort])
        end_round(trace, z, p, losses)
    trace.local = split_all(kept)
    return trace


def _inner_solve(
    theta: Array,
    w: Array,
    x: np.ndarray,
    y: np.ndarray,
    prox: float,
    lr: float,
    steps: int,
    nu: float | None,
    l2: float,
    momentum: float,
) -> Array:
    """Gradient steps on h(theta) = f(theta) + (prox/2) |theta - w|^2: `steps` of them, or until |grad h| <= nu.

    Nesterov: the velocity starts at 0; v <- momentum v - lr grad h(theta + momentum v), theta <- theta + v.
    """
    velocity = np.zeros_like(theta)
    for _ in range(steps if nu is None else 100):
        point = theta + momentum * velocity
        gradient = _regularised(point, x, y, l2)[1] + prox * (point - w)
        if nu is not None and np.linalg.norm(gradient) <= nu:
            break
        velocity = momentum * velocity - lr * gradient
        theta = theta + velocity
    return theta


def pfedme(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    prox: float,
    personal_lr: float,
    inner_steps: int = 5,
    beta: float = 1.0,
    inner_start: str = "warm",
    trained: Cohorts | None = None,
    inner_nu: float | None = None,
    inner_momentum: float = 0.0,
    l2: float = 0.0,
) -> StateTrace:
    """Section 8. From w = theta = z, for each batch D (a local round): theta <- gradient steps of rate personal_lr
    (it does not decay) on f(theta; D) + (prox/2) |theta - w|^2, from the last theta (`warm`) or from w (`w`); then a
    local step of w with the gradient prox (w - theta), the only place where clip, weight decay and momentum act.

    - Inner solve: `inner_steps` steps, or with `inner_nu` until |grad h| <= nu (seen before each step), at most 100.
    - f(theta; D) has a term (l2/2) |theta|^2, so it acts in the inner solve and nowhere else.
    - Server: z <- (1 - beta) z + beta (1/S) sum_j w_j over cohorts[t]. trained[t] (cohorts[t] unless given) trains.

    `local` is w_i and `personal` theta_i of those that ever trained. `losses` is empty.
    """
    if inner_start not in ("warm", "w"):
        raise ValueError(f"unknown inner_start: {inner_start!r}")
    z, trace = begin(init)
    thetas, kept = dict[int, Array](), dict[int, Array]()

    def train(j: int, batches: Batches, lr: float) -> tuple[Array, Array]:
        w, theta, velocity = z.copy(), z.copy(), np.zeros_like(z)
        for batch in batches:
            start = theta if inner_start == "warm" else w
            rows, labels = problem.x[j][batch], problem.y[j][batch]
            theta = _inner_solve(start, w, rows, labels, prox, personal_lr, inner_steps, inner_nu, l2, inner_momentum)
            gradient = _clipped(prox * (w - theta), local.clip) + local.weight_decay * w
            velocity = local.momentum * velocity + gradient
            w = w - lr * velocity
        return w, theta

    for t, cohort in enumerate(cohorts):
        check(cohort)
        trainers = cohort if trained is None else trained[t]
        if not set(cohort) <= set(trainers):
            raise ValueError("who reports has trained")
        for j in trainers:
            kept[j], thetas[j] = train(j, plan[t][j], rate(local, t))
        p = _shares("uniform", _sizes(problem, cohort))
        z = (1 - beta) * z + beta * mix(p, [kept[j] for j in cohort])
        end_round(trace, z, p, [])
    trace.losses = []
    trace.local, trace.personal = split_all(kept), split_all(thetas)
    return trace


def _adapted_gradient(x: np.ndarray, y: np.ndarray, adapt_lr: float, pull: float, anchor: Array) -> Gradient:
    def gradient(w: Array, step: Sequence[Rows]) -> tuple[float, Array]:
        *inner, last = step
        v = w
        for batch in inner:
            v = v - adapt_lr * (_cross_entropy(v, x[batch], y[batch])[1] + pull * (v - anchor))
        return _cross_entropy(v, x[last], y[last])

    return gradient


def per_fedbc(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: TuplePlan,
    local: Local,
    *,
    adapt_lr: float,
    dual_lr: float,
    adapt_steps: int = 1,
    tolerance_lr: float | None = None,
    dual_init: float = 0.0,
    tolerance_init: float = 0.0,
    fallback_weights: str = "samples",
) -> StateTrace:
    """Section 11, Algorithm 3. A local step has J + 1 batches, J = adapt_steps; from w = z:

    v = w; v <- v - adapt_lr (grad f(v; D_k) + 2 lambda_j^t (v - z)), k = 1..J; then a local step from w with the
    gradient grad f(v; D_{J+1}). x_j = w. As in FedBC, both steps from the values of round t:

    lambda_j <- max(0, lambda_j + dual_lr (|x_j - z|^2 - gamma_j)), gamma_j <- gamma_j + tolerance_lr lambda_j (rate
    dual_lr if None), z <- sum_j lambda_j x_j / sum_j lambda_j with the new duals (`fallback_weights` for a sum of 0).

    `losses` is the mean of f(v; D_{J+1}). The personal model is `adapted(z, ...)`.
    """
    tolerance_rate = dual_lr if tolerance_lr is None else tolerance_lr
    duals, tolerances = (np.full(len(problem.x), float(value)) for value in (dual_init, tolerance_init))
    z, trace = begin(init)
    kept = dict[int, Array]()
    for t, cohort in enumerate(cohorts):
        check(cohort)
        losses = []
        for j in cohort:
            _expect_batches(plan[t][j], adapt_steps + 1)
            old = float(duals[j])
            gradient = _adapted_gradient(problem.x[j], problem.y[j], adapt_lr, 2.0 * old, z)
            kept[j], loss = descend(z, plan[t][j], gradient, local, rate(local, t))
            duals[j] = max(0.0, old + dual_lr * (float(np.sum((kept[j] - z) ** 2)) - tolerances[j]))
            tolerances[j] += tolerance_rate * old
            losses.append(loss)
        p = _dual_shares(duals[list(cohort)], _sizes(problem, cohort), fallback_weights)
        z = mix(p, [kept[j] for j in cohort])
        end_round(trace, z, p, losses)
        trace.duals.append(duals.copy())
        trace.tolerances.append(tolerances.copy())
    trace.local = split_all(kept)
    return trace


def _expect_batches(steps: Sequence[Sequence[Any]], count: int) -> None:
    if any(len(step) != count for step in steps):
        raise ValueError(f"a local step has {count} batches here")
