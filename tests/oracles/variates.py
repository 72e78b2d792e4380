"""SCAFFOLD, FedDyn and FedFor on softmax regression in NumPy float64, and what the newer oracles share.

Nothing is drawn; conventions and the model theta = [weight | bias] are those of `rounds`. Section numbers are those of
the reference (algorithms.md). In round t (from 0) the local rate is eta = lr * lr_decay^t. A local step on the gradient
g of the client's whole local objective is, as in `rounds`: clip g, add weight_decay * w, v = momentum * v + g,
w -= eta * v, with v = 0 at the start of the round.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.oracles.rounds import (
    Array,
    Local,
    Model,
    Plan,
    Problem,
    Trace,
    _clipped,
    _cross_entropy,
    _join,
    _record_model,
    _shares,
    _sizes,
    _split,
)

Cohorts = Sequence[Sequence[int]]
Rows = NDArray[np.integer[Any]]
TuplePlan = Sequence[Mapping[int, Sequence[Sequence[Rows]]]]  # several batches per local step
Gradient = Callable[[Array, Any], tuple[float, Array]]  # (w, batches of the step) -> loss, gradient


@dataclass
class StateTrace(Trace):
    """A Trace with state. `personal` and `control` hold the values after the last round, `server` after each round.

    `control` is the client's own vector: c_i (SCAFFOLD), d_i (FedDyn), x_i_prev (FedBCD). `counters` is FedBCD-I's
    (one array over all clients per round). Fields an algorithm has no use for stay empty.
    """

    personal: dict[int, Model] = field(default_factory=dict)
    control: dict[int, Model] = field(default_factory=dict)
    server: dict[str, list[Model]] = field(default_factory=dict)
    counters: list[NDArray[np.int64]] = field(default_factory=list)


def begin(init: Model) -> tuple[Array, StateTrace]:
    """z^0 and a trace with z^0 in front."""
    z, trace = _join(init), StateTrace()
    _record_model(trace, z)
    return z, trace


def end_round(trace: StateTrace, z: Array, weights: Array, losses: Iterable[float], **server: Array) -> None:
    """Append z^{t+1}, the cohort's weights and losses, and the server's state."""
    _record_model(trace, z)
    trace.weights.append(weights)
    trace.losses.append(np.array(list(losses)))
    for name, value in server.items():
        trace.server.setdefault(name, []).append(_split(value))


def split_all(kept: Mapping[int, Array] | Sequence[Array]) -> dict[int, Model]:
    pairs = kept.items() if isinstance(kept, Mapping) else enumerate(kept)
    return {j: _split(theta) for j, theta in pairs}


def check(cohort: Sequence[int]) -> None:
    if not cohort or len(set(cohort)) != len(cohort):
        raise ValueError(f"a cohort is one or more distinct clients, got {cohort!r}")


def rate(local: Local, t: int) -> float:
    return local.lr * local.lr_decay**t


def mix(weights: Array, models: Sequence[Array]) -> Array:
    """sum_j p_j x_j"""
    total: Array = np.sum([p * model for p, model in zip(weights, models, strict=True)], axis=0)
    return total


def mean_loss(losses: Sequence[float]) -> float:
    return float(np.mean(losses)) if losses else float("nan")


def descend(start: Array, steps: Sequence[Any], gradient: Gradient, local: Local, lr: float) -> tuple[Array, float]:
    """One client's round of SGD with the given gradient. Returns the model and the mean loss over the steps."""
    w, velocity, losses = start.copy(), np.zeros_like(start), []
    for step in steps:
        loss, g = gradient(w, step)
        g = _clipped(g, local.clip) + local.weight_decay * w
        velocity = local.momentum * velocity + g
        w = w - lr * velocity
        losses.append(loss)
    return w, mean_loss(losses)


def shifted(x: np.ndarray, y: np.ndarray, extra: Callable[[Array], Array]) -> Gradient:
    """The gradient grad f(w; batch) + extra(w)."""

    def gradient(w: Array, batch: Rows) -> tuple[float, Array]:
        loss, g = _cross_entropy(w, x[batch], y[batch])
        return loss, g + extra(w)

    return gradient


def _gradients_in_displacement(steps: int, momentum: float) -> float:
    """How many gradients K heavy-ball steps add up to: sum_{k=1..K} (1 + m + ... + m^(k-1)); K for m = 0."""
    return float(sum(momentum**j for k in range(1, steps + 1) for j in range(k)))


