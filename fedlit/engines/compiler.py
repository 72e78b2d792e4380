"""Compiles a program: traces it, then calls torch's compiler (`inductor.py`) with fedlit's operators and loops."""

import ctypes
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlit.engines import attention, convolution, recurrence
from fedlit.engines.convolution import DECOMPOSITIONS, OPERATORS, to_copy
from fedlit.engines.cpp_build import cxx, load_operators, why_broken
from fedlit.engines.inductor_loops import Loops, lean_wrapper, written_out
from fedlit.engines.matmul import HELD, prepare_steps, stand_ins
from fedlit.engines.program_folder import (
    builders_key,
    programs_folder,
    refusal,
    room_explained,
    use_cache_folder,
    writable,
)
from fedlit.errors import RunError
from fedlit.files import cache_home

MOST_LETTERS = 200
"""Most characters of an error that a log line quotes."""


class CompilerError(RuntimeError):
    """torch's compiler or the C++ compiler failed on a program that can be traced: the user's step is not at fault."""


@contextmanager
def compilers_part() -> Iterator[None]:
    """Turn any error inside the block, which runs compilers but no user's code, into a CompilerError.

    The block decides, not the class of the error: torch's errors have private names, which may change.
    """
    try:
        yield
    except Exception as error:
        raise CompilerError(in_one_line(error)) from error


