"""Products of small matrices in compiled programs: a call of a library takes longer than the product itself.

While a program is traced, torch's products are replaced by an operator of our own (`PRODUCTS`), which the compiler
writes out with all sizes as constants (`lean.h`). Large ones stay torch's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOST_TERMS, MOST_NUMBERS = 250_000, 32_768
"""Multiplications in a product of two matrices up to which ours is faster than a library's, and numbers of the second
matrix, which may be copied onto a thread's stack."""

_LIBRARY = torch.library.Library("fedlit_products", "DEF")  # type: ignore[no-untyped-call]  # torch's
_DECLARED: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "product": ("(Tensor a, Tensor b) -> Tensor", lambda a, b: a.new_empty(*a.shape[:-1], b.shape[-1])),
    "held": ("(Tensor x) -> Tensor", torch.empty_like),
}
"""Arguments of each operator, and an empty tensor of its result's shape. They exist in compiled programs alone."""
for _name, (_arguments, _shaped) in _DECLARED.items():
    _LIBRARY.define(_name + _arguments)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"fedlit_products::{_name}", _shaped, lib=_LIBRARY)

PRODUCT = torch.ops.fedlit_products.product.default
"""(lanes, rows, inner) times (lanes, inner, columns)."""
HELD = torch.ops.fedlit_products.held.default
"""Its argument, which is written to memory."""


def _is_small(a: Tensor, b: Tensor) -> bool:
    numbers = b.shape[-2] * b.shape[-1]
    fits = 0 < numbers <= MOST_NUMBERS and 0 < a.shape[-2] * numbers <= MOST_TERMS
    return fits and a.dtype in (torch.float32, torch.float64)


def bmm(a: Tensor, b: Tensor) -> Any:
    """aten.bmm."""
    return PRODUCT(a, b) if _is_small(a, b) else NotImplemented


def mm(a: Tensor, b: Tensor) -> Any:
    """aten.mm."""
    return PRODUCT(a[None], b[None])[0] if _is_small(a, b) else NotImplemented


def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """aten.addmm."""
    if not _is_small(a, b):
        return NotImplemented
    product = mm(a, b) if alpha == 1 else alpha * mm(a, b)
    return (c if beta == 1 else beta * c) + product


PRODUCTS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.bmm.default: bmm,
    torch.ops.aten.mm.default: mm,
    torch.ops.aten.addmm.default: addmm,
}
"""What stands for torch's operators while a program is traced."""
