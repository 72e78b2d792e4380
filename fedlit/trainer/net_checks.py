"""Checks of the net and of the first step on the data's own samples, before any work."""

import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.tasks import Named
from fedlit.data.base import FederatedDataModule
from fedlit.engines.step_check import check_steps
from fedlit.engines.step_probe import MOST_ROWS
from fedlit.errors import ConfigError


def check_frozen(client: Client) -> None:
    """Refuse frozen parameters: engines train, and servers average, all parameters of a net."""
    frozen = [name for name, value in client.net.named_parameters() if not value.requires_grad]
    if frozen:
        few = ", ".join(f"'{name}'" for name in frozen[:3])
        more = f" and {len(frozen) - 3} more" if len(frozen) > 3 else ""
        raise ConfigError(
            f"model.net ({type(client.net).__name__}) has frozen parameters (requires_grad is False): {few}{more}. "
            "fedlit trains and sends all parameters of a net, these too. Let them train, net.requires_grad_(True); or, "
            "where a frozen part comes first, apply it to the samples once and give its outputs to TensorData, with "
            "the rest of the net as model.net."
        )


def check_net(client: Client, data: FederatedDataModule) -> None:
    """Check that the net takes the data's samples, and that its output fits the task and the targets."""
    x, y = data.rows(data.store, data.probe_rows())
    name = type(client.net).__name__
    dtype = next(client.net.parameters()).dtype
    training = client.net.training
    client.net.eval()
    try:
        with torch.no_grad():
            output = client.net(x.to(dtype) if x.is_floating_point() else x)
    except (RuntimeError, IndexError) as error:
        raise ConfigError(
            f"model.net ({name}) cannot take samples of shape {tuple(x.shape[1:])} from {type(data).__name__}: "
            f"{str(error).splitlines()[0]}. {advice(x, error)}"
        ) from error
    finally:
        client.net.train(training)
    misfit = client.task.misfit(output, y, Named(f"model.net ({name})", type(data).__name__, data.num_classes))
    if misfit is not None:
        raise ConfigError(misfit)


def advice(x: Tensor, error: Exception) -> str:
    """How to mend a net that cannot take a sample."""
    if isinstance(error, IndexError) and not x.is_floating_point():
        return (
            f"Token ids go from {int(x.min())} to {int(x.max())}: give the net's embedding at least {int(x.max()) + 1} "
            "entries, or correct the ids."
        )
    return "Change the net's input size, or the data."


def check_first_steps(client: Client, data: FederatedDataModule) -> None:
    """Try every phase's step and optimiser on rows of the client that has most of them."""
    largest = int(data.sizes.argmax())
    rows = data.load(0, [largest]).train[0][: min(client.batch_size, MOST_ROWS)]
    if len(rows) >= client.fewest_rows:
        x, y = data.rows(data.store, rows)
        dtype = next(client.net.parameters()).dtype
        check_steps(client, x.to(dtype) if x.is_floating_point() else x, y)
