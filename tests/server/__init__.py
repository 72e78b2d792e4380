"""What tests of the server share: cohorts made by hand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedlit import Cohort


def make_cohort(
    sizes: Sequence[int] = (5, 10, 20),
    *,
    clients: Sequence[int] | None = None,
    reports: Sequence[bool] | None = None,
    received: dict[str, Tensor] | None = None,
    state: dict[str, Tensor] | None = None,
    **filled: Any,
) -> Cohort:
    """Clients of these sizes that received a model of two zeros; `filled` are fields of later phases."""
    count = len(sizes)
    cohort = Cohort(
        round=0,
        clients=list(range(count)) if clients is None else list(clients),
        reports=torch.tensor([True] * count if reports is None else list(reports)),
        population=100,
        sizes=torch.tensor(sizes),
        steps=torch.ones(count, dtype=torch.int64),
        lr=0.1,
        received={"w": torch.zeros(count, 2, dtype=torch.float64)} if received is None else received,
        received_buffers={},
        state={} if state is None else state,
    )
    for name, value in filled.items():
        setattr(cohort, name, value)
    return cohort
