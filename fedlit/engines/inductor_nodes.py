"""Private names of torch's compiler that fedlit's own loops, products and convolutions need.

They are not in `inductor.py`: a torch without one of them can still compile programs in its own way.
"""

from typing import Any

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch._inductor.codegen.common import device_codegens, init_backend_registration
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.codegen.wrapper import EnterSubgraphLine, ExitSubgraphLine
from torch._inductor.ir import ComputedBuffer, ExternKernelOut, FixedLayout, NopKernel, TensorBox
from torch._inductor.lowering import lowerings, make_fallback, needs_realized_inputs, register_lowering

TO_COPY = torch.ops.aten._to_copy.default
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
ATTENTION_BACK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def carried_names(writer: CppWrapperCpu, while_loop: Any) -> list[str]:
    """The names that Inductor's writer gives to the carried values of a loop."""
    names: list[str] = writer._get_while_loop_carried_output_names(while_loop)  # type: ignore[no-untyped-call]  # torch's
    return names


__all__ = [
    "ATTENTION",
    "ATTENTION_BACK",
    "TO_COPY",
    "ComputedBuffer",
    "CppWrapperCpu",
    "EnterSubgraphLine",
    "ExitSubgraphLine",
    "ExternKernelOut",
    "FixedLayout",
    "NopKernel",
    "TensorBox",
    "carried_names",
    "device_codegens",
    "fx_graph_cse",
    "init_backend_registration",
    "lowerings",
    "make_fallback",
    "needs_realized_inputs",
    "register_lowering",
]
