"""From trained clients to the pseudo-gradients of the servers' optimisers, for all servers at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedlit.client.cohort import WeighedCohort
from fedlit.params import Params, concat_all_rows, scale, subtract, weighted_means


def pseudo_gradients(models: Params, cohorts: Sequence[WeighedCohort]) -> Params:
    """Stacked: step * (z - sum_i w_i x_i) of each server, where x_i is what the client reported (`Cohort.reported`).

    If clients received older models than z, it is step * sum_i w_i s_i (received_i - x_i), with discounts s_i. Kept
    tensors are averaged without a discount: each began at the client's own value.

    Args:
        models: stacked: z of each server.
        cohorts: the clients of each.
    """
    counts, weights = [len(cohort.clients) for cohort in cohorts], WeighedCohort.weights.of(cohorts)
    reported = WeighedCohort.params.of(cohorts)
    if any(cohort.sent_params for cohort in cohorts):
        reported = concat_all_rows([cohort.reported for cohort in cohorts])
    gradients = {name: models[name] - mean for name, mean in weighted_means(reported, weights, counts).items()}
    if any(cohort.discounts.numel() for cohort in cohorts):
        moves = subtract(
            {name: value for name, value in reported.items() if name not in cohorts[0].local_tensors},
            WeighedCohort.received.of(cohorts),
        )
        discounts = WeighedCohort.discounts.of(cohorts)
        gradients |= scale(weighted_means(moves, weights * discounts, counts), -1)
    for index, cohort in enumerate(cohorts):
        if cohort.step_length != 1:
            for value in gradients.values():
                value[index] *= cohort.step_length
    return gradients


def averaged_buffers(cohorts: Sequence[WeighedCohort]) -> Params:
    """Stacked: the buffers of each server. Float ones are averaged with the weights; of integer ones (counters) it is
    the largest of the reporting clients, which does not depend on their order."""
    buffers = WeighedCohort.buffers.of(cohorts)
    if not buffers:
        return {}
    counts = [len(cohort.clients) for cohort in cohorts]
    floats = {name: value for name, value in buffers.items() if value.is_floating_point()}
    averaged = weighted_means(floats, WeighedCohort.weights.of(cohorts), counts)
    reporting = torch.split(WeighedCohort.reports.of(cohorts), counts)

    def largest(values: Tensor) -> Tensor:
        pairs = zip(torch.split(values, counts), reporting, strict=True)
        return torch.stack([(own[sends] if sends.any() else own).amax(0) for own, sends in pairs])

    return averaged | {name: largest(value) for name, value in buffers.items() if name not in averaged}
