"""Matrix products in compiled programs, written with all sizes as constants (`inductor_loops.h`).

While a program is traced, our operator replaces torch's (`stand_ins`) where it is faster: for small matrices, where
calling a library takes longer than the product itself, and where the rows of the second matrix are contiguous. A step
on a layer's weights, x - rate * a b, becomes one operator, so that the product is not written to memory (`join_step`).
For both, large weights are kept transposed ("turned") while a client trains (`are_turned`). Programs with convolutions
only replace small products: the others were slower there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST_TERMS, MOST_NUMBERS = 250_000, 32_768
"""Most multiplications of a product for which ours is faster than a library's, and most numbers of its second matrix,
which may be copied onto a thread's stack."""
MOST_TERMS_BESIDE, LEAST_COLUMNS = 8_000_000, 16
"""The same if each row of the second matrix is contiguous, and its fewest columns: the numbers of the widest vector."""

TYPES = {torch.float32: "float", torch.float64: "double"}
"""Supported number formats -> their names in C++."""

LEAST_ROWS = 16
"""Rows of the first matrix from which it pays to pack the second, whatever their sizes."""


class Factors(NamedTuple):
    """The sizes of a product, and the distance between neighbours in a row of the second matrix."""

    rows: int
    inner: int
    columns: int
    step: int

    @classmethod
    def of(cls, a: Any, b: Any) -> "Factors":
        """Of nodes of Inductor."""
        (rows, inner), columns = a.get_size()[-2:], b.get_size()[-1]
        return cls(*(int(number) for number in (rows, inner, columns, b.get_stride()[-1])))

    @property
    def are_small(self) -> bool:
        """Whether the product is written out whatever lies where."""
        numbers = self.inner * self.columns
        return numbers <= MOST_NUMBERS and self.rows * numbers <= MOST_TERMS

    @property
    def lie_beside(self) -> bool:
        """Whether it is written out because rows of the second matrix are contiguous."""
        terms = self.rows * self.inner * self.columns
        return self.step == 1 and self.columns >= LEAST_COLUMNS and terms <= MOST_TERMS_BESIDE

    @property
    def are_large(self) -> bool:
        """Whether the second matrix is packed first (`products.h`)."""
        return not (self.are_small or self.lie_beside)


_LIBRARY = torch.library.Library("fedlit_products", "DEF")  # type: ignore[no-untyped-call]  # torch's
_DECLARED: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "product": ("(Tensor a, Tensor b) -> Tensor", lambda a, b: a.new_empty(*a.shape[:-1], b.shape[-1])),
    "moved": ("(Tensor x, Tensor rate, Tensor a, Tensor b) -> Tensor", lambda x, rate, a, b: torch.empty_like(x)),
    "turned": ("(Tensor x) -> Tensor", lambda x: x.new_empty(x.shape[1], x.shape[0])),
    "held": ("(Tensor x) -> Tensor", torch.empty_like),
}
"""Arguments of each operator, and a function that makes an empty tensor of its result's shape. The operators exist only
in compiled programs."""
for _name, (_arguments, _shaped) in _DECLARED.items():
    _LIBRARY.define(_name + _arguments)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"fedlit_products::{_name}", _shaped, lib=_LIBRARY)

_LIBRARY.impl("turned", lambda x: x.t().contiguous(), "CPU")  # type: ignore[no-untyped-call]  # for example tensors

PRODUCT = torch.ops.fedlit_products.product.default
"""([lanes,] rows, inner) times ([lanes,] inner, columns)."""
MOVED = torch.ops.fedlit_products.moved.default
"""x - rate * a b for a matrix x."""
TURNED = torch.ops.fedlit_products.turned.default
"""The transpose of a matrix, written to memory."""
HELD = torch.ops.fedlit_products.held.default
"""Its argument, written to memory."""


