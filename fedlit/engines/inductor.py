"""Private names of torch's compiler: no other file has any.

`tests/engines/test_compiler_contract.py` names each of them, so that a new torch fails there first. Import it where it
is needed: importing torch's compiler takes seconds.
"""

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch._higher_order_ops.while_loop import while_loop_op
from torch._inductor import compile, compile_fx, config, cpp_builder
from torch._inductor.codegen.common import device_codegens, init_backend_registration
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.codegen.wrapper import EnterSubgraphLine, ExitSubgraphLine
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.ir import ComputedBuffer, ExternKernelOut, FixedLayout, NopKernel, TensorBox
from torch._inductor.lowering import lowerings, make_fallback, needs_realized_inputs, register_lowering

TO_COPY = torch.ops.aten._to_copy.default

__all__ = [
    "TO_COPY",
    "ComputedBuffer",
    "CppWrapperCpu",
    "EnterSubgraphLine",
    "ExitSubgraphLine",
    "ExternKernelOut",
    "FixedLayout",
    "NopKernel",
    "TensorBox",
    "compile",
    "compile_fx",  # what `compile` imports when it is called
    "config",
    "cpp_builder",
    "device_codegens",
    "fx_graph_cse",
    "init_backend_registration",
    "lowerings",
    "make_fallback",
    "needs_realized_inputs",
    "pick_vec_isa",
    "register_lowering",
    "while_loop_op",
]
