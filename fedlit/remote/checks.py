"""What a node refuses of a server, and a server of a node, before anything is computed from it."""

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.messages import Message
from fedlit.client.net_parts import trained
from fedlit.client.report import first_rows
from fedlit.client.specs import first_values, sent_values
from fedlit.errors import MessageError, require
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.params import Params, at_least_float32, expand, row

_LONGEST_NAME = 200
_PRECISIONS = ("32-true", "64-true")
_TOLD = {"risk_received", "risk_trained"}
ANSWER = dict.fromkeys(("steps_taken", "losses"), Tensor) | dict.fromkeys(
    ("model", "state", "reported_rows", "measured"), Mapping
)
"""What a client sends after its training: names, and what they must be."""


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
    require(
        len(measures.finetune) < 2,
        "trainer.finetune_lr or trainer.finetune_epochs has several values, of which validation takes the best, but "
        "nodes fine-tune in one way, which the server tells them before the first round. Give one value of each.",
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


def left_out(client: Client) -> str | None:
    """What is said of measures that need everybody's predictions in one place, if the algorithm has some."""
    not_sums = [measure for measure in client.measures if measure.of_outputs is not None]
    if not not_sums:
        return None
    labels, names = (", ".join(getattr(one, key) for one in not_sums) for key in ("label", "name"))
    return (
        f"{labels}: every node measures its own tests, and the means over users are made of that. global/, val/ and "
        f"pooled_ values of {names} are left empty, because they need everybody's predictions, which stay on the nodes."
    )


def check_request(client: Client, number: int, cohort: Cohort) -> None:
    """MessageError unless a request is for this client, and its tensors have the names, shapes and types of the net."""
    if cohort.clients != [number]:
        raise MessageError(f"was asked to train the clients {cohort.clients[:3]}, but it is client {number}")
    try:
        check_sent_tensors(client, cohort)
    except MessageError as error:
        raise MessageError(f"got a message that does not fit: {error}") from error


def check_sent_tensors(client: Client, cohort: Cohort) -> None:
    """MessageError unless what the server sent has the names, shapes and types of the net and of the specs."""
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


def check_answer(client: Client, cohort: Cohort, answer: Message, told: Collection[str]) -> None:
    """MessageError unless a client's answer holds all that it has to send, and nothing else.

    Args:
        client: the algorithm.
        cohort: what the client was sent; it alone.
        answer: what it sent back.
        told: risks that a weighting or callback reads.
    """
    for name, kind in ANSWER.items():
        if not isinstance(answer.get(name), kind):
            raise MessageError(f"'{name}' is {'something else' if name in answer else 'missing'}")
    kept = frozenset() if client.average_kept else client.local_tensors
    models = cohort.received | cohort.received_buffers
    model = {name: value[0] for name, value in models.items() if name not in kept}
    reported = {name: first for name, first in client.first_values().items() if name in client.report_spec()}
    params = row(cohort.received, 0)
    number = torch.zeros((), dtype=at_least_float32(next(iter(params.values())).dtype))
    check_tensors("its model", answer["model"], model, ())
    check_tensors("its states", answer["state"], row(client.initial_rows(reported, cohort.received, params), 0), ())
    check_tensors(
        "what it reports", answer["reported_rows"], row(first_rows(client, TrainedCohort.begin(cohort)), 0), ()
    )
    check_tensors("its loss", {"losses": answer["losses"]}, {"losses": number}, ())
    check_tensors("its steps", {"steps": answer["steps_taken"]}, {"steps": torch.zeros((), dtype=torch.int64)}, ())
    for name in sorted(set(told) ^ answer["measured"].keys() - {"sent_bytes"}):
        raise MessageError(f"'{name[:_LONGEST_NAME]}' is {'missing' if name in told else 'unknown'}")
    for name, value in answer["measured"].items():
        if not isinstance(value, Tensor) or value.shape != (1,):
            raise MessageError(f"'{name}' is not one number")


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
        raise MessageError(f"in {what}, '{name[:_LONGEST_NAME]}' {wrong}")
    for name, value in rows.items():
        if not isinstance(value, Tensor):
            raise MessageError(f"in {what}, '{name}' is not a tensor")
        if tuple(value.shape) != (1, *like[name].shape) or value.dtype != like[name].dtype:
            raise MessageError(
                f"in {what}, '{name}' has shape {tuple(value.shape)[1:]} and type "
                f"{value.dtype}, but here it has {tuple(like[name].shape)} and {like[name].dtype}"
            )
