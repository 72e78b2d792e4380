"""Dropout whose masks are keyed: the same in every engine, lane, thread and order of clients.

torch draws masks from one stream that lanes and threads would share. Here each number of a mask is a hash of (seed,
round, client, step, call within the step, position in the tensor), in integer arithmetic that is mapped, traced and
compiled like the rest of a step. Users write `nn.Dropout`, `F.dropout`, `nn.MultiheadAttention` or
`F.scaled_dot_product_attention` with a dropout of its own, or `nn.LSTM` and `nn.GRU` with dropout between their layers:
inside a step these call this file.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FIRST, _SECOND = 0x21F0AAAD, 0x735A2D97
"""Multipliers of a published 32-bit mixing function with little bias; products wrap around at 2**32."""
_CALL = 0x1E3779B1
"""An odd multiplier, so that every call within a step has another word."""


class KeyedDropout(TorchFunctionMode):
    """Inside the mode, torch's dropout draws its masks from a key; layers that draw otherwise still use torch's stream.

    Rows are the first dimension of a tensor, as everywhere in a batch: so padding changes no real row's mask.

    Args:
        key: one 64-bit number for a step of a client; no dimensions.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.calls = 0
        """Number of masks drawn so far."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """torch calls this instead of each of its functions."""
        drop = _DROPS.get(func)
        return func(*args, **(kwargs or {})) if drop is None else drop(self, *args, **(kwargs or {}))

    def numbers(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """F.dropout: every number is set to zero with probability p, or scaled."""
        return self._dropped(x, x.shape, p, training, inplace)

    def channels(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """F.dropout1d and F.dropout2d: whole channels of (rows, channels, …)."""
        if x.dim() < 3:  # one row without its dimension
            return F.dropout1d(x, p, training, inplace)
        return self._dropped(x, (*x.shape[:2], *[1] * (x.dim() - 2)), p, training, inplace)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """F.scaled_dot_product_attention: every attention weight is set to zero with probability p, or scaled."""
        if dropout_p == 0:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:  # several heads of the query share one of key and value
            shared = query.shape[-3] // key.shape[-3]
            key, value = (part.repeat_interleave(shared, -3) for part in (key, value))
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            is_hidden = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if is_hidden else scores + attn_mask
        weights = scores.softmax(-1)
        return self._dropped(weights, weights.shape, dropout_p, True, False) @ value

    def heads(self, *args: Any, **kwargs: Any) -> Any:
        """F.multi_head_attention_forward, which torch runs without the mode: with this file's functions inside it."""
        replaced = {
            "has_torch_function": lambda _: False,
            "dropout": partial(KeyedDropout.numbers, self),
            "scaled_dot_product_attention": partial(KeyedDropout.attention, self),
        }
        torchs = F.multi_head_attention_forward
        ours = FunctionType(torchs.__code__, torchs.__globals__ | replaced, torchs.__name__, torchs.__defaults__)
        return ours(*args, **kwargs)

    def layers(self, function: Callable[..., Any], *args: Any) -> Any:
        """torch.lstm and the like: what goes from layer to layer is dropped out; each layer is torch's own."""
        x, first, weights, has_biases, count, p, training, *form = args
        if not isinstance(has_biases, bool) or not training or p == 0 or count == 1:  # not a bool: a packed sequence
            return function(*args)
        bidirectional, batch_first = form
        directions, own, last = 1 + bidirectional, len(weights) // count, []
        for layer in range(count):
            if layer > 0:
                rows_first = x if batch_first else x.transpose(0, 1)
                dropped = self.numbers(rows_first, p)
                x = dropped if batch_first else dropped.transpose(0, 1)
            states = [state[layer * directions : (layer + 1) * directions] for state in _listed(first)]
            begin: Any = states if isinstance(first, list | tuple) else states[0]
            part = weights[layer * own : (layer + 1) * own]
            x, *ends = function(x, begin, part, has_biases, 1, 0.0, training, bidirectional, batch_first)
            last.append(ends)
        return (x, *(torch.cat(ends) for ends in zip(*last, strict=True)))

    def _dropped(self, x: Tensor, shape: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        if not training or p == 0:
            return x
        scale = x.new_zeros(()) if p == 1 else self.mask(shape, p, x.device).to(x.dtype) / (1 - p)
        return x.mul_(scale) if inplace else x * scale

    def mask(self, shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
        """A new mask in every call: True for numbers that are kept, each with probability 1 - p."""
        low, high = self.key.to(torch.int32), (self.key >> 32).to(torch.int32)
        call = (self.calls * _CALL) & 0x7FFFFFFF
        self.calls += 1
        position = torch.arange(prod(shape), dtype=torch.int32, device=device).view(shape)
        return _mixed(_mixed(position + low) ^ high ^ call) >= round(p * 2**32) - 2**31


def _mixed(x: Tensor) -> Tensor:
    """Scramble 32-bit numbers: every output bit depends on every input bit. Bit masks make the shifts unsigned.

    int32, because processors multiply vectors of these but not of 64-bit numbers: 7 instead of 60 µs for 6,400 numbers.
    """
    x = (x ^ ((x >> 16) & 0xFFFF)) * _FIRST
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _SECOND
    return x ^ ((x >> 15) & 0x1FFFF)


def _listed(states: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return [states] if isinstance(states, Tensor) else states


def _layers_of(function: Callable[..., Any], mode: KeyedDropout, *args: Any) -> Any:
    return mode.layers(function, *args)


_DROPS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.dropout: KeyedDropout.numbers,
    F.dropout1d: KeyedDropout.channels,
    F.dropout2d: KeyedDropout.channels,
    F.scaled_dot_product_attention: KeyedDropout.attention,
    F.multi_head_attention_forward: KeyedDropout.heads,
    torch.lstm: partial(_layers_of, torch.lstm),
    torch.gru: partial(_layers_of, torch.gru),
    torch.rnn_tanh: partial(_layers_of, torch.rnn_tanh),
    torch.rnn_relu: partial(_layers_of, torch.rnn_relu),
}
