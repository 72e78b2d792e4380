"""From trained clients to the pseudo-gradients that the optimisers of servers step along, for all of them at once."""

from collections.abc import Sequence

import torch

from fedlit.cohort import Cohort
from fedlit.params import Params, scale, subtract, weighted_means


def pseudo_gradients(models: Params, cohorts: Sequence[Cohort], steps: Sequence[float]) -> Params:
    """Stacked: step * (z - sum_i w_i x_i) of each server, where x_i is what the client reported (`Cohort.reported`).

    Where clients received older models than z, step * sum_i w_i s_i (received_i - x_i) with their discounts s_i. What
    stays with the clients is averaged as it is: its way began at their own.

    Args:
        models: stacked: z of each server.
        cohorts: the clients of each.
        steps: the length of each one's step.
    """
    reported, weights = [cohort.reported for cohort in cohorts], [cohort.weights for cohort in cohorts]
    moved = {name: models[name] - mean for name, mean in weighted_means(reported, weights).items()}
    if any(cohort.discounts.numel() for cohort in cohorts):
        ways = [_ways(cohort, own) for cohort, own in zip(cohorts, reported, strict=True)]
        discounted = [cohort.weights * cohort.discounts for cohort in cohorts]
        moved |= scale(weighted_means(ways, discounted), -1)
    for place, step in enumerate(steps):
        if step != 1:
            for value in moved.values():
                value[place] *= step
    return moved


def _ways(cohort: Cohort, reported: Params) -> Params:
    """Stacked: from what each client received to what it reported."""
    return subtract({name: value for name, value in reported.items() if name not in cohort.own}, cohort.received)


def averaged_buffers(cohorts: Sequence[Cohort]) -> Params:
    """Stacked, for each server: float buffers are averaged with the weights; integer ones (counters) are those of the
    first reporting client."""
    buffers = [cohort.buffers for cohort in cohorts]
    if not any(buffers):
        return {}
    floats = [{name: value for name, value in own.items() if value.is_floating_point()} for own in buffers]
    averaged = weighted_means(floats, [cohort.weights for cohort in cohorts])
    firsts = [int(cohort.reports.int().argmax()) for cohort in cohorts]
    counters = {
        name: torch.stack([own[name][first] for own, first in zip(buffers, firsts, strict=True)])
        for name in buffers[0]
        if name not in averaged
    }
    return averaged | counters
