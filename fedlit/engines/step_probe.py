"""Probes of a step before the first round: does it read padding or values, how often does it call its net, and with
which convolutions?

Two tries with the same rows and different padding show whether it reads padding; a try for two clients at once shows
whether it reads values.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils.flop_counter import FlopCounterMode

from fedlit.client.base import Client
from fedlit.client.net_parts import begin_training, frozen
from fedlit.client.step import Batch, Batches, StepOutput
from fedlit.client.step_errors import ValueReadError
from fedlit.engines.convolution import Convolution
from fedlit.engines.dropout import KeyedDropout
from fedlit.engines.program import StepModule, mixes_rows
from fedlit.errors import located
from fedlit.inputs import Inputs, joined, mapped, repeated
from fedlit.params import Params, clone, with_prefix

MOST_ROWS = 256
"""Most rows of a tried batch."""
SHIFT = 0.1
"""How far parameters and states are moved, so that no term vanishes because x_i = z or a state starts at 0."""


def reads_values(client: Client, sample: Inputs) -> str | None:
    """The line of a step that asks for a tensor's value (a branch, .item() …), or None; tried for two clients at once.

    Other operations that vmap does not support are ignored: a compiled program with one lane does not use vmap.
    """
    client.prepare()
    tensors = {f"client.{name}": torch.stack([value] * 2) for name, value in clone(read_by_a_step(client)).items()}
    batch = _twice(_batches(client, sample, padding=1))
    number = torch.zeros(2, dtype=torch.int64)
    with training(client), torch.random.fork_rng(devices=[]):
        for method in dict.fromkeys(phase.step_method for phase in client.phases()):
            module = StepModule(client, method)
            try:
                vmap(partial(functional_call, module), randomness="different")(tensors, (batch, number))
            except ValueReadError as error:
                return error.where
            except RuntimeError:
                continue
    return None


def _twice(batches: Batches) -> Batches:
    """The same batches for two clients."""
    pairs = [Batch(*(mapped(_pair, part) for part in batch)) for batch in _each(batches)]
    return pairs[0] if isinstance(batches, Batch) else tuple(pairs)


def _each(batches: Batches) -> tuple[Batch, ...]:
    return (batches,) if isinstance(batches, Batch) else batches


def _pair(value: Tensor) -> Tensor:
    return torch.stack([value] * 2)


@contextmanager
def training(client: Client) -> Iterator[None]:
    """Put the net into training mode inside the block."""
    before = client.net.training
    begin_training(client.net)
    try:
        yield
    finally:
        client.net.train(before)


def reads_padding(client: Client, sample: Inputs) -> str | None:
    """The step method whose loss, gradient or states depend on rows of weight 0, or None.

    Rows of weight 0 change no bit of a correct step, in any precision: they add exact zeros, in the same order. So a
    relative difference above the square root of the precision (3e-4 in float32, 1e-8 in float64) is not rounding. A net
    that mixes rows is not tried: its batches have no padding.
    """
    if client.batch_size == 1 or mixes_rows(client):
        return None
    client.prepare()
    with training(client):
        methods = dict.fromkeys(phase.step_method for phase in client.phases())
        return next((method for method in methods if _differs(client, method, sample)), None)


def net_passes(client: Client, method: str, sample: Inputs) -> int:
    """How often a step calls the net: once, and once more for every gradient that it computes itself."""
    passes = 0

    def note(*_: Any) -> None:
        nonlocal passes
        passes += 1

    client.prepare()
    hook = client.net.register_forward_hook(note)
    try:
        with training(client), located(f"while {method} was tried on a batch before the first round"):
            _tried(client, method, sample, padding=1)
    finally:
        hook.remove()
    return passes


def convolutions(client: Client, sample: Inputs) -> list[Convolution]:
    """Every convolution of a step, those in the gradients of gradients too."""
    convolved: list[Convolution] = []

    def note(x: Sequence[int], weight: Sequence[int], *rest: Any, **_: Any) -> int:
        *_geometry, transposed, _output_padding, groups = rest
        convolved.append(Convolution(x, weight, transposed, groups))
        return 0

    client.prepare()
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution: note}):
        for method in dict.fromkeys(phase.step_method for phase in client.phases()):
            _tried(client, method, sample, padding=1)
    return convolved


def _differs(client: Client, method: str, sample: Inputs) -> bool:
    with located(f"while {method} was tried on a batch before the first round"):
        first, second = (_tried(client, method, sample, padding) for padding in (1, 2))
        # Masks depend on a number's position in its tensor: if rows are not the first dimension, padding moves it.
        others = [second, _tried(client, method, sample, 0)] if first["masks"] > 0 else [second]
    return not all(_same(first[name], other[name]) for other in others for name in first)


def _tried(client: Client, method: str, sample: Inputs, padding: int) -> Params:
    """The outputs and gradients of a step; the client and torch's generator are not changed.

    `padding` numbers different paddings of the batch; 0 means none.
    """
    generator = torch.Generator().manual_seed(0)
    tensors = {f"client.{name}": _shifted(value, generator) for name, value in read_by_a_step(client).items()}
    params = {name: tensors[f"client.net.{name}"].requires_grad_() for name in client.local_params}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.default_generator.manual_seed(0)  # a step that draws must draw the same in every try
        batch = _batches(client, sample, padding)
        with KeyedDropout(torch.tensor(0)) as masks:
            output: StepOutput = functional_call(StepModule(client, method), tensors, (batch, torch.tensor(0)))
        grads = torch.autograd.grad(output.loss, list(params.values()), allow_unused=True)
    gradients = {f"gradient of {name}": grad for name, grad in zip(params, grads, strict=True) if grad is not None}
    drawn = torch.tensor(float(masks.calls))
    return {"loss": output.loss.detach(), "task": output.task, "masks": drawn, **output.carried, **gradients}


def read_by_a_step(client: Client) -> Params:
    """The tensors that a step reads and that differ by client: the net's trained ones, the received model, states …"""
    everything = dict(client.named_parameters()) | dict(client.named_buffers())
    shared = with_prefix("net", frozen(client.net))
    return {name: value for name, value in everything.items() if name not in shared}


