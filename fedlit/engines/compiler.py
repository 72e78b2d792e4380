"""From a traced program to a compiled one: torch's compiler (`inductor.py`), with fedlit's operators and loops."""

import atexit
import ctypes
import hashlib
import inspect
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any

import torch
from torch import Tensor

from fedlit.engines import convolution, lean, products
from fedlit.engines.convolution import DECOMPOSITIONS, OPERATORS, to_copy
from fedlit.engines.lean import lean_wrapper, written_out
from fedlit.engines.operators import cxx, load_operators
from fedlit.engines.products import HELD, MOVED, PRODUCT, TURNED, prepare_steps, stand_ins
from fedlit.places import cache_home, make_private

log = logging.getLogger("fedlit")

BUILDERS = (__file__, convolution.__file__, lean.__file__, lean.HEADER, products.__file__)
"""Files that decide what a graph is compiled to."""


def missing_compiler() -> str | None:
    """Why programs cannot be compiled on this machine, or None."""
    if cxx() is not None:
        return None
    return "there is no C++ compiler (install g++ for about 10 times the speed on small networks)"


def warm_up() -> None:
    """Import what compiling needs and try the processor's vector instructions: processes that are forked then need not.

    It starts no thread.
    """
    from fedlit.engines.inductor import pick_vec_isa

    if missing_compiler() is None:
        use_cache_folder()
        pick_vec_isa()


def use_cache_folder() -> None:
    """Tell torch's compiler where to keep what it builds."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder())


def cache_folder() -> Path:
    """Where compiled programs are kept between runs; torch's key of a program does not know who wrote its C++."""
    return writable(cache_home() / f"inductor-{builders_key()}")


@cache
def builders_key() -> str:
    """Another one for other builders."""
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in BUILDERS)).hexdigest()[:12]


@cache
def writable(folder: Path) -> Path:
    """The folder, or one for this process alone where it cannot be written, or others can: a cache may cost no run."""
    try:
        reason = make_private(folder)
        if reason is None:
            with TemporaryFile(dir=folder):
                return folder
    except OSError as error:
        reason = f"{folder} cannot be written ({error.strerror})"
    log.warning(
        f"{reason}: programs are compiled anew in every run. Give a folder in FEDLIT_CACHE in which you can write, and "
        "nobody else (chmod 700)."
    )
    own = mkdtemp(prefix="fedlit-")  # of mode 700
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


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


def unread_inputs(function: Callable[..., Any], args: Sequence[Tensor]) -> set[int]:
    """Positions of the arguments that the function does not read, found by tracing it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*args).graph
    graph.eliminate_dead_code()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return {position for position, node in enumerate(inputs) if not node.users}


def missing_convolution() -> str | None:
    """Why programs cannot have direct convolutions on this machine, or None; builds them where they are not yet."""
    return missing_operators(convolution.SOURCE)


def missing_operators(source: Path) -> str | None:
    """Why the operators of this file cannot be had on this machine, or None; builds them where they are not yet."""
    return load_operators(source, writable(cache_home() / "operators"))


def compile_program(
    program: Callable[..., tuple[Tensor, ...]], args: Sequence[Tensor], *, direct_convolution: bool = False
) -> Callable[..., Any]:
    """A compiled program for tensors shaped like `args`; its entry releases the GIL."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from fedlit.engines import inductor

    use_cache_folder()
    # The graph cache refuses loops unless they are marked.
    inductor.config.unsafe_marked_cacheable_functions["torch.ops.higher_order.while_loop"] = builders_key()
    table = stand_ins(beside=not direct_convolution)
    table |= direct_decompositions() if direct_convolution else {}
    with torch.no_grad(), lean_loops():
        graph = make_fx(program, tracing_mode="fake", decomposition_table=table)(*args)
        prepare_products(graph)
        if direct_convolution:
            prepare_direct_convolution(graph)
        compiled: Callable[..., Any] = inductor.compile(
            graph, list(args), options={"cpp_wrapper": True, "cpp.threads": 1, "fx_graph_cache": True}
        )
    return compiled


def direct_decompositions() -> dict[Any, Callable[..., Any]]:
    """What replaces torch's operators in a program with direct convolutions."""
    from fedlit.engines.inductor import TO_COPY

    return DECOMPOSITIONS | {TO_COPY: to_copy}


@contextmanager
def lean_loops() -> Iterator[None]:
    """Inductor writes loops as `lean.py` has them: in fedlit's programs, not in a user's torch.compile."""
    from fedlit.engines.inductor import device_codegens, init_backend_registration

    init_backend_registration()
    before = device_codegens["cpu"]
    device_codegens["cpu"] = replace(before, cpp_wrapper_codegen=lean_wrapper())
    try:
        yield
    finally:
        device_codegens["cpu"] = before


def prepare_products(graph: torch.fx.GraphModule) -> None:
    """Our products known to the compiler, and what is gathered held in memory: fused, it is gathered at every use."""
    from fedlit.engines.inductor import lowerings, register_lowering

    def held(x: Any) -> Any:
        x.realize()
        return x

    own = dict(zip((PRODUCT, MOVED, TURNED), (node.create for node in written_out()), strict=True))
    for operator, lowering in {**own, HELD: held}.items():
        if operator not in lowerings:
            register_lowering(operator, type_promotion_kind=None)(lowering)
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            prepare_steps(module.graph)
            for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.index_select.default):
                hold(node)


def hold(node: torch.fx.Node) -> None:
    """Whatever reads it reads it from memory."""
    with node.graph.inserting_after(node):
        held = node.graph.call_function(HELD, (node,))
    held.meta = dict(node.meta)
    node.replace_all_uses_with(held, delete_user_cb=lambda user: user is not held)


def prepare_direct_convolution(graph: torch.fx.GraphModule) -> None:
    """The operators known to torch and to its compiler, and no picture packed twice."""
    from fedlit.engines.inductor import fx_graph_cse, lowerings, make_fallback, needs_realized_inputs

    reason = missing_convolution()
    if reason is not None:
        raise RuntimeError(f"The run uses direct convolutions, but {reason}.")
    for operator in OPERATORS:
        if operator not in lowerings:
            make_fallback(operator)  # type: ignore[no-untyped-call]  # torch's
            needs_realized_inputs.discard(operator)  # else whatever feeds it is stored first, in torch's layout
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            module.graph = fx_graph_cse(module.graph)


def entry_address(compiled: Callable[..., Any]) -> int | None:
    """Where a compiled program begins in memory, for callers in C++; None where torch has another form of program.

    The entry takes an array of handles, which it frees, and fills one of results. It must be called with the GIL.
    """
    generated = getattr(inspect.unwrap(compiled), "current_callable", None)
    module = getattr(getattr(generated, "__globals__", {}).get("inductor_entry"), "__self__", None)
    path: str | None = getattr(module, "__file__", None)
    entry = None if path is None else getattr(ctypes.CDLL(path), _ENTRY, None)
    return None if entry is None else ctypes.cast(entry, ctypes.c_void_p).value


_ENTRY = "_Z19inductor_entry_implPP16AtenTensorOpaqueS1_"
"""inductor_entry_impl(AtenTensorHandle*, AtenTensorHandle*), as compilers name it in a library."""
