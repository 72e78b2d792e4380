"""What torch's compiler does under its private names (`tests/test_private_names.py`): a new torch fails here first."""

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._higher_order_ops.while_loop import while_loop_op
from torch._inductor import config
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedlit.engines.compiler import (
    CompilerError,
    compile_program,
    entry_address,
    missing_compiler,
    repeat_while,
)
from fedlit.engines.program_folder import writable

Program = Callable[..., tuple[Tensor, ...]]

needs_compiler = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))


def decay(x: Tensor, rate: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, ...]:
    """x <- rate x + t for t from first up to last."""

    def step(t: Tensor, carried: tuple[Tensor, ...], fixed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (fixed[0] * carried[0] + t,)

    return repeat_while(step, first, last, [x], [rate])


def arguments(first: int, last: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    return x, torch.tensor(0.5, dtype=torch.float64), torch.tensor([first]), torch.tensor([last])


def expected(first: int, last: int) -> list[float]:
    x = [1.0, -2.0, 3.0]
    for t in range(first, last):
        x = [0.5 * value + t for value in x]
    return x


@pytest.fixture(scope="module")
def traced() -> GraphModule:
    with torch.no_grad():
        return make_fx(decay, tracing_mode="fake")(*arguments(0, 4))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own; compile_program tells torch in the environment, which is restored."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIT_CACHE", str(folder))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def compiled(cache: Path) -> Program:
    """The tiny program, compiled once for all tests."""
    return compile_program(decay, arguments(0, 4))


def test_loop_is_one_operator_of_the_traced_program(traced: GraphModule) -> None:
    assert [node.target for node in traced.graph.nodes].count(while_loop_op) == 1


def test_traced_program_gives_the_numbers_of_a_plain_loop(traced: GraphModule) -> None:
    with torch.no_grad():
        assert traced(*arguments(0, 4))[0].tolist() == expected(0, 4)


@pytest.mark.parametrize("option", ["cpp_wrapper", "cpp.threads", "fx_graph_cache"])
def test_compiler_knows_the_option(option: str) -> None:
    assert option in config.get_config_copy()


def test_functions_can_be_marked_as_cacheable() -> None:
    assert isinstance(config.unsafe_marked_cacheable_functions, dict)


@needs_compiler
@pytest.mark.parametrize(("first", "last"), [(0, 4), (2, 7), (3, 3)], ids=["all", "a part", "nothing"])
def test_compiled_program_gives_the_numbers_of_a_plain_loop(compiled: Program, first: int, last: int) -> None:
    (x,) = compiled(*arguments(first, last))
    assert x.tolist() == expected(first, last)


@needs_compiler
def test_entry_of_a_compiled_program_is_found(compiled: Program) -> None:
    """`tests/engines/test_native.py` calls it."""
    assert entry_address(compiled) is not None


def test_a_program_that_is_not_compiled_has_no_entry(traced: GraphModule) -> None:
    assert entry_address(traced) is None


@needs_compiler
def test_compiled_program_changes_none_of_its_arguments(compiled: Program) -> None:
    given = arguments(0, 4)
    compiled(*given)
    assert [value.tolist() for value in given] == [value.tolist() for value in arguments(0, 4)]


@needs_compiler
def test_program_is_found_in_the_cache_when_it_is_compiled_again(compiled: Program) -> None:
    before = counters["inductor"]["fxgraph_cache_hit"]
    compile_program(decay, arguments(0, 4))
    assert counters["inductor"]["fxgraph_cache_hit"] == before + 1


@needs_compiler
def test_compiled_programs_are_kept_in_the_cache_folder(compiled: Program, cache: Path) -> None:
    assert list(cache.rglob("*.so"))


@needs_compiler
def test_a_cache_that_cannot_be_written_costs_time_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored at the end: compile_program sets it
    for _ in range(2):
        (x,) = compile_program(decay, arguments(0, 4))(*arguments(0, 4))
        assert x.tolist() == expected(0, 4)
    (line,) = [message for message in caplog.messages if "cannot be written" in message]
    assert "FEDLIT_CACHE" in line


KILLED_IN_THE_LINKER = """
import os, sys, torch
from pathlib import Path
from fedlit.engines import compiler
from fedlit.engines.inductor import cpp_builder
from tests.engines.test_compiler_contract import arguments, decay

def dies(command_line: str, cwd: str) -> None:
    words = command_line.split()
    Path(words[words.index("-o") + 1]).write_bytes(b"half")
    os._exit(9)

cpp_builder.run_compile_cmd = dies
compiler.compile_program(decay, arguments(0, 4))
"""


@needs_compiler
def test_a_compiler_that_is_killed_leaves_nothing_that_a_later_run_would_load(tmp_path: Path) -> None:
    at_hand = os.environ | {"FEDLIT_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", KILLED_IN_THE_LINKER], env=at_hand, check=False)
    assert ended.returncode == 9
    assert not list(tmp_path.rglob("*.so"))


@pytest.fixture
def files_stay_small() -> Iterator[None]:
    """As on a full disk: what is longer cannot be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@needs_compiler
def test_where_there_is_no_room_for_a_program_one_paragraph_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_stay_small: None
) -> None:
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path))
    with pytest.raises(CompilerError, match=r"no room .* \(File too large\)\. Free 32 MB and continue with --resume"):
        compile_program(decay, arguments(0, 4))


@needs_compiler
def test_a_full_cache_is_replaced_by_a_folder_that_goes_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = iter(["No space left on device", None])
    monkeypatch.setattr("fedlit.engines.program_folder.lack_of_room", lambda folder: next(tried))
    assert writable(tmp_path).name.startswith("fedlit-")
    assert f"{tmp_path} is not used as a cache: No space left on device" in caplog.text


@needs_compiler
def test_a_folder_that_became_full_while_a_program_was_compiled_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored at the end: compile_program sets it
    tried = iter([None, "No space left on device"])
    monkeypatch.setattr("fedlit.engines.program_folder.refusal", lambda folder: next(tried))
    monkeypatch.setattr("fedlit.engines.inductor.compile", no_space)
    with pytest.raises(CompilerError, match=r"into .*inductor-\w+: No space left on device"):
        compile_program(decay, arguments(0, 4))


def no_space(*args: object, **options: object) -> None:
    raise RuntimeError("g++ failed") from OSError(errno.ENOSPC, "No space left on device")


@needs_compiler
def test_compiled_program_lets_other_threads_run(compiled: Program) -> None:
    """Were the GIL held, this thread would stand still from the call's beginning to its end."""
    worker = threading.Thread(target=compiled, args=arguments(0, 20_000_000))
    started = last = time.perf_counter()
    longest = 0.0
    worker.start()
    while worker.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < 0.5 * (last - started)
