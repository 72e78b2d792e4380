"""q-FedAvg and Exp-alpha on softmax regression in NumPy float64: FedAvg's clients, other weights.

Nothing is drawn; conventions are those of `rounds`, section numbers those of the reference (algorithms.md).
"""

from collections.abc import Sequence

import numpy as np

from tests.oracles.rounds import (
    Array,
    Local,
    Model,
    Plan,
    Problem,
    Trace,
    _cross_entropy,
    _run,
    _shares,
    _sizes,
    _train,
)
from tests.oracles.variates import Cohorts, StateTrace, begin, check, end_round, mix, rate, split_all


def qfedavg(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    q: float,
    lipschitz: float | None = None,
    sample_weighted: bool = False,
) -> StateTrace:
    """Section 3. F_k = f_k(z) + 1e-10 over the whole training set at the received model; x_k = FedAvg's local SGD.

    Delta_k = F_k^q L (z - x_k), h_k = q F_k^(q-1) |L (z - x_k)|^2 + L F_k^q, z <- z - sum_k Delta_k / sum_k h_k, with
    L = `lipschitz`, or 1 / (rate of this round); `sample_weighted` multiplies both by n_k. `weights` holds the factors
    F_k^q L / sum h of the moves z - x_k (times n_k): they sum to 1 for q = 0 only.
    """
    z, trace = begin(init)
    kept = dict[int, Array]()
    for t, cohort in enumerate(cohorts):
        check(cohort)
        lr = rate(local, t)
        steepness = 1.0 / lr if lipschitz is None else lipschitz
        factors, lengths, moves, losses = [], [], [], []
        for j in cohort:
            x, y = problem.x[j], problem.y[j]
            risk = _cross_entropy(z, x, y)[0] + 1e-10
            kept[j], loss = _train(z, z, 0.0, x, y, plan[t][j], local, lr)
            n = len(y) if sample_weighted else 1
            move = z - kept[j]
            factors.append(n * risk**q * steepness)
            squared = float(np.sum((steepness * move) ** 2))
            lengths.append(n * (q * risk ** (q - 1) * squared + steepness * risk**q))
            moves.append(move)
            losses.append(loss)
        p = np.array(factors) / sum(lengths)
        z = z - mix(p, moves)
        end_round(trace, z, p, losses)
    trace.local = split_all(kept)
    return trace


def exp_weights(difference: Array, sizes: Array, alpha: float, size_factor: str = "both") -> Array:
    """Section 17. Weights from F_new - F_old of the cohort: with r_i = S n_i / sum_j n_j over the S clients,

    rho_i prop. to r_i exp(r_i d_i / alpha) (`both`), r_i exp(d_i / alpha) (`prefactor`) or exp(d_i / alpha) (`none`).
    A non-finite difference has weight 0; all non-finite: n_i / sum_j n_j.
    """
    r = len(sizes) * sizes / float(sizes.sum())
    if size_factor not in ("both", "prefactor", "none"):
        raise ValueError(f"unknown size_factor: {size_factor!r}")
    inner = r if size_factor == "both" else np.ones_like(r)
    outer = np.ones_like(r) if size_factor == "none" else r
    finite = np.isfinite(difference)
    if not finite.any():
        return _shares("samples", sizes)
    exponent = np.where(finite, inner * np.where(finite, difference, 0.0) / alpha, -np.inf)
    raw = outer * np.exp(exponent - exponent.max())
    return np.asarray(raw / raw.sum())


def exp_alpha(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    alpha: float,
    size_factor: str = "both",
) -> Trace:
    """Section 17 on FedAvg: F_old = f_i(z), F_new = f_i(x_i), over the whole training set; z <- sum_i rho_i x_i."""

    def weigh(cohort: Sequence[int], z: Array, models: list[Array]) -> Array:
        pairs = list(zip(cohort, models, strict=True))
        new = np.array([_cross_entropy(model, problem.x[j], problem.y[j])[0] for j, model in pairs])
        old = np.array([_cross_entropy(z, problem.x[j], problem.y[j])[0] for j in cohort])
        return exp_weights(new - old, _sizes(problem, cohort), alpha, size_factor)

    return _run(problem, init, cohorts, plan, local, pull=lambda j: 0.0, weigh=weigh)
