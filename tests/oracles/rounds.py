"""Rounds of FedAvg, FedProx and FedBC on softmax regression, written from the papers in NumPy float64.

An oracle: slow, without torch, and nothing is drawn. The caller gives the cohorts and the mini-batches. Written from
the papers; equation numbers are those of the FedBC paper (000).

A model is one matrix theta = [weight | bias] of shape (classes, features + 1); x is read as [x | 1].

- Task loss: f(theta) = mean_b -log softmax(theta x_b)[y_b], gradient mean_b (softmax(theta x_b) - onehot(y_b)) x_b^T.
- Local step k (section 2, Algorithm 2): g = grad f(w) + pull * (w - z^t), with pull = 0 (FedAvg), mu (FedProx),
  2 lambda_j^t (FedBC, eq. 8 and 10: the squared norm has no 1/2); then g *= min(1, clip / (|g| + 1e-6)), then
  g += weight_decay * w, then v = momentum * v + g and w -= lr * lr_decay^t * v, with v = 0 at the start of the round.
- Dual (eq. 11): lambda_j^{t+1} = clip(lambda_j^t + dual_lr * (|x_j^{t+1} - z^t|^2 - gamma_j^t), dual_min, dual_max).
- Tolerance ("Selection of gamma_i"; dL/dgamma = -lambda): gamma_j^{t+1} = gamma_j^t + tolerance_lr * lambda_j, with
  lambda_j^t (`old`) or lambda_j^{t+1} (`new`). It has no bounds.
- Server (Algorithm 1, eq. 13: eq. 12 over the cohort): z^{t+1} = sum_j p_j x_j^{t+1}, p_j = n_j / n_S (`samples`),
  1 / S (`uniform`) or lambda_j^{t+1} / sum_i lambda_i^{t+1} (`dual`; `fallback_weights` if the sum is 0 or not finite).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Model = tuple[Array, Array]
Batches = Sequence[NDArray[np.integer[Any]]]
Plan = Sequence[Mapping[int, Batches] | Sequence[Batches]]
Weigh = Callable[[Sequence[int], Array, list[Array]], Array]  # (cohort, z^t, models x_j^{t+1}) -> p over the cohort


@dataclass(frozen=True)
class Problem:
    """One entry per client: features (n_i, features) and labels (n_i,)."""

    x: list[np.ndarray]
    y: list[np.ndarray]
    classes: int


@dataclass(frozen=True)
class Local:
    """Local SGD. `clip` bounds the norm of the objective's gradient; round t (from 0) uses lr * lr_decay**t."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    lr_decay: float = 1.0


@dataclass
class Trace:
    """What happened. Entry t of each list is round t's; only `weight` and `bias` have the initial model in front.

    `duals` and `tolerances` are the values after the round and stay empty for FedAvg and FedProx. `weights` and
    `losses` follow the order of the round's cohort. `local` has no entry for a client that never trained.
    """

    weight: list[Array] = field(default_factory=list)
    bias: list[Array] = field(default_factory=list)
    duals: list[Array] = field(default_factory=list)
    tolerances: list[Array] = field(default_factory=list)
    weights: list[Array] = field(default_factory=list)
    local: dict[int, Model] = field(default_factory=dict)
    losses: list[Array] = field(default_factory=list)


def _join(model: Model) -> Array:
    weight, bias = model
    return np.concatenate([np.asarray(weight, np.float64), np.asarray(bias, np.float64)[:, None]], axis=1)


def _split(theta: Array) -> Model:
    return theta[:, :-1].copy(), theta[:, -1].copy()


def loss_and_gradient(model: Model, x: np.ndarray, y: np.ndarray) -> tuple[float, Model]:
    """Mean cross-entropy over the rows of x, and its gradient."""
    loss, gradient = _cross_entropy(_join(model), x, y)
    return loss, _split(gradient)


def _cross_entropy(theta: Array, x: np.ndarray, y: np.ndarray) -> tuple[float, Array]:
    rows = np.arange(len(y))
    x = np.concatenate([np.asarray(x, np.float64), np.ones((len(y), 1))], axis=1)
    logits = x @ theta.T
    logits -= logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    error = np.exp(log_p)
    error[rows, y] -= 1.0
    return float(-log_p[rows, y].mean()), error.T @ x / len(y)


def _clipped(gradient: Array, clip: float | None) -> Array:
    if clip is None:
        return gradient
    return gradient * min(1.0, clip / (float(np.linalg.norm(gradient)) + 1e-6))


def _train(
    start: Array, anchor: Array, pull: float, x: np.ndarray, y: np.ndarray, batches: Batches, local: Local, lr: float
) -> tuple[Array, float]:
    """One client's round: SGD on f(w) + pull/2 |w - anchor|^2. Returns the model and the mean of f over the steps."""
    w, velocity, losses = start.copy(), np.zeros_like(start), []
    for batch in batches:
        loss, gradient = _cross_entropy(w, x[batch], y[batch])
        gradient = _clipped(gradient + pull * (w - anchor), local.clip) + local.weight_decay * w
        velocity = local.momentum * velocity + gradient
        w = w - lr * velocity
        losses.append(loss)
    return w, float(np.mean(losses)) if losses else float("nan")


def _shares(kind: str, sizes: Array) -> Array:
    if kind == "samples":
        return sizes / float(sizes.sum())
    if kind == "uniform":
        return np.full(len(sizes), 1.0 / len(sizes))
    raise ValueError(f"unknown weights: {kind!r}")


