"""Direct convolution for small nets: oneDNN's is made for many channels, and is slow with 1, 3 or 10.

From the first convolution to the last, pictures are kept with the samples innermost, (channels, height, width,
samples); `convolution.cpp` says why. Users write `nn.Conv2d` and `nn.MaxPool2d`: while a program is traced, torch's
operators are replaced by these (`DECOMPOSITIONS`), except where they do not fit.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SOURCE = Path(__file__).with_suffix(".cpp")
FEWEST_ROWS = 8
"""Rows of a batch that fill a vector of the CPU."""
_FLOATS = (torch.float32, torch.float64)
MOST_PRODUCTS = 300
"""Products for one output number (channels × kernel) up to which direct convolution is as fast; oneDNN wins at 800."""


class Convolution(NamedTuple):
    """The shapes of one convolution."""

    x: Sequence[int]
    weight: Sequence[int]
    transposed: bool
    groups: int

    @property
    def why_not(self) -> str | None:
        """Why torch's operators are better for this convolution, or None."""
        if len(self.x) != 4 or self.transposed or self.groups > 1:
            return "one is not a plain convolution of pictures"
        if self.x[0] < FEWEST_ROWS:
            return f"a batch has {self.x[0]} rows, fewer than {FEWEST_ROWS}"
        if prod(self.weight[1:]) > MOST_PRODUCTS:
            return f"one sums {prod(self.weight[1:]):,} products, more than {MOST_PRODUCTS}"
        return None


# ---- the operators ---------------------------------------------------------------------------------------------------


def _packed(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1:] + x.shape[:1])


def _packed_bytes(x: Tensor, like: Tensor) -> Tensor:
    return like.new_empty(x.shape[1:] + x.shape[:1])


def _taken(x: Tensor, index: Tensor) -> Tensor:
    return x.new_empty(index.shape + x.shape[1:])


def _convolved(x: Tensor, weight: Tensor, sy: int, sx: int, py: int, px: int, dy: int, dx: int, groups: int) -> Tensor:
    height = _positions(x.shape[1], weight.shape[2], sy, py, dy)
    return x.new_empty(weight.shape[0], height, _positions(x.shape[2], weight.shape[3], sx, px, dx), x.shape[3])


def _like_input(slope: Tensor, weight: Tensor, height: int, width: int, *geometry: int) -> Tensor:
    return slope.new_empty(weight.shape[1] * geometry[-1], height, width, slope.shape[3])


def _like_weight(slope: Tensor, x: Tensor, height: int, width: int, *geometry: int) -> Tensor:
    return x.new_empty(slope.shape[0], x.shape[0] // geometry[-1], height, width)


def _positions(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


_GEOMETRY = "int sy, int sx, int py, int px, int dy, int dx, int groups"
_DECLARED: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "pack": ("(Tensor x) -> Tensor", _packed),
    "forward": (f"(Tensor x, Tensor weight, {_GEOMETRY}) -> Tensor", _convolved),
    "grad_input": (f"(Tensor slope, Tensor weight, int height, int width, {_GEOMETRY}) -> Tensor", _like_input),
    "grad_weight": (f"(Tensor slope, Tensor x, int height, int width, {_GEOMETRY}) -> Tensor", _like_weight),
    "pack_bytes": ("(Tensor x, Tensor like) -> Tensor", _packed_bytes),
    "take": ("(Tensor x, Tensor index) -> Tensor", _taken),
}
"""Arguments of each operator, and an empty tensor of its result's shape."""
_LIBRARY = torch.library.Library("fedlit", "DEF")  # type: ignore[no-untyped-call]  # torch's


def library(declared: Mapping[str, tuple[str, Callable[..., Tensor]]]) -> tuple[Any, ...]:
    """Declare operators, of which torch knows names, arguments and shapes; a C++ file has the arithmetic."""
    for name, (arguments, shaped) in declared.items():
        _LIBRARY.define(name + arguments, tags=(torch.Tag.needs_contiguous_strides,))  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"fedlit::{name}", shaped, lib=_LIBRARY)
    return tuple(getattr(torch.ops.fedlit, name).default for name in declared)


OPERATORS = library(_DECLARED)
_pack, _forward, _grad_input, _grad_weight, _pack_bytes, _take = OPERATORS


# ---- torch's operators by these --------------------------------------------------------------------------------------


def _innermost(x: Tensor) -> Tensor:
    """(samples, channels, height, width) as (channels, height, width, samples), copied only if necessary."""
    turned = x.permute(1, 2, 3, 0)
    if turned.is_contiguous():
        return turned
    return _pack(x) if x.is_contiguous() else turned.contiguous()


def _outermost(x: Tensor) -> Tensor:
    return x.permute(3, 0, 1, 2)


def _computes(x: Tensor, transposed: bool) -> bool:
    """Whether the operators support this input; whether they are faster was decided for the whole net."""
    return x.dim() == 4 and not transposed and len(x) >= FEWEST_ROWS and x.dtype in _FLOATS


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """aten.convolution."""
    if not _computes(x, transposed):
        return NotImplemented
    out = _outermost(_forward(_innermost(x), weight.contiguous(), *stride, *padding, *dilation, groups))
    return out if bias is None else out + bias.view(1, -1, 1, 1)


