"""FedAvg with a server optimiser, and FedPer with the bias as head, on softmax regression in NumPy float64.

Nothing is drawn; conventions are those of `rounds`, section numbers those of the reference (algorithms.md).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracles.rounds import Array, Local, Model, Plan, Problem, _join, _shares, _sizes, _split, _train
from tests.oracles.variates import Cohorts, StateTrace, begin, check, end_round, mix, rate, split_all

State = dict[str, Array]
Rule = Callable[[Array, State], tuple[Array, State]]  # (Delta, state) -> what is subtracted from z, new state


def _fedavgm(lr: float = 1.0, momentum: float = 0.9, nesterov: bool = False) -> Rule:
    def rule(delta: Array, state: State) -> tuple[Array, State]:
        u = momentum * state.get("u", np.zeros_like(delta)) + delta
        return lr * (delta + momentum * u if nesterov else u), {"u": u}

    return rule


def _adaptive(
    second: Callable[[Array, Array, float], Array],
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    v_init: float | None = None,
) -> Rule:
    def rule(delta: Array, state: State) -> tuple[Array, State]:
        start = np.full_like(delta, tau**2 if v_init is None else v_init)
        ascent = -delta
        m = beta1 * state.get("m", np.zeros_like(delta)) + (1 - beta1) * ascent
        v = second(state.get("v", start), ascent**2, beta2)
        return -lr * m / (np.sqrt(v) + tau), {"m": m, "v": v}

    return rule


def _adagrad(v: Array, square: Array, beta2: float) -> Array:
    return v + square


def _adam(v: Array, square: Array, beta2: float) -> Array:
    return beta2 * v + (1 - beta2) * square


def _yogi(v: Array, square: Array, beta2: float) -> Array:
    return np.asarray(v - (1 - beta2) * square * np.sign(v - square))


def _rule(optimizer: str, options: dict[str, Any]) -> Rule:
    if optimizer == "fedavgm":
        return _fedavgm(**options)
    if optimizer == "fedadagrad":
        return _adaptive(_adagrad, **({"beta1": 0.0} | options))
    if optimizer in ("fedadam", "fedyogi"):
        return _adaptive(_adam if optimizer == "fedadam" else _yogi, **options)
    raise ValueError(f"unknown optimizer: {optimizer!r}")


def fedavg_with(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    optimizer: str,
    weights: str = "samples",
    **options: Any,
) -> StateTrace:
    """Section 18. FedAvg's clients; Delta = z - sum_j p_j x_j, D = -Delta.

    - fedavgm (lr=1, momentum=0.9, nesterov=False): u <- b u + Delta; z <- z - lr u (nesterov: lr (Delta + b u)).
    - fedadam, fedyogi, fedadagrad (lr, beta1=0.9, for Adagrad 0, beta2=0.99, tau=1e-3): m <- b1 m + (1 - b1) D;
      v <- b2 v + (1 - b2) D^2 (Adam), v - (1 - b2) D^2 sign(v - D^2) (Yogi), v + D^2 (Adagrad);
      z <- z + lr m / (sqrt(v) + tau). No bias correction; m = 0 and v = tau^2 at first (or v = `v_init`).

    `server` has "u", or "m" and "v".
    """
    rule, state = _rule(optimizer, options), State()
    z, trace = begin(init)
    kept = dict[int, Array]()
    for t, cohort in enumerate(cohorts):
        check(cohort)
        losses = []
        for j in cohort:
            kept[j], loss = _train(z, z, 0.0, problem.x[j], problem.y[j], plan[t][j], local, rate(local, t))
            losses.append(loss)
        p = _shares(weights, _sizes(problem, cohort))
        step, state = rule(z - mix(p, [kept[j] for j in cohort]), state)
        z = z - step
        end_round(trace, z, p, losses, **state)
    trace.local = split_all(kept)
    return trace


def fedavg_keeping_bias(problem: Problem, init: Model, cohorts: Cohorts, plan: Plan, local: Local) -> StateTrace:
    """Section 20 with the bias as head. A client trains [weight of z | own bias] as FedAvg; its bias stays with it.

    weight of z <- sum_j p_j (weight of x_j), p_j = n_j / n_S; every bias starts from the initial one. `bias` of the
    trace is NaN after the initial entry: the server has none. `personal` has all clients: z's weight and the own bias.
    """
    z, trace = begin(init)
    bias, kept = [_split(z)[1] for _ in problem.x], dict[int, Array]()
    for t, cohort in enumerate(cohorts):
        check(cohort)
        losses = []
        for j in cohort:
            start = _join((z[:, :-1], bias[j]))
            kept[j], loss = _train(start, start, 0.0, problem.x[j], problem.y[j], plan[t][j], local, rate(local, t))
            bias[j] = _split(kept[j])[1]
            losses.append(loss)
        p = _shares("samples", _sizes(problem, cohort))
        z = mix(p, [kept[j] for j in cohort])
        z[:, -1] = np.nan
        end_round(trace, z, p, losses)
    trace.local = split_all(kept)
    trace.personal = {j: (trace.weight[-1].copy(), own.copy()) for j, own in enumerate(bias)}
    return trace