def scaffold(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    option: str = "II",
    weights: str = "uniform",
    server_lr: float = 1.0,
    allow_momentum: bool = False,
) -> StateTrace:
    """Section 4. From y = x (the received model), K local steps with the gradient g_i(y) - c_i + c. Then

    - option I: c_i+ = grad f_i(x) over the whole training set; II: c_i+ = c_i - c + (x - y) / (K eta).
    - x <- x + server_lr * sum_j p_j (y_j - x), c <- c + (1/N) sum_j (c_j+ - c_j), with N all clients; c = c_i = 0 at
      the start. `weights` changes p only.

    Option II refuses momentum unless `allow_momentum`; K is then the number of gradients in the displacement.
    `control` is c_i of all clients, `server["c"]` is c.
    """
    if option not in ("I", "II"):
        raise ValueError(f"unknown option: {option!r}")
    if option == "II" and local.momentum and not allow_momentum:
        raise ValueError("option II takes plain SGD only")
    z, trace = begin(init)
    c, own, kept = np.zeros_like(z), [np.zeros_like(z) for _ in problem.x], dict[int, Array]()

    def correction(by: Array) -> Callable[[Array], Array]:
        return lambda y: by

    for t, cohort in enumerate(cohorts):
        check(cohort)
        lr, losses, change = rate(local, t), [], np.zeros_like(z)
        for j in cohort:
            x, y, steps = problem.x[j], problem.y[j], plan[t][j]
            kept[j], loss = descend(z, steps, shifted(x, y, correction(c - own[j])), local, lr)
            if option == "I":
                new = _cross_entropy(z, x, y)[1]
            elif len(steps) == 0:
                raise ValueError("option II needs a local step")
            else:
                new = own[j] - c + (z - kept[j]) / (lr * _gradients_in_displacement(len(steps), local.momentum))
            change += new - own[j]
            own[j] = new
            losses.append(loss)
        p = _shares(weights, _sizes(problem, cohort))
        z = z + server_lr * mix(p, [kept[j] - z for j in cohort])
        c = c + change / len(problem.x)
        end_round(trace, z, p, losses, c=c)
    trace.local, trace.control = split_all(kept), split_all(own)
    return trace


def feddyn(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    alpha: float,
    scale_alpha: bool = False,
) -> StateTrace:
    """Section 5. From theta = z, local steps with the gradient g_i(theta) - d_i + alpha_i (theta - z). Then

    - d_i <- d_i - alpha_i (theta_i - z);
    - h <- h - (alpha/N) sum_j (theta_j - z), z <- (1/S) sum_j theta_j - h / alpha with the new h; d_i = h = 0 at first.

    alpha_i is alpha; with `scale_alpha` it is alpha n / (N n_i), as in the official code, which leaves h's alpha alone.
    `control` is d_i of all clients, `server["h"]` is h.
    """
    held = np.array([len(x) for x in problem.x])
    strength = alpha * (held.sum() / (len(held) * held) if scale_alpha else np.ones(len(held)))
    z, trace = begin(init)
    h, own, kept = np.zeros_like(z), [np.zeros_like(z) for _ in problem.x], dict[int, Array]()

    def penalty(j: int, d: Array, anchor: Array) -> Callable[[Array], Array]:
        return lambda theta: strength[j] * (theta - anchor) - d

    for t, cohort in enumerate(cohorts):
        check(cohort)
        losses = []
        for j in cohort:
            gradient = shifted(problem.x[j], problem.y[j], penalty(j, own[j], z))
            kept[j], loss = descend(z, plan[t][j], gradient, local, rate(local, t))
            own[j] = own[j] - strength[j] * (kept[j] - z)
            losses.append(loss)
        models, p = [kept[j] for j in cohort], _shares("uniform", _sizes(problem, cohort))
        h = h - alpha / len(problem.x) * np.sum([theta - z for theta in models], axis=0)
        z = mix(p, models) - h / alpha
        end_round(trace, z, p, losses, h=h)
    trace.local, trace.control = split_all(kept), split_all(own)
    return trace


def fedfor(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    strength: float,
    form: str = "linear",
    weights: str = "samples",
) -> StateTrace:
    """Section 16. With G = z^{t-1} - z^t (0 in round 0) and s = eta * K_i, K_i the client's own number of steps:

    - linear: f_i(x) + (a/s) <G, x - z>, whose second part has the gradient (a/s) G;
    - hinge: f_i(x) + (a/s) sum_c max(0, G_c (x_c - z_c)), gradient (a/s) G_c where G_c (x_c - z_c) > 0, else 0, so 0
      at x = z.

    Server as FedAvg.
    """
    if form not in ("linear", "hinge"):
        raise ValueError(f"unknown form: {form!r}")
    z, trace = begin(init)
    before, kept = z, dict[int, Array]()

    def penalty(pseudo: Array, anchor: Array, scale: float) -> Callable[[Array], Array]:
        if form == "linear":
            return lambda w: scale * pseudo
        return lambda w: scale * pseudo * (pseudo * (w - anchor) > 0)

    for t, cohort in enumerate(cohorts):
        check(cohort)
        lr, losses = rate(local, t), []
        for j in cohort:
            scale = strength / (lr * max(len(plan[t][j]), 1))
            gradient = shifted(problem.x[j], problem.y[j], penalty(before - z, z, scale))
            kept[j], loss = descend(z, plan[t][j], gradient, local, lr)
            losses.append(loss)
        p = _shares(weights, _sizes(problem, cohort))
        before, z = z, mix(p, [kept[j] for j in cohort])
        end_round(trace, z, p, losses)
    trace.local = split_all(kept)
    return trace
