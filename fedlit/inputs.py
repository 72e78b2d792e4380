"""Inputs: x of a batch is one tensor, or several that have a row for each sample; and how a net is called with them.

Several tensors are a dict, which goes to the net as keyword arguments, net(**x), or a tuple, net(*x). In a store they
are `x.input_ids`, `x.attention_mask` …, or `x.0`, `x.1` …; one tensor is `x`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
"""x of a batch."""
_ONE = "x"


# ---- one tensor or several ---------------------------------------------------------------------------------------


def mapped(function: Callable[[Tensor], Tensor], x: Inputs) -> Any:
    """The function's value for each tensor, in the form of x: for one tensor, one."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, dict):
        return {name: function(value) for name, value in x.items()}
    return tuple(function(value) for value in x)


def tensors(x: Inputs) -> list[Tensor]:
    """All tensors of x."""
    return [x] if isinstance(x, Tensor) else [*(x.values() if isinstance(x, dict) else x)]


def like(x: Inputs, values: Sequence[Tensor]) -> Inputs:
    """These tensors in the form of x: the inverse of `tensors`."""
    if isinstance(x, Tensor):
        return values[0]
    return dict(zip(x, values, strict=True)) if isinstance(x, dict) else tuple(values)


def split(x: Inputs, sizes: int | list[int], dim: int = 0) -> list[Inputs]:
    """x in pieces along a dimension, as torch.split."""
    pieces = zip(*(torch.split(value, sizes, dim) for value in tensors(x)), strict=True)
    return [like(x, piece) for piece in pieces]


def joined(parts: Sequence[Inputs]) -> Inputs:
    """The rows of several x, one after the other."""
    return like(parts[0], [torch.cat(values) for values in zip(*map(tensors, parts), strict=True)])


def repeated(sample: Inputs, rows: int) -> Any:
    """A batch with so many rows, all of them this sample."""
    return mapped(lambda value: value.unsqueeze(0).expand(rows, *value.shape), sample)


def in_dtype(x: Inputs, dtype: torch.dtype) -> Inputs:
    """x with its floating-point numbers in a format."""
    converted: Inputs = mapped(lambda value: value.to(dtype) if value.is_floating_point() else value, x)
    return converted


def shapes(x: Inputs) -> str:
    """The shape of a sample in words."""
    if isinstance(x, Tensor):
        return f"shape {tuple(x.shape[1:])}"
    named = stored(x)
    return f"shapes {', '.join(f'{_key(name)} {tuple(value.shape[1:])}' for name, value in named.items())}"


# ---- in a store ----------------------------------------------------------------------------------------------------


def stored(x: Inputs) -> dict[str, Tensor]:
    """The entries of x in a store."""
    if isinstance(x, Tensor):
        return {_ONE: x}
    pairs = x.items() if isinstance(x, dict) else enumerate(x)
    return {f"{_ONE}.{name}": value for name, value in pairs}


def in_store(store: Mapping[str, Tensor]) -> Inputs:
    """x of all rows of a store: the inverse of `stored`."""
    if _ONE in store:
        return store[_ONE]
    several = {_key(name): value for name, value in store.items() if name.startswith(f"{_ONE}.")}
    return tuple(several.values()) if all(name.isdigit() for name in several) else several


def _key(name: str) -> str:
    return name.removeprefix(f"{_ONE}.")


# ---- a net ---------------------------------------------------------------------------------------------------------


def call(net: nn.Module, x: Inputs) -> Any:
    """The net's output for x."""
    if isinstance(x, Tensor):
        return logits(net(x))
    return logits(net(**x) if isinstance(x, dict) else net(*x))


def call_with(net: nn.Module, tensors: Mapping[str, Tensor], x: Inputs, *, tie_weights: bool = True) -> Any:
    """The net's output for x, with these parameters and buffers in place of its own."""
    args, named = arguments(x)
    return logits(functional_call(net, dict(tensors), args, named, tie_weights=tie_weights))


def arguments(x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The positional and the keyword arguments of a net's call."""
    if isinstance(x, Tensor):
        return (x,), {}
    return ((), x) if isinstance(x, dict) else (x, {})


def logits(output: Any) -> Any:
    """The output itself, or its `logits` if it is an object or a dict that has them, as nets of transformers give."""
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return output if named is None else named
