"""Whether a step reads padding: it is tried twice before the first round, with the same rows and other padding."""

import torch
from torch import Tensor
from torch.func import functional_call

from fedlit.client import Client
from fedlit.engines.program import StepModule, mixes_rows
from fedlit.errors import located
from fedlit.params import Params
from fedlit.step import Batch, Batches, StepOutput

MOST_ROWS = 256
"""Rows of a tried batch, at most."""
SHIFT = 0.1
"""How far parameters and states are moved, so that no term vanishes because x_i = z or a state starts at 0."""


def reads_padding(client: Client, sample: Tensor) -> str | None:
    """The step method whose loss, gradient or states depend on rows of weight 0, or None.

    Rows of weight 0 change no bit of an honest step, in any precision: they add exact zeros, in the same order. So a
    relative difference above the square root of the type's precision (3e-4 in float32, 1e-8 in float64) is not
    rounding. A net that mixes rows is not tried: its batches have no padding.
    """
    if client.batch_size == 1 or mixes_rows(client):
        return None
    client.prepare()
    training = client.net.training
    client.net.train()
    try:
        methods = dict.fromkeys(phase.step_method for phase in client.phases())
        return next((method for method in methods if _differs(client, method, sample)), None)
    finally:
        client.net.train(training)


def _differs(client: Client, method: str, sample: Tensor) -> bool:
    with located(f"while {method} was tried on a batch before the first round"):
        first, second = (_tried(client, method, sample, padding) for padding in (1, 2))
    return not all(_same(first[name], second[name]) for name in first)


def _tried(client: Client, method: str, sample: Tensor, padding: int) -> Params:
    """All that a step gives, on a batch whose padding has this number; nothing of the client or torch is moved."""
    generator = torch.Generator().manual_seed(0)
    held = {f"client.{name}": _shifted(value, generator) for name, value in _read_by_a_step(client).items()}
    params = {name: held[f"client.net.{name}"].requires_grad_() for name in client.local_params}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.default_generator.manual_seed(0)  # a step that draws draws the same both times
        batch = _batches(client, sample, padding)
        output: StepOutput = functional_call(StepModule(client, method), held, (batch, torch.tensor(0)))
        grads = torch.autograd.grad(output.loss, list(params.values()), allow_unused=True)
    found = {f"gradient of {name}": grad for name, grad in zip(params, grads, strict=True) if grad is not None}
    return {"loss": output.loss.detach(), "task": output.task, **output.carried, **found}


def _read_by_a_step(client: Client) -> Params:
    """The net's parameters, the received model, states and what the server sends."""
    return dict(client.named_parameters()) | dict(client.named_buffers())


def _shifted(value: Tensor, generator: torch.Generator) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.detach() + SHIFT * torch.rand(value.shape, generator=generator, dtype=value.dtype)


def _batches(client: Client, sample: Tensor, padding: int) -> Batches:
    made = tuple(_batch(client, sample, number, padding) for number in range(client.batches_per_step))
    return made[0] if len(made) == 1 else made


def _batch(client: Client, sample: Tensor, number: int, padding: int) -> Batch:
    """Half of the rows are real and the same for every padding; each batch of a step has real rows of its own."""
    rows = min(client.batch_size, MOST_ROWS)
    real = (rows + 1) // 2
    x = torch.cat([_rows_like(sample, real, seed=number), _rows_like(sample, rows - real, seed=-padding)])
    y = torch.arange(rows) % 2
    y[real:] = padding % 2
    weights = torch.zeros(rows, dtype=next(client.net.parameters()).dtype)
    weights[:real] = 1.0 / real
    return Batch(x, y, weights)


def _rows_like(sample: Tensor, rows: int, seed: int) -> Tensor:
    """(rows, …) made of the sample's own numbers, so that they are in the net's domain: letters, pixels …"""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(sample.numel(), (rows, sample.numel()), generator=generator)
    made = sample.reshape(-1)[drawn].reshape(rows, *sample.shape)
    if not sample.is_floating_point():
        return made
    return made * (0.5 + 0.5 * torch.rand(made.shape, generator=generator, dtype=sample.dtype))


def _same(first: Tensor, second: Tensor) -> bool:
    """Equal but for rounding, as a whole; what is not finite must stand at the same places."""
    allowed = torch.finfo(first.dtype).eps ** 0.5 if first.is_floating_point() else 0.0
    size = float(torch.nan_to_num(first).abs().max()) if first.numel() else 0.0
    return torch.allclose(first, second, rtol=0.0, atol=allowed * size, equal_nan=True)