def convolution_backward(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """aten.convolution_backward: the wanted ones of the gradients of input, weight and bias."""
    if not _computes(x, transposed):
        return NotImplemented
    geometry = (*stride, *padding, *dilation, groups)
    turned = _innermost(slope)
    of_x = _grad_input(turned, weight.contiguous(), *x.shape[2:], *geometry) if wanted[0] else None
    of_weight = _grad_weight(turned, _innermost(x), *weight.shape[2:], *geometry) if wanted[1] else None
    of_bias = slope.sum((0, 2, 3)) if wanted[2] else None
    return None if of_x is None else _outermost(of_x), of_weight, of_bias


class _Windows(NamedTuple):
    """Windows of a pool that do not overlap: `height` × `width` of them, each `down` × `right` large."""

    down: int
    right: int
    height: int
    width: int

    @classmethod
    def of(
        cls,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> "_Windows | None":
        """The windows of a pool; None if they overlap, have gaps or are padded: torch computes such pools."""
        down, right = _pair(kernel)
        apart = _pair(stride or kernel) == (down, right) and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
        if x.dim() != 4 or not apart or ceil_mode:
            return None
        return cls(down, right, x.shape[2] // down, x.shape[3] // right)

    def winners(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For x (channels, height, width, samples): the largest number of each window, and its index in the window.

        As in torch, the first of equal numbers wins, and NaN wins over all.
        """
        inside = x[:, : self.height * self.down, : self.width * self.right]
        best = inside[:, :: self.down, :: self.right]
        index = torch.zeros_like(best)
        for number, (i, j) in enumerate(product(range(self.down), range(self.right))):
            if number > 0:
                value = inside[:, i :: self.down, j :: self.right]
                better = (value > best) | (value != value)  # NaN: isnan() would not be vectorised
                best, index = torch.where(better, value, best), torch.where(better, number, index)
        return best, index

    def numbers(self, index: Tensor, width: int) -> Tensor:
        """Indices in a window as torch counts them: through the whole picture, which has this width."""
        top = torch.arange(self.height).view(1, -1, 1, 1) * self.down
        left = torch.arange(self.width).view(1, 1, -1, 1) * self.right
        index = index.long()
        return (top + index // self.right) * width + left + index % self.right

    def spread(self, slope: Tensor, winners: Tensor, height: int, width: int) -> Tensor:
        """Put a number of each window back at its index, in a picture of this size; all other pixels are zero."""
        number = torch.arange(self.down * self.right, dtype=winners.dtype).view(1, 1, self.down, 1, self.right, 1)
        index = winners[:, :, None, :, None]
        is_winner = (index >= number) & (index <= number)  # two reads: with one, Inductor computes the indices again
        whole = torch.where(is_winner, slope[:, :, None, :, None], 0).flatten(3, 4).flatten(1, 2)
        return F.pad(whole, (0, 0, 0, width - whole.shape[2], 0, height - whole.shape[1]))


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes[0], sizes[-1]


def max_pool(x: Tensor, *window: Any) -> Any:
    """aten.max_pool2d_with_indices; Inductor's own backward pass scatters in the order of torch's layout."""
    windows = _Windows.of(x, *window)
    if windows is None:
        return NotImplemented
    best, index = windows.winners(x.permute(1, 2, 3, 0))
    return _outermost(best), _outermost(windows.numbers(index, x.shape[3]))


def max_pool_backward(slope: Tensor, x: Tensor, *window: Any) -> Any:
    """aten.max_pool2d_with_indices_backward; computes the winners again, which is cheaper than storing them."""
    windows = _Windows.of(x, *window[:-1])
    if windows is None:
        return NotImplemented
    _, index = windows.winners(x.permute(1, 2, 3, 0))
    return _outermost(windows.spread(slope.permute(1, 2, 3, 0), index, *x.shape[2:]))


def view(x: Tensor, shape: Sequence[int]) -> Any:
    """aten.view of a tensor in our layout: a copy if it cannot be a view."""
    if x.is_contiguous() or _can_be_viewed(x, shape):
        return NotImplemented
    return x.contiguous().view(*shape)


def _can_be_viewed(x: Tensor, shape: Sequence[int]) -> bool:
    """Whether the shape only divides contiguous dimensions. Trying torch's own view would be traced."""
    pieces: list[int] = []
    end = 0  # the stride at which a dimension is contiguous with the one after it
    for size, stride in reversed([pair for pair in zip(x.shape, x.stride(), strict=True) if pair[0] != 1]):
        if pieces and stride == end:
            pieces[-1] *= size
        else:
            pieces.append(size)
        end = stride * size
    wanted = [size if size >= 0 else x.numel() // -prod(shape) for size in shape]
    for piece in pieces:
        while piece > 1 and wanted and piece % wanted[-1] == 0:
            piece //= wanted.pop()
        if piece > 1:
            return False
    return True


def index_select(x: Tensor, dim: int, index: Tensor) -> Any:
    """aten.index_select of pictures as bytes. Inductor computes their addresses again for every 8 pixels."""
    if not _are_bytes(x) or dim != 0 or index.dim() != 1 or index.dtype != torch.int64:
        return NotImplemented
    return _take(x, index)


def to_copy(x: Tensor, *, dtype: torch.dtype | None = None, **rest: Any) -> Any:
    """aten._to_copy: pictures as bytes -> floats, in the layout of convolutions.

    Inductor reads bytes through the stack; that, and `pack` after it, took half as long as LeNet's first convolution.
    """
    if not _are_bytes(x) or len(x) < FEWEST_ROWS or dtype not in _FLOATS or any(rest.values()):
        return NotImplemented
    return _outermost(_pack_bytes(x, torch.empty(0, dtype=dtype)))


def _are_bytes(x: Tensor) -> bool:
    return x.dim() == 4 and x.dtype == torch.uint8 and x.is_contiguous()


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: convolution,
    torch.ops.aten.convolution_backward.default: convolution_backward,
    torch.ops.aten.max_pool2d_with_indices.default: max_pool,
    torch.ops.aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    torch.ops.aten.view.default: view,
    torch.ops.aten.index_select.default: index_select,
}
"""torch's operators -> their replacements while a program is traced; NotImplemented keeps torch's own."""
