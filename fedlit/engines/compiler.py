"""From a traced program to a compiled one: torch's compiler (`inductor.py`), with fedlit's operators and loops."""

import atexit
import ctypes
import hashlib
import inspect
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any, Literal

import torch
from torch import Tensor

from fedlit.engines import convolution, inductor_loops, matmul
from fedlit.engines.convolution import DECOMPOSITIONS, OPERATORS, to_copy
from fedlit.engines.cpp_build import cxx, load_operators, why_broken
from fedlit.engines.inductor_loops import lean_wrapper, written_out
from fedlit.engines.matmul import HELD, MOVED, PRODUCT, TURNED, prepare_steps, stand_ins
from fedlit.errors import RunError
from fedlit.files import cache_home, make_private

log = logging.getLogger("fedlit")

Loops = Literal["lean", "inductor"]
"""Whose a program's loops, products and convolutions are: fedlit's (`inductor_loops.py`), or torch's."""

BUILDERS = (__file__, convolution.__file__, inductor_loops.__file__, inductor_loops.HEADER, matmul.__file__)
"""Files that decide what a graph is compiled to."""
ROOM = 32 << 20
"""Bytes: more than what one run compiles."""
MOST_LETTERS = 200
"""Of an error that a line quotes."""


class CompilerError(RuntimeError):
    """A compiler failed, torch's or the one of C++, on a program that can be traced: no step of a user's is wrong."""


@contextmanager
def compilers_part() -> Iterator[None]:
    """Around what runs compilers and no code of a user's: whatever goes wrong there is a CompilerError.

    It goes by place, not by class: torch's errors have private names too, and another torch may have others.
    """
    try:
        yield
    except Exception as error:
        raise CompilerError(in_one_line(error)) from error


def in_one_line(error: Exception) -> str:
    """Its class, and the line of its text that says most: the first that a C++ compiler marks as an error, if any."""
    if isinstance(error, RunError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["without a word"]
    said = next((line for line in lines if "error: " in line), lines[0])
    return f"{type(error).__name__}: {said[:MOST_LETTERS]}"


def missing_compiler() -> str | None:
    """Why programs cannot be compiled on this machine, or None."""
    command = cxx()
    broken = None if command is None else why_broken(command)
    if command is not None and broken is None:
        return None
    what = "there is no C++ compiler" if command is None else f"the C++ compiler {command} does not work: {broken}"
    return f"{what} (install g++ for about 10 times the speed on small networks)"


def warm_up() -> None:
    """Import what compiling needs and try the processor's vector instructions: processes that are forked then need not.

    It starts no thread, and leaves it to each run to say what is missing. Where programs cannot be kept, each process
    has a folder of its own.
    """
    with suppress(CompilerError), compilers_part():
        from fedlit.engines.inductor import pick_vec_isa

        if missing_compiler() is None and refusal(programs_folder()) is None:
            use_cache_folder()
            pick_vec_isa()


def use_cache_folder(loops: Loops = "lean") -> None:
    """Tell torch's compiler where to keep what it builds, and that nobody must find half of it there."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder(loops))
    build_whole_files()


@cache
def build_whole_files() -> None:
    """torch lets the C++ compiler write into the cache: what a kill leaves there would be loaded by every later run."""
    from fedlit.engines.inductor import cpp_builder

    cpp_builder.run_compile_cmd = partial(build_beside, cpp_builder.run_compile_cmd)


def build_beside(run: Callable[[str, str], None], command_line: str, cwd: str) -> None:
    """Run the C++ compiler so that its output appears at once; torch holds a lock on it."""
    words = shlex.split(command_line)
    place = words.index("-o") + 1
    made = Path(words[place])
    for left in made.parent.glob(f"{made.name}.*.part"):
        left.unlink(missing_ok=True)  # by a killed process
    part = made.with_name(f"{made.name}.{os.getpid()}.part")
    run(shlex.join([*words[:place], str(part), *words[place + 1 :]]), cwd)
    part.replace(made)


def cache_folder(loops: Loops = "lean") -> Path:
    """Where compiled programs are kept."""
    return writable(programs_folder(loops))


def programs_folder(loops: Loops = "lean") -> Path:
    """Where they are kept between runs; torch's key of a program does not know who wrote its C++."""
    return cache_home() / (f"inductor-{builders_key()}" if loops == "lean" else "inductor-alone")


@cache
def builders_key() -> str:
    """Another one for other builders."""
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in BUILDERS)).hexdigest()[:12]


@cache
def writable(folder: Path) -> Path:
    """The folder, or one for this process alone where it cannot be written, or others can: a cache may cost no run."""
    reason = refusal(folder)
    if reason is None:
        return folder
    log.warning(
        f"{folder} is not used as a cache: {reason}. Programs are compiled anew in every run. Give a folder in "
        f"FEDLIT_CACHE in which you can write, and nobody else (chmod 700), with {ROOM >> 20} MB free."
    )
    return own_folder()


