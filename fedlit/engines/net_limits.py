"""What a net or a step cannot do: be trained in lanes, be written out by the compiler, have direct convolutions."""

from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fedlit.client.base import Client
from fedlit.client.net_parts import begin_training, trained_buffers
from fedlit.engines import recurrence
from fedlit.engines.compiler import missing_convolution, missing_operators
from fedlit.engines.cost import COUNTED_ROWS
from fedlit.engines.dropout import KeyedDropout
from fedlit.engines.engine_choice import Request
from fedlit.engines.program import mixes_rows
from fedlit.engines.recurrence import has_recurrence, why_not_written_out
from fedlit.engines.step_probe import convolutions, net_passes
from fedlit.errors import require
from fedlit.inputs import Inputs, call_with, repeated
from fedlit.params import clone


def not_vectorizable(client: Client, sample: Inputs) -> str | None:
    """Why only the sequential engine can train this net, or None."""
    layer = drawing_layer(client, sample)
    if layer is None:
        return None
    kind = type(client.net.get_submodule(layer)).__name__
    what = f"'{layer}' of the net, a {kind}," if layer else f"the net, a {kind},"
    return f"{what} draws random numbers from a stream that lanes and threads would share"


def not_written_out(client: Client, sample: Inputs) -> str | None:
    """Why the net's recurrent layers cannot be compiled, or None."""
    if not has_recurrence(client.net):
        return None
    for method in dict.fromkeys(phase.step_method for phase in client.phases()):
        if net_passes(client, method, sample) > 1:  # a gradient of a gradient, perhaps
            return f"{method} passes the net several times, and recurrent layers are compiled for one pass"
    return why_not_written_out(client.net) or missing_operators(recurrence.SOURCE)


def one_lane(client: Client) -> str | None:
    """Why the vectorized engine trains this net in one lane, or None."""
    if client.user_module is not None:
        return (
            f"{client.user_module.name}.training_step takes a mean over its batch, so batches are not padded for lanes"
        )
    if mixes_rows(client):
        part = next((f"the buffer '{name}'" for name in trained_buffers(client.net)), "BatchNorm")
        return f"the net has {part}, so its batches are not padded to the fixed size that lanes need"
    return "the net has recurrent layers, for which vmap has no rule" if has_recurrence(client.net) else None


def not_direct_convolutions(client: Client, sample: Inputs) -> str | None:
    """Why the compiled program keeps torch's convolutions, or None.

    All or none: between direct convolutions and torch's, pictures would have to change their layout and back.
    """
    unsuited = next((used.why_not for used in convolutions(client, sample) if used.why_not), None)
    return unsuited or missing_convolution()


def check_one_lane(request: Request, client: Client, sample: Inputs) -> None:
    """Refuse several lanes, or compiling, for a net that runs in one lane or is not compiled."""
    why = not_written_out(client, sample) if request.compiled else None
    require(why is None, f"trainer.compiled is true, but {why}. Leave trainer.compiled out.")
    require(
        request.lanes in (None, 1) or one_lane(client) is None,
        f"trainer.lanes is {request.lanes}, but a net with recurrent layers, BatchNorm or other buffers trains in one "
        "lane. Leave trainer.lanes out.",
    )


def check_not_asked_for(request: Request, client: Client, method: str) -> None:
    """Refuse the vectorized engine for a step that reads padding."""
    require(
        request.engine != "vectorized",
        f"trainer.engine is vectorized, which fills every batch up to one size, but {type(client).__name__}.{method} "
        "reads the padding: its result changes with rows of weight 0. Let it weigh one loss per row, "
        "(losses * batch.row_weights).sum(), which is what self.task_loss(batch) does; or set trainer.engine to "
        "sequential, which pads nothing.",
    )


def drawing_layer(client: Client, sample: Inputs) -> str | None:
    """The first module that draws from torch's generator in training (nn.RReLU …), or None; keyed dropout does not."""
    batch = repeated(sample, min(client.batch_size, COUNTED_ROWS))
    training, found = client.net.training, list[str]()

    def watch(name: str, module: nn.Module) -> list[RemovableHandle]:
        before: list[torch.Tensor] = []

        def enter(*_: Any) -> None:
            before.append(torch.random.get_rng_state())

        def leave(*_: Any) -> None:  # inner modules leave first
            if not torch.equal(before.pop(), torch.random.get_rng_state()):
                found.append(name)

        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    begin_training(client.net)
    hooks = [hook for name, module in client.net.named_modules() for hook in watch(name, module)]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), KeyedDropout(torch.tensor(0)):
            call_with(client.net, clone(dict(client.net.named_buffers())), batch)  # copies: BatchNorm writes
    finally:
        for hook in hooks:
            hook.remove()
        client.net.train(training)
    return found[0] if found else None
