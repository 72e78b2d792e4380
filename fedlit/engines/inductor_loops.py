"""Loops of compiled programs without tensor objects.

Inductor's C++ makes a tensor for every buffer and every input of a loop's body, in every iteration. On a small net that
takes as long as the arithmetic. If a body consists of kernels that take pointers, its buffers can be pieces of memory
that are kept from one iteration to the next.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal

from fedlit.engines.matmul import MOVED, PRODUCT, TURNED, TYPES, Factors
from fedlit.engines.recurrence import KEPT, RECURRED, RECURRED_BACK, SLOPES

Loops = Literal["lean", "inductor"]
"""Which loops, products and convolutions a program has: fedlit's, which are written here, or torch's."""

HEADERS = tuple(Path(__file__).with_name(name) for name in ("products.h", "recurrence.h", "inductor_loops.h"))
"""Parts of every program with a loop."""
OVERRIDDEN = (
    "codegen_reinterpret_view",
    "codegen_subgraph_prefix",
    "codegen_subgraph_suffix",
    "codegen_while_loop",
    "create",
    "make_buffer_allocation",
    "make_buffer_free",
    "make_buffer_reuse",
    "write_header",
)
"""Methods of Inductor's writer that are replaced."""

LIGHTLY_OPTIMISED = """
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("O1"))) void inductor_entry_impl(AtenTensorHandle*, AtenTensorHandle*);
#endif
"""
"""With -O3, g++ takes minutes for a function that owns thousands of tensors. The arithmetic is in other functions."""


@cache
def written_out() -> dict[Any, type[Any]]:
    """The operators of `matmul.py` and `recurrence.py` -> their nodes of Inductor, which is imported on demand."""
    from fedlit.engines.inductor_nodes import ExternKernelOut, FixedLayout, TensorBox

    class WrittenOut(ExternKernelOut):
        """A call of a function of `inductor_loops.h`, with all sizes and strides as constants."""

        @classmethod
        def of(cls, size: Sequence[Any], *inputs: Any, constants: Sequence[Any] = ()) -> Any:
            """A node with a result of this size."""
            layout = FixedLayout(inputs[0].get_device(), inputs[0].get_dtype(), list(size))
            return TensorBox.create(cls(layout, list(inputs), constants))

        def write(self, wrapper: Any, function: str, numbers: Sequence[Any], *, at_runtime: bool = False) -> None:
            """One line of C++: the numbers are constants of the function, or its first arguments."""
            kind = TYPES[self.get_dtype()]
            inputs: Any = self.inputs
            read = [f"(const {kind}*){x.get_name()}.data_ptr() + {x.get_layout().offset}" for x in inputs]
            listed = [str(int(number)) for number in numbers]
            form, first = ([kind], listed) if at_runtime else ([kind, *listed], [])
            arguments = [*first, *read, f"({kind}*){self.get_name()}.data_ptr()"]
            wrapper.writeline(f"{function}<{', '.join(form)}>({', '.join(arguments)});")

    class Product(WrittenOut):
        """A product of two matrices, or of two stacks of them."""

        @classmethod
        def create(cls, a: Any, b: Any) -> Any:
            """The node of `matmul.PRODUCT`."""
            a, b = cls.realize_input(a), cls.realize_input(b)
            return cls.of([*a.get_size()[:-1], b.get_size()[-1]], a, b)

        def codegen(self, wrapper: Any) -> None:
            """See `inductor_loops.h`; a single matrix is a stack of one."""
            factors: Any = self.inputs
            a, b = factors
            (*lanes, rows, inner), columns = a.get_size(), b.get_size()[-1]
            strides = [*a.get_stride(), *b.get_stride()] if lanes else [0, *a.get_stride(), 0, *b.get_stride()]
            numbers = [*(lanes or [1]), rows, columns, inner, *strides]
            is_large = Factors.of(a, b).are_large
            self.write(wrapper, "large_products" if is_large else "product", numbers, at_runtime=is_large)

    class Moved(WrittenOut):
        """x - rate * a b."""

        @classmethod
        def create(cls, x: Any, rate: Any, a: Any, b: Any) -> Any:
            """The node of `matmul.MOVED`."""
            x, rate, a, b = cls.require_contiguous(x), *(cls.realize_input(part) for part in (rate, a, b))
            return cls.of(x.get_size(), x, rate, a, b)

        def codegen(self, wrapper: Any) -> None:
            """See `inductor_loops.h`."""
            inputs: Any = self.inputs
            _, _, a, b = inputs
            (rows, inner), columns = a.get_size(), b.get_size()[-1]
            is_large = Factors.of(a, b).are_large
            strides = [*a.get_stride(), *(b.get_stride() if is_large else b.get_stride()[:1])]
            numbers = [rows, columns, inner, *strides]
            self.write(wrapper, "large_moved" if is_large else "moved", numbers, at_runtime=is_large)

    class Turned(WrittenOut):
        """The transpose of a matrix."""

        @classmethod
        def create(cls, x: Any) -> Any:
            """The node of `matmul.TURNED`."""
            x = cls.require_contiguous(x)
            return cls.of(x.get_size()[::-1], x)

        def codegen(self, wrapper: Any) -> None:
            """See `inductor_loops.h`."""
            inputs: Any = self.inputs
            self.write(wrapper, "turned", inputs[0].get_size())

    class Steps(WrittenOut):
        """The steps of a recurrent layer; the last argument is the kind of layer."""

        @classmethod
        def create(cls, x: Any, h0: Any, c0: Any, w: Any, bias: Any, kind: int) -> Any:
            """The node of `recurrence.RECURRED`."""
            inputs = [cls.require_contiguous(part) for part in (x, h0, c0, w, bias)]
            (steps, rows), size = x.get_size()[:2], w.get_size()[1]
            return cls.of([steps, rows, KEPT[kind] * size], *inputs, constants=(steps, rows, size, kind))

        def codegen(self, wrapper: Any) -> None:
            """See `recurrence.h`."""
            self.write(wrapper, "fedlit::recur", self.constant_args, at_runtime=True)

    class StepsBack(WrittenOut):
        """Back through them."""

        @classmethod
        def create(cls, slope: Any, cell: Any, states: Any, h0: Any, c0: Any, w: Any, kind: int) -> Any:
            """The node of `recurrence.RECURRED_BACK`."""
            inputs = [cls.require_contiguous(part) for part in (slope, cell, states, h0, c0, w)]
            (steps, rows), size = states.get_size()[:2], w.get_size()[1]
            return cls.of([steps + 1, rows, SLOPES[kind] * size], *inputs, constants=(steps, rows, size, kind))

        def codegen(self, wrapper: Any) -> None:
            """See `recurrence.h`."""
            self.write(wrapper, "fedlit::recur_back", self.constant_args, at_runtime=True)

    return {PRODUCT: Product, MOVED: Moved, TURNED: Turned, RECURRED: Steps, RECURRED_BACK: StepsBack}


