"""What tests of the server share: cohorts made by hand."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedlit import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.cohort_stack import CohortStack, stacked_fields


def gathered(
    sizes: Sequence[int] = (5, 10, 20),
    *,
    clients: Sequence[int] | None = None,
    reports: Sequence[bool] | None = None,
    received: dict[str, Tensor] | None = None,
    state: dict[str, Tensor] | None = None,
    steps: Sequence[int] | None = None,
    lr: float = 0.1,
    **others: Tensor | dict[str, Tensor],
) -> Cohort:
    """Clients of these sizes that received a model of two zeros, before they train."""
    count = len(sizes)
    fields = {
        "reports": torch.tensor([True] * count if reports is None else list(reports)),
        "sizes": torch.tensor(sizes),
        "steps": torch.tensor([1] * count if steps is None else list(steps)),
        "received": {"w": torch.zeros(count, 2, dtype=torch.float64)} if received is None else received,
        "received_buffers": {},
        "state": {} if state is None else state,
    }
    return Cohort(
        stack=CohortStack([count], fields | others),
        round=0,
        population=100,
        clients=list(range(count)) if clients is None else list(clients),
        draw_rounds=[0] * count,
        lrs=[lr] * count,
    )


def trained(sizes: Sequence[int] = (5, 10, 20), *, filled: dict[str, Any] | None = None, **given: Any) -> TrainedCohort:
    """The same in training, with these fields filled."""
    cohort = TrainedCohort.begin(gathered(sizes, **given))
    cohort.parts |= filled or {}
    return cohort


def make_cohort(sizes: Sequence[int] = (5, 10, 20), **given: Any) -> WeighedCohort:
    """The same weighed; what is given and is no field of a gathered cohort is filled."""
    names = set(inspect.signature(gathered).parameters) | stacked_fields(Cohort).keys()
    filled = {name: given.pop(name) for name in given.keys() - names}
    weights = filled.pop("weights", torch.zeros(0))
    step_length, gradient = filled.pop("step_length", 1.0), filled.pop("pseudo_gradient", {})
    local = filled.pop("local_tensors", frozenset())
    cohort = WeighedCohort.weigh(trained(sizes, filled=filled, **given), weights, step_length)
    cohort.pseudo_gradient, cohort.local_tensors = gradient, local
    return cohort
