"""Weightings: how much each reporting client counts in the average.

Each is a pure function of the cohort's tensors. Weights are >= 0 and sum to 1 over the reporting clients.
"""

import logging
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedlit.cohort import Cohort
from fedlit.errors import ConfigError, nearest

log = logging.getLogger("fedlit")


class Weighed(NamedTuple):
    """Aggregation weights (clients,) and the length of the server's step along the averaged update."""

    weights: Tensor
    step: float = 1.0


class Weighting:
    """Base of the weightings."""

    needs_state: tuple[str, ...] = ()
    """Client states that it reads; an algorithm without them is refused."""

    def weigh(self, cohort: Cohort) -> Weighed:
        """Weights and step length for this cohort."""
        raise NotImplementedError


class Samples(Weighting):
    """n_i / sum n: by training samples."""

    def weigh(self, cohort: Cohort) -> Weighed:
        """By size."""
        return Weighed(normalise(cohort.sizes, cohort.reports))


class Uniform(Weighting):
    """1 / S: all the same."""

    def weigh(self, cohort: Cohort) -> Weighed:
        """All the same."""
        return Weighed(normalise(torch.ones(len(cohort.clients)), cohort.reports))


@dataclass
class Dual(Weighting):
    """dual_i / sum dual: by dual variable.

    Args:
        fallback: weighting of a round in which the duals sum to 0 or are not finite.
    """

    fallback: Literal["samples", "uniform"] = "samples"
    needs_state = ("dual",)

    def weigh(self, cohort: Cohort) -> Weighed:
        """By the cohort's updated dual variables."""
        dual = cohort.state["dual"].double() * cohort.reports
        total = float(dual.sum())
        if total > 0 and total < float("inf"):
            return Weighed(normalise(dual, cohort.reports))
        log.info(f"Round {cohort.round + 1}: the duals sum to {total:g}; weights are '{self.fallback}' instead.")
        return find_weighting(self.fallback).weigh(cohort)


def normalise(values: Tensor, reports: Tensor) -> Tensor:
    """Values over their sum, in float64, 0 for clients that do not report."""
    values = values.double() * reports
    if not bool(values.any()):  # nobody has samples (data.allow_empty): all count alike, and none has moved
        values = reports.double()
    return values / values.sum()


_BY_NAME: dict[str, type[Weighting]] = {"samples": Samples, "uniform": Uniform, "dual": Dual}


def find_weighting(weighting: str | Weighting) -> Weighting:
    """A weighting from its name in configs, or itself."""
    if isinstance(weighting, Weighting):
        return weighting
    if weighting not in _BY_NAME:
        known = ", ".join(_BY_NAME)
        raise ConfigError(
            f"trainer.weights is '{weighting}', which is no weighting. {nearest(weighting, _BY_NAME)}Known: {known}."
        )
    return _BY_NAME[weighting]()