@cache
def lean_wrapper() -> type[Any]:
    """Inductor's writer of C++ programs, with loops on plain memory where that is possible."""
    from fedlit.engines.inductor_nodes import (
        ComputedBuffer,
        CppWrapperCpu,
        EnterSubgraphLine,
        ExitSubgraphLine,
        NopKernel,
        carried_names,
    )

    def size_of(buffer: Any) -> int:
        """Bytes from a buffer's first number to its last, also if it is a part of a larger tensor."""
        last = sum((size - 1) * stride for size, stride in zip(buffer.get_size(), buffer.get_stride(), strict=True))
        return max(int(last) + 1, 0) * int(buffer.get_dtype().itemsize)

    class LeanWrapper(CppWrapperCpu):
        """A loop whose body and condition only take pointers runs on `Plain` memory; Inductor writes any other loop."""

        def __init__(self) -> None:
            self.plain: dict[Any, str] = {}
            """Graphs on plain memory -> the name of their memory."""
            self.slots = count()
            super().__init__()

        @staticmethod
        def create(*_: Any, **__: Any) -> "LeanWrapper":
            """Inductor makes its writers by this method."""
            return LeanWrapper()

        def write_header(self) -> None:
            """Inductor's header, then ours."""
            super().write_header()
            for header in HEADERS:
                self.header.splice(header.read_text())

        def codegen_while_loop(self, while_loop: Any, stack_output: bool = False) -> None:
            """Carried values are copied once before the loop and once after it."""
            condition, body = while_loop.cond_subgraph, while_loop.body_subgraph
            nodes = [*condition.graph.operations, *body.graph.operations]
            if not all(isinstance(node, (ComputedBuffer, NopKernel, *written_out().values())) for node in nodes):
                self.header.splice(LIGHTLY_OPTIMISED)
                super().codegen_while_loop(while_loop, stack_output)
                return
            memory = f"{while_loop.get_name()}_memory"
            self.plain |= {condition.graph: memory, body.graph: memory}
            names = carried_names(self, while_loop)
            carried = [f"{name}_carried" for name in names]
            fixed = [f"{memory}_fixed{number}" for number in range(len(while_loop.additional_inputs))]
            initial = [buffer.codegen_reference() for buffer in while_loop.carried_inputs]
            self.writeline(f"static thread_local Memory {memory};")
            for inner, outer, buffer in zip(carried, initial, while_loop.carried_inputs, strict=True):
                copied = f"{next(self.slots)}, {size_of(buffer)}, {outer}.data_ptr()"
                self.writeline(f"Plain {inner} = {memory}.copy({copied});")
            for inner, buffer in zip(fixed, while_loop.additional_inputs, strict=True):
                self.writeline(f"const Plain {inner}{{(char*){buffer.codegen_reference()}.data_ptr(), 0, 0}};")
            self.writeline("while (1) {")
            self.codegen_part(condition, [*carried, *fixed], lambda made: f"if (!*(bool*){made[0]}.data_ptr()) break;")
            self.codegen_part(body, [*carried, *fixed], lambda made: carry(memory, carried, made))
            self.writeline("}")
            for name, inner, outer in zip(names, carried, initial, strict=True):
                self.writeline(f"RAIIAtenTensorHandle {name}(as_tensor({inner}, {outer}));")

        def codegen_part(self, part: Any, inputs: Sequence[str], ends: Callable[[list[str]], str]) -> None:
            """Write the condition or the body, then the line that `ends` makes of its results."""
            self.writeline(EnterSubgraphLine(self, part.graph))
            self.codegen_subgraph(part, inputs, ends)
            self.writeline(ExitSubgraphLine(self))

        def codegen_subgraph_prefix(self, subgraph: Any, outer_inputs: Any, outer_outputs: Any) -> None:
            """The inputs are new names for the same memory."""
            if subgraph.graph not in self.plain:
                super().codegen_subgraph_prefix(subgraph, outer_inputs, outer_outputs)
                return
            for inner, outer in zip(subgraph.graph.graph_inputs, outer_inputs, strict=True):
                self.writeline(f"const Plain {inner} = {outer};")

        def codegen_subgraph_suffix(self, subgraph: Any, outer_inputs: Any, outer_outputs: Any) -> None:
            """For plain memory, `outer_outputs` is a function of the results; Inductor passes their names."""
            if subgraph.graph not in self.plain:
                super().codegen_subgraph_suffix(subgraph, outer_inputs, outer_outputs)
                return
            self.writeline(outer_outputs([made.codegen_reference() for made in subgraph.graph.graph_outputs]))

        @property
        def own_memory(self) -> str | None:
            """The name of the plain memory of the graph that is being written, or None."""
            return self.plain.get(self.get_codegened_graph())

        def make_buffer_allocation(self, buffer: Any) -> str:
            """Every buffer has its own piece of memory."""
            if self.own_memory is None:
                return str(super().make_buffer_allocation(buffer))
            return f"const Plain {buffer.get_name()} = {self.own_memory}.piece({next(self.slots)}, {size_of(buffer)});"

        def make_buffer_free(self, buffer: Any) -> str:
            """Plain memory is never freed."""
            return str(super().make_buffer_free(buffer)) if self.own_memory is None else ""

        def make_buffer_reuse(self, old: Any, new: Any, delete_old: bool) -> str:
            """The same piece of memory, for any shape."""
            if self.own_memory is None:
                return str(super().make_buffer_reuse(old, new, delete_old))
            return f"const Plain {new.get_name()} = {old.get_name()};"

        def codegen_reinterpret_view(
            self, data: Any, size: Any, stride: Any, offset: Any, writeline: Any, dtype: Any = None
        ) -> str:
            """The same piece of memory, from an offset on."""
            if self.own_memory is None:
                return str(super().codegen_reinterpret_view(data, size, stride, offset, writeline, dtype))
            return f"{data.get_name()}.from({int(offset) * int(data.get_dtype().itemsize)})"

    check_overridden(LeanWrapper, CppWrapperCpu)
    return LeanWrapper


def check_overridden(ours: type[Any], theirs: type[Any]) -> None:
    """Fail if Inductor has renamed a method that we replace: ours would silently not be called."""
    lost = sorted(name for name in OVERRIDDEN if not (name in vars(ours) and hasattr(theirs, name)))
    if lost:
        raise AttributeError(f"Inductor's writer of C++ has no {', '.join(lost)}")


def carry(memory: str, carried: Sequence[str], made: Sequence[str]) -> str:
    """C++ that makes the results of an iteration the inputs of the next one."""
    return " ".join(f"{memory}.carry({inner}, {result});" for inner, result in zip(carried, made, strict=True))
