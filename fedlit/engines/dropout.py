"""Dropout whose masks are keyed: the same in every engine, lane, thread and order of clients.

torch draws masks from one stream that lanes and threads would share. Here a number of a mask is a hash of (seed, round,
client, step, call of the step, place in the tensor), in integer arithmetic that is mapped, traced and compiled like the
rest of a step. Users keep `nn.Dropout` and `F.dropout`: inside a step, torch's own functions come here.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FIRST, _SECOND = 0x21F0AAAD, 0x735A2D97
"""Multipliers of a published 32-bit mixing function with little bias; products wrap around at 2**32."""
_CALL = 0x1E3779B1
"""Odd: every call of a step has another word."""


class KeyedDropout(TorchFunctionMode):
    """Inside, dropout of torch draws its masks from a key. Layers that draw in another way still use torch's stream.

    Rows come first in what is dropped, as everywhere in a batch: so padding changes no real row's mask.

    Args:
        key: one 64-bit number for a step of a client; no dimensions.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.calls = 0
        """Masks that were drawn so far."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """torch calls this in place of each of its functions."""
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

    def _dropped(self, x: Tensor, shape: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        if not training or p == 0:
            return x
        scale = x.new_zeros(()) if p == 1 else self.mask(shape, p, x.device).to(x.dtype) / (1 - p)
        return x.mul_(scale) if inplace else x * scale

    def mask(self, shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
        """True for what is kept, each with probability 1 - p; another one in every call."""
        low, high = self.key.to(torch.int32), (self.key >> 32).to(torch.int32)
        call = (self.calls * _CALL) & 0x7FFFFFFF
        self.calls += 1
        place = torch.arange(prod(shape), dtype=torch.int32, device=device).view(shape)
        return _mixed(_mixed(place + low) ^ high ^ call) >= round(p * 2**32) - 2**31


def _mixed(x: Tensor) -> Tensor:
    """A 32-bit number scrambled: every bit of the answer depends on every bit. Shifts are made unsigned by a mask.

    int32, because processors multiply these in vectors and 64-bit numbers not: 7 instead of 60 µs for a mask of 6,400.
    """
    x = (x ^ ((x >> 16) & 0xFFFF)) * _FIRST
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _SECOND
    return x ^ ((x >> 15) & 0x1FFFF)


_DROPS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.dropout: KeyedDropout.numbers,
    F.dropout1d: KeyedDropout.channels,
    F.dropout2d: KeyedDropout.channels,
}
