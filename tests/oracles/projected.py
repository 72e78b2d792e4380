"""FedAvg and FedProx with FedBCD's local steps (paper 003, eq. 4a and 4b, section 5) in NumPy float64.

Nothing is drawn; conventions are those of `rounds`. A round of client i, which received z:

    x^0 = z, x^-1 = z (`kept` False), or x^-1 the last iterate but one of its last round (`kept` True; z if it has none)
    y^k = (1 + zeta) x^k - zeta x^(k-1)
    x^(k+1) = P(y^k - eta (grad g_i(y^k) + mu (y^k - z))), P to the box [-box, box] in every coordinate

mu = 0 is FedAvg. The server takes the mean of the cohort's models by numbers of samples.
"""

from collections.abc import Sequence

import numpy as np

from tests.oracles.rounds import Array, Local, Model, Plan, Problem, Trace, _cross_entropy, _join, _split


def fedprox(
    problem: Problem,
    init: Model,
    cohorts: Sequence[Sequence[int]],
    plan: Plan,
    local: Local,
    *,
    mu: float,
    extrapolation: float,
    box: float | None,
    kept: bool = False,
) -> Trace:
    """Rounds of FedProx (FedAvg for mu = 0). Of `local` only the rate and its decay count."""
    z, before, trace = _join(init), dict[int, Array](), Trace()
    for t, cohort in enumerate(cohorts):
        rate, models = local.lr * local.lr_decay**t, list[Array]()
        for i in cohort:
            path = [before.get(i, z) if kept else z, z]
            for rows in plan[t][i]:
                y = (1.0 + extrapolation) * path[-1] - extrapolation * path[-2]
                _, slope = _cross_entropy(y, problem.x[i][rows], problem.y[i][rows])
                moved = y - rate * (slope + mu * (y - z))
                path.append(moved if box is None else np.minimum(np.maximum(moved, -box), box))
            models.append(path[-1])
            before[i] = path[-2]
            trace.local[i] = _split(path[-1])
        sizes = np.array([len(problem.y[i]) for i in cohort], np.float64)
        z = np.einsum("i,i...->...", sizes / sizes.sum(), np.stack(models))
        weight, bias = _split(z)
        trace.weight.append(weight)
        trace.bias.append(bias)
    return trace
