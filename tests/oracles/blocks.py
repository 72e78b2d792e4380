"""FedBCD and FedBCD-I with one server on softmax regression in NumPy float64.

Nothing is drawn; conventions are those of `rounds`, section numbers those of the reference (algorithms.md).

ASPG, the client's step: ex = x + zeta (x - x_prev); x_new = clip(ex - eta g(ex), -box, box); x_prev <- x; x <- x_new,
with g the gradient of the client's local objective at ex. `local.clip` bounds g, then weight_decay * ex is added;
`local.momentum` is refused (zeta is the momentum). (x, x_prev) outlives the round; both start at z^0 for all clients.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tests.oracles.rounds import Array, Batches, Local, Model, Plan, Problem, _clipped, _cross_entropy
from tests.oracles.variates import Cohorts, StateTrace, begin, check, end_round, mean_loss, rate, split_all


def _boxed(theta: Array, box: float | None) -> Array:
    return theta if box is None else np.asarray(np.clip(theta, -box, box))


def _aspg(
    state: tuple[Array, Array],
    batches: Batches,
    x: np.ndarray,
    y: np.ndarray,
    anchor: Array,
    prox: float,
    zeta: float,
    box: float | None,
    local: Local,
    lr: float,
) -> tuple[tuple[Array, Array], float]:
    """K steps on f(x) + prox/2 |x - anchor|^2. Returns (x, x_prev) and the mean of f at the extrapolated points."""
    if local.momentum:
        raise ValueError("FedBCD has its own momentum")
    now, before = state
    losses = []
    for batch in batches:
        ex = now + zeta * (now - before)
        loss, g = _cross_entropy(ex, x[batch], y[batch])
        g = _clipped(g + prox * (ex - anchor), local.clip) + local.weight_decay * ex
        now, before = _boxed(ex - lr * g, box), now
        losses.append(loss)
    return (now, before), mean_loss(losses)


def fedbcd(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    prox: float,
    extrapolation: float,
    server_lr: float,
    box: float | None = None,
    server_sum: str = "mean",
) -> StateTrace:
    """Section 12, Sync-cloud (eq. 4 and 5). Active clients: ASPG on g_i(x) + (gamma/2) |x - z|^2. The server sums over
    the last x_i of ALL N clients, stale and initial ones too:

    z <- z - server_lr * sum_i gamma (z - x_i) [/ sum_i gamma for `mean`].

    `personal` is x_i and `control` x_i_prev, of all clients. `weights` is 1/N for each client of the cohort.
    """
    if server_sum not in ("mean", "sum"):
        raise ValueError(f"unknown server_sum: {server_sum!r}")
    z, trace = begin(init)
    states = [(z, z) for _ in problem.x]
    for t, cohort in enumerate(cohorts):
        check(cohort)
        losses = []
        for j in cohort:
            x, y, lr = problem.x[j], problem.y[j], rate(local, t)
            states[j], loss = _aspg(states[j], plan[t][j], x, y, z, prox, extrapolation, box, local, lr)
            losses.append(loss)
        pull = np.sum([prox * (z - now) for now, _ in states], axis=0)
        z = z - server_lr * (pull / (prox * len(states)) if server_sum == "mean" else pull)
        end_round(trace, z, np.full(len(cohort), 1.0 / len(states)), losses)
    _keep(trace, states, cohorts)
    return trace


def fedbcd_i(
    problem: Problem,
    init: Model,
    cohorts: Cohorts,
    plan: Plan,
    local: Local,
    *,
    pull: float,
    extrapolation: float,
    server_lr: float,
    offline: Cohorts,
    pulls: Sequence[Mapping[int, int]],
    box: float | None = None,
    cap: float = 4,
    server_over: str = "active",
    server_sum: str = "mean",
) -> StateTrace:
    """Section 13. Round t:

    1. each client of offline[t] whose counter is below `cap` trains (ASPG on g_i alone) and adds 1 to its counter;
    2. each client of cohorts[t] (part of offline[t]) pulls K = pulls[t][client] times: x_prev <- x,
       x <- clip(x - gamma (x - z), -box, box); sends x; sets its counter to 0. (x, x_prev) = its last two iterates;
    3. z <- z - server_lr sum_i gamma (z - x_i) (`sum`: line 24 of Algorithm 2), or that sum divided by sum_i gamma
       (`mean`), over the active clients, or with `server_over="all"` over what each of the N clients sent last (z^0 if
       nothing).

    `personal` is x_i and `control` x_i_prev, of all clients. `losses` is NaN for an active client that did not train.
    """
    if server_over not in ("active", "all"):
        raise ValueError(f"unknown server_over: {server_over!r}")
    if server_sum not in ("mean", "sum"):
        raise ValueError(f"unknown server_sum: {server_sum!r}")
    z, trace = begin(init)
    states, sent = [(z, z) for _ in problem.x], [z for _ in problem.x]
    counters = np.zeros(len(problem.x), np.int64)
    for t, cohort in enumerate(cohorts):
        check(cohort)
        if not set(cohort) <= set(offline[t]):
            raise ValueError("active clients are some of those that may train")
        losses = dict[int, float]()
        for j in offline[t]:
            if counters[j] < cap:
                x, y, lr = problem.x[j], problem.y[j], rate(local, t)
                states[j], losses[j] = _aspg(states[j], plan[t][j], x, y, z, 0.0, extrapolation, box, local, lr)
                counters[j] += 1
        for j in cohort:
            for _ in range(pulls[t][j]):
                now, _before = states[j]
                states[j] = (_boxed(now - pull * (now - z), box), now)
            sent[j], counters[j] = states[j][0], 0
        over = [sent[j] for j in cohort] if server_over == "active" else sent
        if server_sum == "sum":
            z = z - server_lr * np.sum([pull * (z - x) for x in over], axis=0)
        else:
            z = z - server_lr * (z - np.mean(over, axis=0))
        end_round(trace, z, np.full(len(cohort), 1.0 / len(over)), [losses.get(j, np.nan) for j in cohort])
        trace.counters.append(counters.copy())
    _keep(trace, states, offline)
    return trace


def _keep(trace: StateTrace, states: Sequence[tuple[Array, Array]], trained: Cohorts) -> None:
    trace.personal = split_all([now for now, _ in states])
    trace.control = split_all([before for _, before in states])
    trace.local = {j: trace.personal[j] for j in sorted({j for cohort in trained for j in cohort})}
