"""Loops of compiled programs without tensor objects: with `compiler.py` the only file with torch's private names.

Inductor's C++ makes a tensor for every buffer and every input of a loop's body, in every turn of the loop. On a small
net that takes as long as the arithmetic. Where a body consists of kernels that take pointers, its buffers can be pieces
of memory that are kept from turn to turn.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

HEADER = Path(__file__).with_suffix(".h")
_TYPES = {torch.float32: "float", torch.float64: "double"}


@cache
def small_product() -> type[Any]:
    """The product of two stacks of small matrices as a node of Inductor, which is imported on demand."""
    from torch._inductor import ir

    class SmallProduct(ir.ExternKernelOut):
        """A call of `small_product` in `lean.h`, with all sizes and strides as constants."""

        @classmethod
        def create(cls, a: Any, b: Any) -> Any:
            """The node of `products.PRODUCT`."""
            a, b = cls.realize_input(a), cls.realize_input(b)
            size = [*a.get_size()[:-1], b.get_size()[-1]]
            return ir.TensorBox.create(cls(ir.FixedLayout(a.get_device(), a.get_dtype(), size), [a, b]))

        def codegen(self, wrapper: Any) -> None:
            """One line of C++."""
            factors: Any = self.inputs
            a, b = factors
            (lanes, rows, inner), kind = a.get_size(), _TYPES[self.get_dtype()]
            numbers = [lanes, rows, b.get_size()[-1], inner, *a.get_stride(), *b.get_stride()]
            constants = ", ".join(str(int(number)) for number in numbers)
            given = [f"(const {kind}*){x.get_name()}.data_ptr() + {x.get_layout().offset}" for x in factors]
            out = f"({kind}*){self.get_name()}.data_ptr()"
            wrapper.writeline(f"small_product<{kind}, {constants}>({given[0]}, {given[1]}, {out});")

    return SmallProduct


@cache
def lean_wrapper() -> type[Any]:
    """Inductor's writer of C++ programs, with loops on plain memory where that is possible."""
    from torch._inductor import ir
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
    from torch._inductor.codegen.wrapper import EnterSubgraphLine, ExitSubgraphLine
    from torch._inductor.virtualized import V

    def size_of(buffer: Any) -> int:
        return int(V.graph.get_allocation_storage_size(buffer)) * int(buffer.get_dtype().itemsize)

    class LeanWrapper(CppWrapperCpu):
        """A loop whose body and condition take pointers alone runs on `Plain` memory; any other as Inductor has it."""

        def __init__(self) -> None:
            self.plain: dict[Any, str] = {}
            """Graphs that are written so, and the name of their memory."""
            self.slots = count()
            super().__init__()

        @staticmethod
        def create(*_: Any, **__: Any) -> "LeanWrapper":
            """What Inductor calls."""
            return LeanWrapper()

        def write_header(self) -> None:
            """Inductor's, and ours."""
            super().write_header()
            self.header.splice(HEADER.read_text())

        def codegen_while_loop(self, while_loop: Any, stack_output: bool = False) -> None:
            """What is carried is copied once before the loop and once after it."""
            condition, body = while_loop.cond_subgraph, while_loop.body_subgraph
            nodes = [*condition.graph.operations, *body.graph.operations]
            if not all(isinstance(node, (ir.ComputedBuffer, ir.NopKernel, small_product())) for node in nodes):
                super().codegen_while_loop(while_loop, stack_output)
                return
            memory = f"{while_loop.get_name()}_memory"
            self.plain |= {condition.graph: memory, body.graph: memory}
            names = self._get_while_loop_carried_output_names(while_loop)
            carried = [f"{name}_carried" for name in names]
            fixed = [f"{memory}_fixed{number}" for number in range(len(while_loop.additional_inputs))]
            given = [buffer.codegen_reference() for buffer in while_loop.carried_inputs]
            self.writeline(f"static thread_local Memory {memory};")
            for own, outer, buffer in zip(carried, given, while_loop.carried_inputs, strict=True):
                copied = f"{next(self.slots)}, {size_of(buffer)}, {outer}.data_ptr()"
                self.writeline(f"Plain {own} = {memory}.copy({copied});")
            for own, buffer in zip(fixed, while_loop.additional_inputs, strict=True):
                self.writeline(f"const Plain {own}{{(char*){buffer.codegen_reference()}.data_ptr(), 0, 0}};")
            self.writeline("while (1) {")
            self.codegen_part(condition, [*carried, *fixed], lambda made: f"if (!*(bool*){made[0]}.data_ptr()) break;")
            self.codegen_part(body, [*carried, *fixed], lambda made: carry(memory, carried, made))
            self.writeline("}")
            for name, own, outer in zip(names, carried, given, strict=True):
                self.writeline(f"RAIIAtenTensorHandle {name}(as_tensor({own}, {outer}));")

        def codegen_part(self, part: Any, inputs: Sequence[str], ends: Callable[[list[str]], str]) -> None:
            """The condition or the body, and what is done with its results."""
            self.writeline(EnterSubgraphLine(self, part.graph))
            self.codegen_subgraph(part, inputs, ends)
            self.writeline(ExitSubgraphLine(self))

        def codegen_subgraph_prefix(self, subgraph: Any, outer_inputs: Any, outer_outputs: Any) -> None:
            """Inputs are the same memory under other names."""
            if subgraph.graph not in self.plain:
                super().codegen_subgraph_prefix(subgraph, outer_inputs, outer_outputs)
                return
            for inner, outer in zip(subgraph.graph.graph_inputs, outer_inputs, strict=True):
                self.writeline(f"const Plain {inner} = {outer};")

        def codegen_subgraph_suffix(self, subgraph: Any, outer_inputs: Any, outer_outputs: Any) -> None:
            """Ours has a function of the results where Inductor has their names."""
            if subgraph.graph not in self.plain:
                super().codegen_subgraph_suffix(subgraph, outer_inputs, outer_outputs)
                return
            self.writeline(outer_outputs([made.codegen_reference() for made in subgraph.graph.graph_outputs]))

        @property
        def own_memory(self) -> str | None:
            """The memory of the graph that is being written, where it has plain one."""
            return self.plain.get(self.get_codegened_graph())

        def make_buffer_allocation(self, buffer: Any) -> str:
            """A piece of its own for every buffer."""
            if self.own_memory is None:
                return str(super().make_buffer_allocation(buffer))
            return f"const Plain {buffer.get_name()} = {self.own_memory}.piece({next(self.slots)}, {size_of(buffer)});"

        def make_buffer_free(self, buffer: Any) -> str:
            """Memory is kept."""
            return str(super().make_buffer_free(buffer)) if self.own_memory is None else ""

        def make_buffer_reuse(self, old: Any, new: Any, delete_old: bool) -> str:
            """The same piece, whatever its shape."""
            if self.own_memory is None:
                return str(super().make_buffer_reuse(old, new, delete_old))
            return f"const Plain {new.get_name()} = {old.get_name()};"

        def codegen_reinterpret_view(
            self, data: Any, size: Any, stride: Any, offset: Any, writeline: Any, dtype: Any = None
        ) -> str:
            """The same piece, from another place on."""
            if self.own_memory is None:
                return str(super().codegen_reinterpret_view(data, size, stride, offset, writeline, dtype))
            return f"{data.get_name()}.from({int(offset) * int(data.get_dtype().itemsize)})"

    return LeanWrapper


def carry(memory: str, carried: Sequence[str], made: Sequence[str]) -> str:
    """What a turn has made becomes what the next one begins with."""
    return " ".join(f"{memory}.carry({own}, {result});" for own, result in zip(carried, made, strict=True))