def stand_ins(*, beside: bool) -> dict[Any, Callable[..., Any]]:
    """torch's operators -> their replacements while a program is traced.

    Args:
        beside: also replace larger products if the rows of the second matrix are contiguous.
    """

    def is_ours(a: Tensor, b: Tensor) -> bool:
        if a.dtype not in TYPES or not a.numel() or not b.numel():
            return False
        (rows, inner), (columns, step) = a.shape[-2:], (b.shape[-1], b.stride(-1))
        factors = Factors(rows, inner, columns, step)
        return factors.are_small or (beside and (factors.lie_beside or factors.rows >= LEAST_ROWS))

    def product(a: Tensor, b: Tensor) -> Any:
        return PRODUCT(a, b) if is_ours(a, b) else NotImplemented

    def sum_with_product(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        if not is_ours(a, b):
            return NotImplemented
        scaled = PRODUCT(a, b) if alpha == 1 else alpha * PRODUCT(a, b)
        return (c if beta == 1 else beta * c) + scaled

    aten = torch.ops.aten
    return {aten.bmm.default: product, aten.mm.default: product, aten.addmm.default: sum_with_product}


def is_matrix(value: Tensor) -> bool:
    """Whether our operators can take the tensor."""
    return value.dim() == 2 and value.dtype in TYPES


def are_turned(weights: Tensor, rows: int) -> bool:
    """Whether a layer's weights (out, in) are kept transposed as (in, out), for batches of `rows` rows.

    Then x W^T reads them, and a step writes them, in the order of memory. For small weights the order does not matter.
    """
    return min(weights.shape) >= LEAST_COLUMNS and MOST_TERMS < rows * weights.numel() <= MOST_TERMS_BESIDE


def prepare_steps(graph: torch.fx.Graph) -> None:
    """Compute gradients of turned weights turned, and make a step of SGD, x - rate * a b, one operator."""
    turn_gradients(graph)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sub.Tensor):
        join_step(node)
    graph.eliminate_dead_code()


def turn_gradients(graph: torch.fx.Graph) -> None:
    """Rewrite (a b)^T^T, as torch has a layer's gradient, to (b^T a^T)^T if the weights are returned turned."""
    returned = graph.output_node().all_input_nodes
    shapes = {_value(_turned(node)).shape for node in returned if _turned(node) is not None}
    for product in graph.find_nodes(op="call_function", target=PRODUCT):
        again = _only_user(_only_user(product))
        if again is None or _turned(_turned(again)) is not product or _value(product).shape not in shapes:
            continue
        a, b = product.args
        with graph.inserting_before(product):
            turned = _call(PRODUCT, _call(_T, b), _call(_T, a))
            again.replace_all_uses_with(_call(_T, turned))


def join_step(node: torch.fx.Node) -> None:
    """Make x - rate * a b one operator if nothing else reads the product, so that it is not written to memory."""
    arguments: Any = node.args
    x, scaled = arguments
    if node.kwargs or _calls(scaled) is not torch.ops.aten.mul.Tensor or _only_user(scaled) is None:
        return
    rate, gradient = scaled.args
    is_turned = _turned(gradient) is not None
    product = _turned(gradient) if is_turned else gradient
    if _calls(product) is not PRODUCT or _only_user(gradient) is None or _only_user(product) is None:
        return
    if not all(isinstance(part, torch.fx.Node) for part in (x, rate)):
        return
    weights, update, factor = _value(x), _value(product), _value(product.args[1])
    if not is_matrix(weights):
        return
    weights = weights.t() if is_turned else weights
    is_contiguous = weights.is_contiguous() and factor.stride(-1) == 1 and factor.shape[-1] >= LEAST_COLUMNS
    if weights.shape != update.shape or not is_contiguous:
        return
    if _value(rate).dim() or not weights.dtype == update.dtype == _value(rate).dtype:
        return
    with node.graph.inserting_before(node):
        moved = _call(MOVED, _call(_T, x) if is_turned else x, rate, *product.args)
        node.replace_all_uses_with(_call(_T, moved) if is_turned else moved)


_T = torch.ops.aten.t.default


def _value(node: Any) -> Tensor:
    value: Tensor = node.meta["val"]
    return value


def _calls(node: Any) -> Any:
    """The operator that a node calls, or None."""
    return node.target if isinstance(node, torch.fx.Node) and node.op == "call_function" else None


def _turned(node: Any) -> Any:
    """The node whose transpose this node is, or None."""
    return node.args[0] if _calls(node) is _T else None


def _only_user(node: Any) -> Any:
    """The only reader of a node, or None if it has none or several."""
    return next(iter(node.users)) if isinstance(node, torch.fx.Node) and len(node.users) == 1 else None


def _call(operator: Any, *args: torch.fx.Node) -> torch.fx.Node:
    """Insert a call into the graph of its first argument, at the current point of insertion."""
    made = args[0].graph.call_function(operator, args)
    made.meta["val"] = operator(*(_value(arg) for arg in args))
    return made
