"""A part of a cohort as a message: what its clients are sent, and what they send back. Used by processes and nodes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.cohort_stack import CohortStack
from fedlit.client.messages import Message

_PLAIN = ("round", "run_round", "population", "clients", "draw_rounds", "lrs")
_SENT = ("reports", "sizes", "steps", "received", "received_buffers", "state", "sent", "optimizer_state")
_MEASURED = ("risk_received", "grad_received")
_TRAINED = ("steps_taken", "losses", "params", "buffers", "state", "optimizer_state", "reported_rows")


def request_of(cohort: Cohort, positions: Sequence[int]) -> Message:
    """The request to train some clients of a cohort: their rows."""
    part = cohort.take(positions)
    return {
        **{name: getattr(part, name) for name in _PLAIN},
        "stacked": {name: value for name, value in part.filled().items() if name in (*_SENT, *_MEASURED)},
        "local_tensors": sorted(part.local_tensors),
    }


def cohort_of(request: Message) -> Cohort:
    """The inverse of `request_of`: these clients as a cohort."""
    stack = CohortStack([len(request["clients"])], request["stacked"])
    plain = {name: request[name] for name in _PLAIN}
    return Cohort(stack=stack, local_tensors=frozenset(request["local_tensors"]), **plain)


def trained_rows(cohort: TrainedCohort) -> Message:
    """The rows that a trained cohort sends back; also what clients send instead of x_i, if they do."""
    compressed: Message = {"sent_params": cohort.sent_params, "sent_bytes": cohort.sent_bytes}
    filled = {name: value for name, value in compressed.items() if len(value)}
    return {name: getattr(cohort, name) for name in _TRAINED} | filled


def join_replies(cohort: Cohort, positions: Sequence[Sequence[int]], replies: Sequence[Message]) -> TrainedCohort:
    """The trained cohort, from replies for clients at these positions, which are all clients together."""
    order = torch.tensor([k for part in positions for k in part]).argsort()
    trained = TrainedCohort.begin(cohort)
    for name in replies[0]:
        setattr(trained, name, in_order([reply[name] for reply in replies], order))
    return trained


def in_order(parts: Sequence[Any], order: Tensor) -> Any:
    """Rows of several tensors, or of several stacked dicts, in the cohort's order."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))[order]
    return {key: in_order([part[key] for part in parts], order) for key in parts[0]}
