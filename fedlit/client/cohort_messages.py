"""Cohorts from messages: of what clients are sent, and of what they send back."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.cohort_stack import CohortStack
from fedlit.client.messages import Message

_PLAIN = ("round", "run_round", "population", "clients", "draw_rounds", "lrs")


def cohort_of(request: Message) -> Cohort:
    """The clients of a request as a cohort."""
    stack = CohortStack([len(request["clients"])], request["stacked"])
    plain = {name: request[name] for name in _PLAIN}
    return Cohort(stack=stack, local_tensors=frozenset(request["local_tensors"]), **plain)


def join_replies(cohort: Cohort, replies: Sequence[Message]) -> TrainedCohort:
    """The trained cohort, from a reply of each of its clients."""
    trained = TrainedCohort.begin(cohort)
    for name in replies[0]:
        setattr(trained, name, joined([reply[name] for reply in replies]))
    return trained


def joined(parts: Sequence[Any]) -> Any:
    """Rows of several tensors, or of several stacked dicts, as one."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return {key: joined([part[key] for part in parts]) for key in parts[0]}
