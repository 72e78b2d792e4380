"""Recurrent layers in compiled programs: nn.LSTM, nn.GRU and nn.RNN, with any layers, directions and dropout between.

torch's compiler would unroll them, which takes longer than most runs, and vmap has no rule for them. While a program is
traced, torch's functions are replaced by these (`WrittenOut`): the products with the input are torch's, and the steps
one after the other are two operators in C++ (`recurrence.cpp`). The eager form and other engines keep torch's own.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedlit.engines.convolution import library

SOURCE = Path(__file__).with_suffix(".cpp")
_LSTM, _GRU, _TANH, _RELU = range(4)
KEPT = {_LSTM: 6, _GRU: 5, _TANH: 1, _RELU: 1}
"""Vectors that a step keeps: LSTM i, f, g, o, c, h; GRU r, z, n, W h + b, h; else h."""
SLOPES = {_LSTM: 4, _GRU: 4, _TANH: 1, _RELU: 1}
"""Vectors that a step back gives."""
KINDS: dict[Callable[..., Any], int] = dict(
    zip((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), (_LSTM, _GRU, _TANH, _RELU), strict=True)
)
"""torch's functions of whole layers."""


def _states(x: Tensor, h0: Tensor, c0: Tensor, w: Tensor, bias: Tensor, kind: int) -> Tensor:
    return x.new_empty(*x.shape[:2], KEPT[kind] * w.shape[1])


def _slopes(slope: Tensor, cell: Tensor, states: Tensor, h0: Tensor, c0: Tensor, w: Tensor, kind: int) -> Tensor:
    return states.new_empty(len(states) + 1, states.shape[1], SLOPES[kind] * w.shape[1])


_DECLARED: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "recur": ("(Tensor x, Tensor h0, Tensor c0, Tensor w, Tensor bias, int kind) -> Tensor", _states),
    "recur_back": (
        "(Tensor slope, Tensor cell, Tensor states, Tensor h0, Tensor c0, Tensor w, int kind) -> Tensor",
        _slopes,
    ),
}
OPERATORS = library(_DECLARED)
_recur, _recur_back = OPERATORS
RECURRED, RECURRED_BACK = library({f"{name}_written_out": declared for name, declared in _DECLARED.items()})
"""The same as functions that a program of fedlit's own loops contains: a call of torch would need tensors."""
STAND_INS: dict[Any, Callable[..., Any]] = {_recur: RECURRED, _recur_back: RECURRED_BACK}
"""The operators -> their replacements while such a program is traced."""


class _Steps(torch.autograd.Function):
    """All steps of one direction of a layer: (steps, rows, …) the numbers that each step keeps, h last."""

    @staticmethod
    def forward(x: Tensor, h0: Tensor, c0: Tensor, w: Tensor, bias: Tensor, kind: int) -> Tensor:
        states: Tensor = _recur(*(value.contiguous() for value in (x, h0, c0, w, bias)), kind)
        return states

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.kind = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        _, h0, c0, w, _, states = ctx.saved_tensors
        kind, size = ctx.kind, w.shape[1]
        to_c = slope[-1, :, 4 * size : 5 * size] if kind == _LSTM else torch.zeros_like(h0)
        slopes = _applied(_Back, slope[..., -size:], to_c, states, h0, c0, w, kind)
        steps, last = slopes[:-1], slopes[-1]
        products = steps[..., : 3 * size] if kind == _GRU else steps  # slopes of the products with h
        to_w = products[0].t() @ h0
        if len(steps) > 1:
            to_w = to_w + products[1:].flatten(0, 1).t() @ states[:-1, :, -size:].flatten(0, 1)
        to_x = torch.cat([steps[..., : 2 * size], steps[..., 3 * size :]], -1) if kind == _GRU else steps
        to_bias = steps[..., 2 * size : 3 * size].sum((0, 1)) if kind == _GRU else None
        return to_x, last[:, :size], last[:, size : 2 * size] if kind == _LSTM else None, to_w, to_bias, None


class _Back(torch.autograd.Function):
    """The gradient of `_Steps`, which has none itself."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        *tensors, kind = inputs
        slopes: Tensor = _recur_back(*(value.contiguous() for value in tensors), kind)
        return slopes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        raise NotImplementedError(
            "the gradient of a gradient cannot be compiled through a recurrent layer; set trainer.compiled to false"
        )


def _applied(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    result: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]  # torch's
    return result


class WrittenOut(TorchFunctionMode):
    """Inside the mode, recurrent layers are the operators of this file, where they can compute them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """torch calls this instead of each of its functions."""
        kind = KINDS.get(func)
        if kind is None or kwargs or not isinstance(args[3], bool):  # a packed sequence has other arguments
            return func(*args, **(kwargs or {}))
        return layers(kind, *args)


def layers(
    kind: int,
    x: Tensor,
    first: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """As torch.lstm, torch.gru, torch.rnn_tanh and torch.rnn_relu; dropout between layers is KeyedDropout's."""
    h0, c0 = first if isinstance(first, list | tuple) else (first, first)
    x = x.transpose(0, 1) if batch_first else x
    directions, last_h, last_c = 2 if bidirectional else 1, [], []
    each = iter(weights)
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            states = one_direction(kind, x, h0[place], c0[place], each, has_biases, is_reversed=direction == 1)
            size = h0.shape[-1]
            outputs.append(states[..., -size:])
            end = 0 if direction == 1 else -1
            last_h.append(states[end, :, -size:])
            if kind == _LSTM:
                last_c.append(states[end, :, 4 * size : 5 * size])
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if layer < num_layers - 1 and dropout > 0 and train:
            x = F.dropout(x, dropout)
    output = x.transpose(0, 1) if batch_first else x
    return (output, torch.stack(last_h), torch.stack(last_c)) if kind == _LSTM else (output, torch.stack(last_h))


def one_direction(
    kind: int, x: Tensor, h0: Tensor, c0: Tensor, weights: Iterator[Tensor], has_biases: bool, *, is_reversed: bool
) -> Tensor:
    """(steps, rows, …) what the steps of one direction keep, in the order of time."""
    of_x, of_h = next(weights), next(weights)
    size = of_h.shape[1]
    if has_biases:
        bias, of_state = next(weights), next(weights)
        outside = of_state if kind != _GRU else torch.cat([of_state[: 2 * size], of_state.new_zeros(size)])
        products, inside = F.linear(x, of_x, bias + outside), of_state[-size:]
    else:
        products, inside = F.linear(x, of_x), of_h.new_zeros(size)
    if not is_reversed:
        return _applied(_Steps, products, h0, c0, of_h, inside, kind)
    return _applied(_Steps, products.flip(0), h0, c0, of_h, inside, kind).flip(0)


def why_not_written_out(net: nn.Module) -> str | None:
    """Which recurrent layer of the net the operators do not compute, or None."""
    for name, module in net.named_modules():
        if isinstance(module, nn.RNNBase) and module.proj_size > 0:
            return f"'{name}' of the net, a {type(module).__name__}, has a projection (proj_size): it is not compiled"
    return None


def has_recurrence(net: nn.Module) -> bool:
    """Whether the net has a recurrent layer."""
    return any(isinstance(module, nn.RNNBase) for module in net.modules())
