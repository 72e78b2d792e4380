"""From trained clients to the pseudo-gradient that the server optimiser steps along."""

import torch
from torch import Tensor

from fedlit.cohort import Cohort
from fedlit.params import Params, scale, subtract, weighted_mean


def pseudo_gradient(global_params: Params, cohort: Cohort, step: float) -> Params:
    """step * (z - sum_i w_i x_i).

    Where clients received older models than z, step * sum_i w_i s_i (received_i - x_i) with their discounts s_i. What
    stays with the clients is averaged as it is: its way began at their own.
    """
    moved = subtract(global_params, weighted_mean(cohort.params, cohort.weights))
    if len(cohort.discounts):
        moved |= scale(weighted_mean(cohort.moves, cohort.weights * cohort.discounts), -1)
    return moved if step == 1 else scale(moved, step)


def averaged_buffers(cohort: Cohort) -> Params:
    """Float buffers are averaged with the weights; integer ones (counters) are those of the first reporting client."""
    if not cohort.buffers:
        return {}
    first = int(torch.nonzero(cohort.reports)[0])
    return {name: _average(value, cohort.weights, first) for name, value in cohort.buffers.items()}


def _average(value: Tensor, weights: Tensor, first: int) -> Tensor:
    return weighted_mean({"": value}, weights)[""] if value.is_floating_point() else value[first]