def in_one_line(error: Exception) -> str:
    """The error's class and one line of its text: the first that a C++ compiler marks as an error, else the first."""
    if isinstance(error, RunError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["without a word"]
    line = next((line for line in lines if "error: " in line), lines[0])
    return f"{type(error).__name__}: {line[:MOST_LETTERS]}"


def missing_compiler() -> str | None:
    """Why programs cannot be compiled on this machine, or None."""
    command = cxx()
    broken = None if command is None else why_broken(command)
    if command is not None and broken is None:
        return None
    what = "there is no C++ compiler" if command is None else f"the C++ compiler {command} does not work: {broken}"
    return f"{what} (install g++ for about 10 times the speed on small networks)"


def warm_up() -> None:
    """Import torch's compiler and test the processor's vector instructions, before processes are forked.

    It starts no thread and logs nothing: each run says itself what is missing. If programs cannot be kept between runs,
    each process makes its own folder later.
    """
    with suppress(CompilerError), compilers_part():
        from fedlit.engines.inductor import pick_vec_isa

        if missing_compiler() is None and refusal(programs_folder()) is None:
            use_cache_folder()
            pick_vec_isa()


def repeat_while(
    step: Callable[..., tuple[Tensor, ...]],
    first: Tensor,
    last: Tensor,
    carried: Sequence[Tensor],
    fixed: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """carried <- step(t, carried, fixed) for t from first up to last, as one loop operator of the program.

    The operator itself, under make_fx, avoids Dynamo: a call costs 18 instead of 127 microseconds.
    """
    from fedlit.engines.inductor import while_loop_op

    count = len(carried)

    def unfinished(t: Tensor, *rest: Tensor) -> Tensor:
        return (t < rest[-1]).squeeze()

    def body(t: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        return (t + 1, *step(t, rest[:count], rest[count:-1]))

    # torch's hint of the carried values is a tuple of one
    out = while_loop_op(unfinished, body, (first.clone(), *carried), (*fixed, last))  # type: ignore[arg-type]
    return tuple(out[1:])


def unread_inputs(function: Callable[..., Any], args: Sequence[Tensor]) -> tuple[set[int], set[int]]:
    """Positions of the arguments on which a function's result does not depend, and of those that it reads even so."""
    graph = traced(function, args).graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    read = {position for position, node in enumerate(inputs) if node.users}
    graph.eliminate_dead_code()
    unread = {position for position, node in enumerate(inputs) if not node.users}
    return unread, unread & read


def missing_convolution() -> str | None:
    """Why programs cannot have direct convolutions on this machine, or None; builds them if needed."""
    return missing_operators(convolution.SOURCE)


def missing_operators(source: Path) -> str | None:
    """Why the operators of this file are not available on this machine, or None; builds them if needed."""
    try:
        return load_operators(source, writable(cache_home() / "operators"))
    except OSError as error:
        return f"there is no folder for it that can be written: {error}"


def need_operators(source: Path) -> None:
    """Load the operators of this file, which a program calls; CompilerError if they cannot be had."""
    reason = missing_operators(source)
    if reason is not None:
        raise CompilerError(f"{source.name}: {reason}")


def compile_program(
    program: Callable[..., tuple[Tensor, ...]],
    args: Sequence[Tensor],
    *,
    direct_convolution: bool = False,
    loops: Loops = "lean",
) -> Callable[..., Any]:
    """A compiled program for tensors shaped like `args`; its entry releases the GIL.

    Raises CompilerError if it can be traced but not compiled.
    """
    is_lean = loops == "lean"
    with compilers_part():
        check_compilers(loops)
        table = lean_decompositions(beside=not direct_convolution) if is_lean else {}
        table |= direct_decompositions() if direct_convolution else {}
    graph = traced(program, args, table)
    with compilers_part(), room_explained(), torch.no_grad(), lean_loops() if is_lean else nullcontext():
        if is_lean:
            prepare_products(graph)
        if direct_convolution:
            prepare_direct_convolution(graph)
        return built(graph, args)


def check_compilers(loops: Loops) -> None:
    """Fail before a user's step is traced if a compiler is missing, so that the step is not blamed."""
    reason = missing_compiler()
    if reason is not None:
        raise RuntimeError(reason)
    use_cache_folder(loops)
    traced(_one_loop, [torch.ones(1), torch.tensor([0]), torch.tensor([1])])


def _one_loop(x: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, ...]:
    """The smallest program with a loop."""
    return repeat_while(lambda t, carried, fixed: (carried[0] + 1,), first, last, [x], [])


def traced(
    program: Callable[..., Any], args: Sequence[Tensor], table: dict[Any, Callable[..., Any]] | None = None
) -> torch.fx.GraphModule:
    """The program's graph, with torch's operators replaced by `table`. Errors of the program itself are not wrapped."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        try:
            return make_fx(program, tracing_mode="fake", decomposition_table=table)(*args)
        except Exception as error:
            if not table:
                raise
            traced(program, args)  # an error that does not come from the table is raised again
            raise CompilerError(in_one_line(error)) from error


def built(graph: torch.fx.GraphModule, args: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a traced program by torch."""
    from fedlit.engines import inductor

    # The graph cache refuses loops unless they are marked.
    inductor.config.unsafe_marked_cacheable_functions["torch.ops.higher_order.while_loop"] = builders_key()
    options = {"cpp_wrapper": True, "cpp.threads": 1, "fx_graph_cache": True}
    compiled: Callable[..., Any] = inductor.compile(graph, list(args), options=options)
    return compiled


def lean_decompositions(*, beside: bool) -> dict[Any, Callable[..., Any]]:
    """Operators -> what a program with fedlit's own loops has in their places."""
    from fedlit.engines.inductor_nodes import ATTENTION, ATTENTION_BACK

    written: dict[Any, Callable[..., Any]] = {ATTENTION: attention.attention, ATTENTION_BACK: attention.attention_back}
    return {**stand_ins(beside=beside), **recurrence.STAND_INS, **written}


def direct_decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's operators -> their replacements in a program with direct convolutions."""
    from fedlit.engines.inductor_nodes import TO_COPY

    return DECOMPOSITIONS | {TO_COPY: to_copy}


@contextmanager
def lean_loops() -> Iterator[None]:
    """Inside the block, Inductor writes loops by `inductor_loops.py`; a user's own torch.compile is not affected."""
    from fedlit.engines.inductor_nodes import device_codegens, init_backend_registration

    init_backend_registration()
    before = device_codegens["cpu"]
    device_codegens["cpu"] = replace(before, cpp_wrapper_codegen=lean_wrapper())
    try:
        yield
    finally:
        device_codegens["cpu"] = before


def prepare_products(graph: torch.fx.GraphModule) -> None:
    """Register our products, and write gathered tensors to memory: if fused, they would be gathered at every use."""
    from fedlit.engines.inductor_nodes import lowerings, register_lowering

    def realized(x: Any) -> Any:
        x.realize()
        return x

    for operator, lowering in {HELD: realized, **{op: node.create for op, node in written_out().items()}}.items():
        if operator not in lowerings:
            register_lowering(operator, type_promotion_kind=None)(lowering)
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            prepare_steps(module.graph)
            for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.index_select.default):
                hold(node)


def hold(node: torch.fx.Node) -> None:
    """Write a node's value to memory, and let all its users read it there."""
    with node.graph.inserting_after(node):
        in_memory = node.graph.call_function(HELD, (node,))
    in_memory.meta = dict(node.meta)
    node.replace_all_uses_with(in_memory, delete_user_cb=lambda user: user is not in_memory)


def prepare_direct_convolution(graph: torch.fx.GraphModule) -> None:
    """Register the operators with torch's compiler, and pack no picture twice."""
    from fedlit.engines.inductor_nodes import fx_graph_cse, lowerings, make_fallback, needs_realized_inputs

    reason = missing_convolution()
    if reason is not None:
        raise RuntimeError(f"The run uses direct convolutions, but {reason}.")
    for operator in OPERATORS:
        if operator not in lowerings:
            make_fallback(operator)  # type: ignore[no-untyped-call]  # torch's
            needs_realized_inputs.discard(operator)  # otherwise its input is stored first, in torch's layout
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            module.graph = fx_graph_cse(module.graph)


def entry_address(compiled: Callable[..., Any]) -> int | None:
    """The address of a compiled program's entry, for callers in C++; None if torch's programs have another form.

    The entry takes an array of handles, which it frees, and fills an array of results. Call it with the GIL.
    """
    generated = getattr(inspect.unwrap(compiled), "current_callable", None)
    module = getattr(getattr(generated, "__globals__", {}).get("inductor_entry"), "__self__", None)
    path: str | None = getattr(module, "__file__", None)
    entry = None if path is None else getattr(ctypes.CDLL(path), _ENTRY, None)
    return None if entry is None else ctypes.cast(entry, ctypes.c_void_p).value


_ENTRY = "_Z19inductor_entry_implPP16AtenTensorOpaqueS1_"
"""inductor_entry_impl(AtenTensorHandle*, AtenTensorHandle*), as compilers name it in a library."""
