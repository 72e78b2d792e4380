"""Checks of the net and of the first step on the data's own samples, before any work."""

import inspect

import torch
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.net_parts import trained_params
from fedlit.client.tasks import Named
from fedlit.data.base import FederatedDataModule
from fedlit.engines.step_check import check_steps
from fedlit.engines.step_probe import MOST_ROWS
from fedlit.errors import ConfigError, nearest, require
from fedlit.evaluation.summaries import check_summaries
from fedlit.inputs import Inputs, arguments, call, in_dtype, shapes, tensors
from fedlit.metrics.formatting import counted
from fedlit.metrics.from_torchmetrics import TorchMetric
from fedlit.trainer.adapter_files import check_not_merged

_TRIED_ROWS = 100
"""Rows on which metrics are computed before a run."""


def check_trained(client: Client) -> None:
    """Refuse a net of which nothing is trained, and tensors that clients keep although they are frozen."""
    require(
        bool(client.local_params),
        f"model.net ({type(client.net).__name__}) has nothing to train: none of its parameters requires a gradient. "
        "Name what is trained in model.train (modules, parameters or patterns with *), or let parameters train with "
        "requires_grad_(True).",
    )
    require(
        client.local_params.keys() == trained_params(client.net).keys(),
        f"This {type(client).__name__} has trained another part of its net before: parameters were frozen or unfrozen "
        "since. Make a new client with the net, and trainer.initial_weights='net' to keep its weights.",
    )
    client.check_kept_tensors()
    check_not_merged(client.net)


def check_net(client: Client, data: FederatedDataModule) -> None:
    """Check that the net takes the data's samples, and that its output fits the task and the targets."""
    x, y = data.rows(data.store, data.probe_rows())
    check_inputs(x, len(y), type(data).__name__)
    check_arguments(client.net, x)
    name = type(client.net).__name__
    try:
        output = evaluated(client.net, x)
    except (RuntimeError, IndexError) as error:
        raise ConfigError(
            f"model.net ({name}) cannot take samples of {shapes(x)} from {type(data).__name__}: "
            f"{str(error).splitlines()[0]}. {advice(x, error)}"
        ) from error
    misfit = client.task.misfit(output, y, Named(f"model.net ({name})", type(data).__name__, data.num_classes))
    if misfit is not None:
        raise ConfigError(misfit)
    check_metrics(client, data)


def evaluated(net: nn.Module, x: Inputs) -> Tensor:
    """The net's output in evaluation mode."""
    training = net.training
    net.eval()
    try:
        with torch.no_grad():
            output: Tensor = call(net, in_dtype(x, next(net.parameters()).dtype))
    finally:
        net.train(training)
    return output


def check_metrics(client: Client, data: FederatedDataModule) -> None:
    """Compute every metric of torchmetrics once, on a few rows of the pooled test."""
    metrics = [measure.of_outputs for measure in client.measures if isinstance(measure.of_outputs, TorchMetric)]
    rows = data.global_test[:_TRIED_ROWS]
    if (metrics or client.user_module is not None) and len(rows):
        x, y = data.rows(data.store, rows)
        output = evaluated(client.net, x)
        for metric in metrics:
            metric.check(output, y)
        client.measure_steps(in_dtype(x, output.dtype), output, y)


def check_inputs(x: object, rows: int, data: str) -> None:
    """Refuse an x that is neither a tensor nor several with a row for each sample; TensorData has checked its own."""
    if isinstance(x, Tensor):
        return
    require(
        isinstance(x, dict | tuple) and len(x) > 0,
        f"x of {data} is a {type(x).__name__}. Give a tensor; or a dict of tensors, which the net gets as keyword "
        "arguments; or a tuple of them, its positional arguments.",
    )
    assert isinstance(x, dict | tuple)
    for name, value in x.items() if isinstance(x, dict) else enumerate(x):
        require(
            isinstance(value, Tensor) and len(value) == rows,
            f"x[{name!r}] of {data} is {_what(value)}, but each of several inputs is a tensor with one row per sample, "
            f"here {rows} rows. Repeat what all samples share, or make it a part of the net.",
        )


def _what(value: object) -> str:
    return f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def check_arguments(net: nn.Module, x: Inputs) -> None:
    """Refuse a net whose forward does not take these inputs."""
    args, named = arguments(x)
    signature, name = inspect.signature(net.forward), type(net).__name__
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        gets = ", ".join(named) if named else counted(len(args), "input")
        unknown = next((key for key in named if key not in signature.parameters), None)
        why = str(error) if unknown is None else f"does not take {unknown!r}"
        raise ConfigError(
            f"model.net ({name}) is called with {gets}, as the data have them, but {why}: its forward takes {takes}. "
            f"{'' if unknown is None else nearest(unknown, [*signature.parameters])}Name the inputs of the data as the "
            "net does (a dict: its keys; HuggingFaceData: data.x), leave out what it does not take, or change the net."
        ) from error


def advice(x: Inputs, error: Exception) -> str:
    """How to mend a net that cannot take a sample."""
    tokens = [value for value in tensors(x) if not value.is_floating_point()]
    if isinstance(error, IndexError) and tokens:
        first, last = (int(value) for value in torch.cat([one.flatten() for one in tokens]).aminmax())
        return (
            f"Token ids go from {first} to {last}: give the net's embedding at least {last + 1} entries, or correct "
            "the ids."
        )
    return "Change the net's input size, or the data."


def check_first_steps(client: Client, data: FederatedDataModule) -> None:
    """Try every phase's step and optimiser on rows of the client that has most of them."""
    largest = int(data.sizes.argmax())
    rows = data.load(0, [largest]).train[0][: min(client.batch_size, MOST_ROWS)]
    if len(rows) >= client.fewest_rows:
        x, y = data.rows(data.store, rows)
        x = in_dtype(x, next(client.net.parameters()).dtype)
        check_steps(client, x, y)
        check_summaries(client, x, y)
