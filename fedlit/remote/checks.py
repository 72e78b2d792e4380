"""What a node refuses of a server, and a server of a node, before anything is computed from it."""

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort
from fedlit.client.net_parts import trained
from fedlit.client.specs import first_values, sent_values
from fedlit.errors import MessageError, require
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.params import Params, expand, row

_LONGEST_NAME = 200
_PRECISIONS = ("32-true", "64-true")
_TOLD = {"risk_received", "risk_trained"}


def check_federation(client: Client, measures: EvaluationOptions, told: Collection[str], precision: object) -> None:
    """ConfigError for a run that cannot have its clients elsewhere; it names the part, and why."""
    name = type(client).__name__
    require(
        not client.pools_data,
        f"model is {name}, which trains one client on everybody's data (pools_data), but in a federation of nodes the "
        "data stay where they are. Take another algorithm, or train with fedlit fit.",
    )
    require(
        not measures.extra_metrics,
        f"trainer.extra_metrics asks for {', '.join(measures.extra_metrics)}, which needs all clients' training data "
        "in one place. Leave it out in a federation of nodes.",
    )
    not_sums = [measure.label for measure in client.measures if measure.of_outputs is not None]
    require(
        not not_sums,
        f"model.metrics asks for {', '.join(not_sums)}, but in a federation nodes send sums over their own tests, and "
        "these are not sums: pooled, they need everybody's predictions in one place. Leave model.metrics out.",
    )
    require(
        set(told) <= _TOLD,
        f"A weighting or callback needs {', '.join(sorted(set(told) - _TOLD))}, which nodes do not send: it would be a "
        "whole model more. Let the client report it (report_spec), or take another weighting.",
    )
    require(
        precision in _PRECISIONS,
        f"trainer.precision is {precision}, but nodes train in 32-true or 64-true. Set it to one of these.",
    )


def check_request(client: Client, number: int, cohort: Cohort) -> None:
    """MessageError unless a request is for this client, and its tensors have the names, shapes and types of the net."""
    if cohort.clients != [number]:
        raise MessageError(f"was asked to train the clients {cohort.clients[:3]}, but it is client {number}")
    net = {name: value.detach() for name, value in trained(client.net).items()}
    check_tensors("the model", cohort.received | cohort.received_buffers, net, client.local_tensors)
    params = client.local_params
    for what, rows, spec in (
        ("states", cohort.state, sent_values(client.state_spec())),
        ("what comes with the model", cohort.sent, first_values(client.sent_spec())),
    ):
        check_tensors(what, rows, row(client.initial_rows(spec, expand(params, 1), params), 0), ())
    check_tensors(
        "steps and sizes",
        {"steps": cohort.steps, "sizes": cohort.sizes, "reports": cohort.reports},
        {"steps": torch.zeros((), dtype=torch.int64), "sizes": torch.zeros((), dtype=torch.int64)}
        | {"reports": torch.zeros((), dtype=torch.bool)},
        (),
    )


def check_tensors(what: str, rows: Params, like: Mapping[str, Tensor], optional: Iterable[str]) -> None:
    """MessageError unless these are the rows of one client, with the names, shapes and types of `like`.

    Args:
        what: what they are, for the error.
        rows: stacked.
        like: unstacked: what is expected.
        optional: names that may be missing.
    """
    for name in sorted(rows.keys() - like.keys()) + sorted(like.keys() - rows.keys() - set(optional)):
        wrong = "is unknown" if name in rows else "is missing"
        raise MessageError(f"got a message that does not fit: in {what}, '{name[:_LONGEST_NAME]}' {wrong}")
    for name, value in rows.items():
        if tuple(value.shape) != (1, *like[name].shape) or value.dtype != like[name].dtype:
            raise MessageError(
                f"got a message that does not fit: in {what}, '{name}' has shape {tuple(value.shape)[1:]} and type "
                f"{value.dtype}, but here it has {tuple(like[name].shape)} and {like[name].dtype}"
            )