def own_folder() -> Path:
    """A folder for this process alone, which goes with it."""
    try:
        own = Path(mkdtemp(prefix="fedlit-"))
    except OSError as error:
        reason: str | None = str(error.strerror)
    else:
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        reason = lack_of_room(own)
        if reason is None:
            return own
    raise RunError(
        f"Programs cannot be compiled: there is no room for them in FEDLIT_CACHE nor among temporary files ({reason}). "
        f"Free {ROOM >> 20} MB and continue with --resume, or take --trainer.engine sequential for a new run."
    )


def refusal(folder: Path) -> str | None:
    """Why programs cannot be kept in the folder, which is made, or None."""
    try:
        return make_private(folder) or lack_of_room(folder)
    except OSError as error:
        return f"it cannot be written ({error.strerror})"


def lack_of_room(folder: Path) -> str | None:
    """Why programs cannot be written into a folder, or None.

    Room is asked for before torch tries what the processor can do: it takes a test that does not fit for an
    instruction that does not exist, and the program would have other bits.
    """
    try:
        with TemporaryFile(dir=folder) as file:
            reserve(file.fileno())
    except OSError as error:
        return str(error.strerror)
    return None


def reserve(file: int) -> None:
    """Take as much of the disk as programs need."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, ROOM)
    else:  # macOS
        os.write(file, bytes(ROOM))


@contextmanager
def room_explained() -> Iterator[None]:
    """Whatever the compiler says when its folder became full meanwhile, it is that."""
    try:
        yield
    except Exception as error:
        reason = refusal(cache_folder())
        if reason is None:
            raise
        raise RunError(
            f"A program could not be compiled into {cache_folder()}: {reason}. Free some space, or "
            "give another folder in FEDLIT_CACHE; then continue with --resume."
        ) from error


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
    graph = traced(function, args).graph
    graph.eliminate_dead_code()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return {position for position, node in enumerate(inputs) if not node.users}


def missing_convolution() -> str | None:
    """Why programs cannot have direct convolutions on this machine, or None; builds them where they are not yet."""
    return missing_operators(convolution.SOURCE)


def missing_operators(source: Path) -> str | None:
    """Why the operators of this file cannot be had on this machine, or None; builds them where they are not yet."""
    try:
        return load_operators(source, writable(cache_home() / "operators"))
    except OSError as error:
        return f"there is no folder for it that can be written: {error}"


def compile_program(
    program: Callable[..., tuple[Tensor, ...]],
    args: Sequence[Tensor],
    *,
    direct_convolution: bool = False,
    loops: Loops = "lean",
) -> Callable[..., Any]:
    """A compiled program for tensors shaped like `args`; its entry releases the GIL.

    Raises CompilerError where it can be traced and not compiled.
    """
    is_lean = loops == "lean"
    with compilers_part():
        check_compilers(loops)
        table = stand_ins(beside=not direct_convolution) if is_lean else {}
        table |= direct_decompositions() if direct_convolution else {}
    graph = traced(program, args, table)
    with compilers_part(), room_explained(), torch.no_grad(), lean_loops() if is_lean else nullcontext():
        if is_lean:
            prepare_products(graph)
        if direct_convolution:
            prepare_direct_convolution(graph)
        return built(graph, args)


def check_compilers(loops: Loops) -> None:
    """Find what is missing before a user's step is traced: then it cannot be taken for a mistake in the step."""
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
    """The program's graph, with what stands for torch's operators. An error of the program itself stays as it is."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        try:
            return make_fx(program, tracing_mode="fake", decomposition_table=table)(*args)
        except Exception as error:
            if not table:
                raise
            traced(program, args)  # raises again what does not come from the table
            raise CompilerError(in_one_line(error)) from error


def built(graph: torch.fx.GraphModule, args: Sequence[Tensor]) -> Callable[..., Any]:
    """A traced program, compiled by torch."""
    from fedlit.engines import inductor

    # The graph cache refuses loops unless they are marked.
    inductor.config.unsafe_marked_cacheable_functions["torch.ops.higher_order.while_loop"] = builders_key()
    options = {"cpp_wrapper": True, "cpp.threads": 1, "fx_graph_cache": True}
    compiled: Callable[..., Any] = inductor.compile(graph, list(args), options=options)
    return compiled


def direct_decompositions() -> dict[Any, Callable[..., Any]]:
    """What replaces torch's operators in a program with direct convolutions."""
    from fedlit.engines.inductor_nodes import TO_COPY

    return DECOMPOSITIONS | {TO_COPY: to_copy}


@contextmanager
def lean_loops() -> Iterator[None]:
    """Inductor writes loops as `inductor_loops.py` has them: in fedlit's programs, not in a user's torch.compile."""
    from fedlit.engines.inductor_nodes import device_codegens, init_backend_registration

    init_backend_registration()
    before = device_codegens["cpu"]
    device_codegens["cpu"] = replace(before, cpp_wrapper_codegen=lean_wrapper())
    try:
        yield
    finally:
        device_codegens["cpu"] = before


def prepare_products(graph: torch.fx.GraphModule) -> None:
    """Our products known to the compiler, and what is gathered held in memory: fused, it is gathered at every use."""
    from fedlit.engines.inductor_nodes import lowerings, register_lowering

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
    from fedlit.engines.inductor_nodes import fx_graph_cse, lowerings, make_fallback, needs_realized_inputs

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
