"""From trained clients to the pseudo-gradients that the optimisers of servers step along, for all of them at once."""

from collections.abc import Sequence
from itertools import accumulate

from fedlit.cohort import Cohort, together
from fedlit.params import Params, all_below, scale, subtract, weighted_means


def pseudo_gradients(models: Params, cohorts: Sequence[Cohort], steps: Sequence[float]) -> Params:
    """Stacked: step * (z - sum_i w_i x_i) of each server, where x_i is what the client reported (`Cohort.reported`).

    Where clients received older models than z, step * sum_i w_i s_i (received_i - x_i) with their discounts s_i. What
    stays with the clients is averaged as it is: its way began at their own.

    Args:
        models: stacked: z of each server.
        cohorts: the clients of each.
        steps: the length of each one's step.
    """
    counts, weights = [len(cohort.clients) for cohort in cohorts], together(cohorts, "weights")
    reported = together(cohorts, "params")
    if any(cohort.sent_params for cohort in cohorts):
        reported = all_below([cohort.reported for cohort in cohorts])
    moved = {name: models[name] - mean for name, mean in weighted_means(reported, weights, counts).items()}
    if any(cohort.discounts.numel() for cohort in cohorts):
        ways = subtract(
            {name: value for name, value in reported.items() if name not in cohorts[0].own},
            together(cohorts, "received"),
        )
        discounts = together(cohorts, "discounts")
        moved |= scale(weighted_means(ways, weights * discounts, counts), -1)
    for place, step in enumerate(steps):
        if step != 1:
            for value in moved.values():
                value[place] *= step
    return moved


def averaged_buffers(cohorts: Sequence[Cohort]) -> Params:
    """Stacked, for each server: float buffers are averaged with the weights; integer ones (counters) are those of the
    first reporting client."""
    buffers: Params = together(cohorts, "buffers")
    if not buffers:
        return {}
    counts = [len(cohort.clients) for cohort in cohorts]
    floats = {name: value for name, value in buffers.items() if value.is_floating_point()}
    averaged = weighted_means(floats, together(cohorts, "weights"), counts)
    starts = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
    firsts = [start + int(cohort.reports.int().argmax()) for start, cohort in zip(starts, cohorts, strict=True)]
    counters = {name: value[firsts] for name, value in buffers.items() if name not in averaged}
    return averaged | counters
