"""The cost of local training, counted before the first round: steps, passes of the net, operations, seconds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedlit.client.base import Client
from fedlit.client.net_parts import frozen
from fedlit.engines.device import Device
from fedlit.engines.step_probe import net_passes
from fedlit.inputs import Inputs, call, repeated

STEP_S, PASS_S, FLOP_S = 5e-4, 1.6e-3, 2e10
"""Rough costs of a sequential step: its overhead, that of every further pass of the net inside it (`task_grad`), and
the floating-point operations that a thread does in a second. `make bench` compares them with what it measures."""
CALL_S, COMPILED_GAIN = 1.5e-4, 1.15
"""Of a step that is compiled by itself: seconds of a call, and the factor by which a thread computes faster."""
COMPILE_S, LAYER_S = 12.0, 1.3
"""Seconds that such a step takes to compile the first time, and for each of its layers: about 60 for ResNet-20. A deep
loop on plain memory takes as long: about 55 for an adapted `CharTransformer`."""
PASSES = 3.0
"""Forward passes that a step's forward and backward pass are worth."""
COUNTED_ROWS = 1024
"""Rows of a batch on which operations are counted, at most: more only cost memory."""


@dataclass(frozen=True)
class Work:
    """The local training of a run, and where it runs."""

    client: Client
    planned: np.ndarray
    per_round: int
    rounds: int
    sample: Inputs
    flop: float
    """Operations of one pass of the net, forward and backward."""
    device: Device
    shares: Mapping[str, float]
    threads: int

    @cached_property
    def solves(self) -> list[tuple[float, int]]:
        """For each phase: local steps in the whole run, and passes of the net in a step."""
        planned = self.rounds * self.per_round * float(self.planned.mean())
        phases = self.client.phases()
        passes = {method: net_passes(self.client, method, self.sample) for method in {p.step_method for p in phases}}
        return [(planned * self.shares.get(phase.work_method, 1.0), passes[phase.step_method]) for phase in phases]

    @property
    def steps(self) -> float:
        """Local steps of the whole run."""
        return sum(steps for steps, _ in self.solves)

    @property
    def seconds(self) -> float:
        """Estimated seconds of the sequential engine on a processor."""
        return sum(steps * step_s(self.flop, passes, self.threads) for steps, passes in self.solves)

    def seconds_by_compiled_steps(self, workers: int) -> float:
        """Estimated seconds of `workers` workers that call a compiled step."""
        return sum(
            steps * (CALL_S + passes * self.flop / (FLOP_S * COMPILED_GAIN)) / workers for steps, passes in self.solves
        )

    def __str__(self) -> str:
        flop = self.flop * sum(steps * passes for steps, passes in self.solves) / max(self.steps, 1.0)
        steps = f"about {self.steps:,.0f} local steps of {flop:.1e} flop"
        return steps if self.device.name == "gpu" else f"{steps}, {self.seconds:,.0f} s one by one"


def step_s(flop: float, passes: int, threads: int) -> float:
    """Estimated seconds of a sequential step that passes its net so many times, with so many operations each."""
    return STEP_S + PASS_S * max(0, passes - 1) + passes * flop / (FLOP_S * threads)


def compile_step_s(client: Client) -> float:
    """Estimated seconds to compile one step, or a deep loop: it has kernels for every layer, forward and backward."""
    return COMPILE_S + LAYER_S * count_layers(client.net)


def count_layers(net: nn.Module) -> int:
    """How many modules of a net have parameters of their own."""
    return sum(1 for module in net.modules() if [*module.parameters(recurse=False)])


def estimated_step_s(client: Client, sample: Inputs, threads: int) -> float:
    """Estimated seconds of a client's sequential step, with counted passes; the mean over its phases."""
    methods, flop = [phase.step_method for phase in client.phases()], step_flop(client, sample)
    return sum(step_s(flop, net_passes(client, method, sample), threads) for method in methods) / len(methods)


def step_flop(client: Client, sample: Inputs) -> float:
    """Floating-point operations of one pass of the net in a local step: about three forward ones over a batch.

    With frozen parts it is less, and counted: the backward pass computes the gradients of what is trained alone.
    """
    rows = min(client.batch_size, COUNTED_ROWS)
    training = client.net.training
    client.net.eval()  # counting must not move BatchNorm's statistics nor draw for dropout
    is_whole = not frozen(client.net)
    counter = FlopCounterMode(display=False, custom_mapping=_LSTM_FLOP)
    with torch.set_grad_enabled(not is_whole), _plain_attention(), counter:
        output = call(client.net, repeated(sample, rows))
        if not is_whole:  # a backward pass of its own: it ends at the first trained layer
            torch.autograd.grad(output.sum(), [*client.local_params.values()], allow_unused=True)
    client.net.train(training)
    return (PASSES if is_whole else 1.0) * float(counter.get_total_flops()) * (client.batch_size / rows)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention as products, which the counter knows, and not as one operator, which it does not."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _lstm_backward_flop(x: Sequence[int], w_in: Sequence[int], w_hidden: Sequence[int], *_: Any, **__: Any) -> int:
    """Back through a layer: the gradients of its input and of its weights."""
    return 2 * _lstm_flop(x, w_in, w_hidden)


def _lstm_flop(x: Sequence[int], w_in: Sequence[int], w_hidden: Sequence[int], *_: Any, **__: Any) -> int:
    """Operations of a layer: two products at every step; x is (steps, rows, features), the weights (4 hidden, …)."""
    steps, rows, _features = x
    return 2 * steps * rows * (prod(w_in) + prod(w_hidden))


_LSTM_FLOP = {
    torch.ops.aten.mkldnn_rnn_layer: _lstm_flop,
    torch.ops.aten.mkldnn_rnn_layer_backward: _lstm_backward_flop,
}
"""Operators that torch's counter does not know: a layer of nn.LSTM in float32."""