def _shifted(value: Tensor, generator: torch.Generator) -> Tensor:
    if not value.is_floating_point():
        return value.clone()  # BatchNorm counts its batches in place
    return value.detach() + SHIFT * torch.rand(value.shape, generator=generator, dtype=value.dtype)


def _batches(client: Client, sample: Inputs, padding: int) -> Batches:
    made = tuple(_batch(client, sample, number, padding) for number in range(client.batches_per_step))
    return made[0] if len(made) == 1 else made


def _batch(client: Client, sample: Inputs, number: int, padding: int) -> Batch:
    """Half of the rows are real and do not depend on `padding`; each batch of a step has other real rows."""
    rows = min(client.batch_size, MOST_ROWS)
    real = (rows + 1) // 2
    x = joined([_rows_like(sample, real, seed=number), _rows_like(sample, rows - real, seed=-padding)])
    y = torch.arange(rows) % 2
    y[real:] = padding % 2
    weights = torch.zeros(rows, dtype=next(client.net.parameters()).dtype)
    weights[:real] = 1.0 / real
    y = client.task.probe_targets(y, lambda: _output(client, x))
    return Batch(x, y, weights) if padding else Batch(mapped(lambda one: one[:real], x), y[:real], weights[:real])


def _output(client: Client, x: Inputs) -> Tensor:
    """The net's output for these rows, in evaluation mode; its buffers do not change."""
    training = client.net.training
    client.net.eval()
    try:
        with torch.no_grad():
            output: Tensor = client(x)
            return output
    finally:
        client.net.train(training)


def _rows_like(sample: Inputs, rows: int, seed: int) -> Inputs:
    """(rows, …) drawn from the sample's own numbers, so that the net accepts them: tokens, pixels …

    A mask beside other inputs stays as it is: one that is drawn could hide all tokens of a row.
    """
    if isinstance(sample, Tensor):
        return _drawn_like(sample, rows, seed)
    made: Inputs = mapped(lambda one: repeated(one, rows) if _is_mask(one) else _drawn_like(one, rows, seed), sample)
    return made


def _is_mask(sample: Tensor) -> bool:
    return not sample.is_floating_point() and bool(((sample == 0) | (sample == 1)).all())


def _drawn_like(sample: Tensor, rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(sample.numel(), (rows, sample.numel()), generator=generator)
    made = sample.reshape(-1)[drawn].reshape(rows, *sample.shape)
    if not sample.is_floating_point():
        return made
    return made * (0.5 + 0.5 * torch.rand(made.shape, generator=generator, dtype=sample.dtype))


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether tensors are equal up to rounding, relative to their largest number; NaN and inf must match."""
    allowed = torch.finfo(first.dtype).eps ** 0.5 if first.is_floating_point() else 0.0
    size = float(torch.nan_to_num(first).abs().max()) if first.numel() else 0.0
    return torch.allclose(first, second, rtol=0.0, atol=allowed * size, equal_nan=True)