def _sizes(problem: Problem, cohort: Sequence[int]) -> Array:
    return np.array([len(problem.y[j]) for j in cohort], np.float64)


def _round(
    problem: Problem,
    z: Array,
    starts: Mapping[int, Array],
    cohort: Sequence[int],
    batches: Mapping[int, Batches] | Sequence[Batches],
    local: Local,
    lr: float,
    pull: Callable[[int], float],
    weigh: Weigh,
) -> tuple[Array, list[Array], Array, Array]:
    """One round. Returns z^{t+1} and, over the cohort, the models, the weights and the losses."""
    if not cohort or len(set(cohort)) != len(cohort):
        raise ValueError(f"a cohort is one or more distinct clients, got {cohort!r}")
    trained = [_train(starts.get(j, z), z, pull(j), problem.x[j], problem.y[j], batches[j], local, lr) for j in cohort]
    models = [model for model, _ in trained]
    weights = weigh(cohort, z, models)
    new_z = np.sum([p * model for p, model in zip(weights, models, strict=True)], axis=0)
    return new_z, models, weights, np.array([loss for _, loss in trained])


def _run(
    problem: Problem,
    init: Model,
    cohorts: Sequence[Sequence[int]],
    plan: Plan,
    local: Local,
    *,
    pull: Callable[[int], float],
    weigh: Weigh,
    start_from: str = "global",
) -> Trace:
    if start_from not in ("global", "local"):
        raise ValueError(f"unknown start_from: {start_from!r}")
    z, kept, trace = _join(init), dict[int, Array](), Trace()
    own = {j: z for j in range(len(problem.y))}  # x_i^0 = z^0 for ALL i: Algorithm 1, line 2, and appendix B
    _record_model(trace, z)
    for t, cohort in enumerate(cohorts):
        starts = own | kept if start_from == "local" else {}
        lr = local.lr * local.lr_decay**t
        z, models, weights, losses = _round(problem, z, starts, cohort, plan[t], local, lr, pull, weigh)
        kept.update(zip(cohort, models, strict=True))
        _record_model(trace, z)
        trace.weights.append(weights)
        trace.losses.append(losses)
    trace.local = {j: _split(model) for j, model in kept.items()}
    return trace


def _record_model(trace: Trace, z: Array) -> None:
    weight, bias = _split(z)
    trace.weight.append(weight)
    trace.bias.append(bias)


def fedavg(
    problem: Problem,
    init: Model,
    cohorts: Sequence[Sequence[int]],
    plan: Plan,
    local: Local,
    *,
    weights: str = "samples",
) -> Trace:
    """Section 1: FedProx with mu = 0, by definition."""
    return fedprox(problem, init, cohorts, plan, local, mu=0.0, weights=weights)


def fedprox(
    problem: Problem,
    init: Model,
    cohorts: Sequence[Sequence[int]],
    plan: Plan,
    local: Local,
    *,
    mu: float,
    weights: str = "samples",
) -> Trace:
    """Section 2, without stragglers."""

    def weigh(cohort: Sequence[int], z: Array, models: list[Array]) -> Array:
        return _shares(weights, _sizes(problem, cohort))

    return _run(problem, init, cohorts, plan, local, pull=lambda j: mu, weigh=weigh)


def _dual_shares(duals: Array, sizes: Array, fallback: str) -> Array:
    total = float(duals.sum())
    if total == 0.0 or not np.isfinite(total):
        return _shares(fallback, sizes)
    return duals / total


def fedbc(
    problem: Problem,
    init: Model,
    cohorts: Sequence[Sequence[int]],
    plan: Plan,
    local: Local,
    *,
    dual_lr: float,
    dual_init: float = 0.0,
    dual_min: float = 0.0,
    dual_max: float = np.inf,
    tolerance_lr: float | None = None,
    tolerance_init: float = 0.0,
    tolerance_uses: str = "old",
    fallback_weights: str = "samples",
    start_from: str = "global",
    weights: str = "dual",
) -> Trace:
    """Section 9. With `start_from="local"` a client's first start is z^0, in whichever round that is."""
    if tolerance_uses not in ("old", "new"):
        raise ValueError(f"unknown tolerance_uses: {tolerance_uses!r}")
    tolerance_rate = dual_lr if tolerance_lr is None else tolerance_lr
    duals = np.full(len(problem.y), float(dual_init))
    tolerances = np.full(len(problem.y), float(tolerance_init))
    history: list[tuple[Array, Array]] = []

    def weigh(cohort: Sequence[int], z: Array, models: list[Array]) -> Array:
        for j, model in zip(cohort, models, strict=True):
            old = duals[j]
            distance = np.sum((model - z) ** 2)
            duals[j] = np.clip(old + dual_lr * (distance - tolerances[j]), dual_min, dual_max)
            tolerances[j] += tolerance_rate * (old if tolerance_uses == "old" else duals[j])
        history.append((duals.copy(), tolerances.copy()))
        sizes = _sizes(problem, cohort)
        if weights == "dual":
            return _dual_shares(duals[list(cohort)], sizes, fallback_weights)
        return _shares(weights, sizes)

    def pull(j: int) -> float:
        return 2.0 * float(duals[j])  # lambda_j^t: `weigh` moves the duals after the cohort has trained

    trace = _run(problem, init, cohorts, plan, local, pull=pull, weigh=weigh, start_from=start_from)
    trace.duals = [entry for entry, _ in history]
    trace.tolerances = [entry for _, entry in history]
    return trace
