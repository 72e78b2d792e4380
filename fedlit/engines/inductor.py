"""Private names of torch's compiler that every compiled program needs (`inductor_nodes.py` has those of our own parts).

No other file has any. `tests/test_private_names.py` lists each of them, so that a new torch fails there first. Import
this file inside functions: importing torch's compiler takes seconds.
"""

from torch._higher_order_ops.while_loop import while_loop_op
from torch._inductor import codecache, compile, compile_fx, config, cpp_builder
from torch._inductor.cpu_vec_isa import pick_vec_isa

__all__ = [
    "codecache",
    "compile",
    "compile_fx",  # `compile` imports it when it is called
    "config",
    "cpp_builder",
    "pick_vec_isa",
    "while_loop_op",
]
