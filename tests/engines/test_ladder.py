"""Training without what is missing: each rung of the ladder pulled away, with the line that says so and the numbers."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlit import FedAvg, FederatedTrainer, PFedMe
from fedlit.engines import compiler, inductor_loops
from fedlit.engines.base import Engine
from fedlit.engines.choose import EngineChoice
from fedlit.engines.compiler import CompilerError, compile_program
from fedlit.engines.ladder import RUNGS, Ladder, rung_of
from fedlit.errors import ResumeError
from fedlit.ranks import Ranks
from tests.engines.test_compiler_contract import needs_compiler
from tests.problems import largest_difference, run, tiny_net, weights_of

TOLERANCE = 1e-10
DOWN = "cannot be had"
PYTHON_DRIVES = "Python drives the workers"
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def ladder_stands() -> None:
    """Here it may be climbed down."""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled before would not be written again."""
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored at the end


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests find a program that another has compiled, though never one that they must not have."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def inductors_programs(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nobody has our own loops."""
    monkeypatch.setenv("FEDLIT_CACHE", str(kept / "inductors"))


@pytest.fixture
def our_programs(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here everybody has."""
    monkeypatch.setenv("FEDLIT_CACHE", str(kept / "ours"))


def trained(**options: Any) -> FederatedTrainer:
    given = {"engine": "vectorized", "compiled": True, "lanes": 2, "workers": 2} | options
    return run(FedAvg(tiny_net(), lr=0.1, batch_size=4), **given)


def one_by_one(**options: Any) -> dict[str, Tensor]:
    return weights_of(trained(engine="sequential", compiled=None, lanes=None, workers=None, **options))


def form(trainer: FederatedTrainer) -> tuple[bool, str]:
    choice = trainer.loop.choice
    assert choice is not None
    return choice.compiled, choice.loops


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [message for message in caplog.messages if words in message]


# ---- what an upgrade of torch may do ---------------------------------------------------------------------------------


def another_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's writer takes an argument, which ours does not give."""
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    before = CppWrapperCpu.__init__
    monkeypatch.setattr(CppWrapperCpu, "__init__", lambda self, device: before(self))
    monkeypatch.setattr(CppWrapperCpu, "create", staticmethod(lambda *_: CppWrapperCpu("cpu")))


def another_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor calls a method that we replace with one argument more."""
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    before = CppWrapperCpu.codegen_subgraph_prefix
    monkeypatch.setattr(CppWrapperCpu, "codegen_subgraph_prefix", lambda self, *given: before(self, *given[:3]))
    source = CppWrapperCpu.codegen_subgraph

    def with_one_more(self: Any, subgraph: Any, outer_inputs: Any, outer_outputs: Any) -> Any:
        prefix = self.codegen_subgraph_prefix
        self.codegen_subgraph_prefix = lambda *given: prefix(*given, None)
        return source(self, subgraph, outer_inputs, outer_outputs)

    monkeypatch.setattr(CppWrapperCpu, "codegen_subgraph", with_one_more)


def renamed_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A private name that only our own loops need is gone."""
    import torch._functorch.compile_utils

    forget(monkeypatch, "fedlit.engines.inductor_nodes", inductor_loops.lean_wrapper, inductor_loops.written_out)
    monkeypatch.delattr(torch._functorch.compile_utils, "fx_graph_cse")


def no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's own entry is gone."""
    import torch._inductor

    forget(monkeypatch, "fedlit.engines.inductor")
    monkeypatch.delattr(torch._inductor, "compile")


def another_loop_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator of loops takes other arguments."""
    monkeypatch.setattr("fedlit.engines.inductor.while_loop_op", lambda *, condition, body, state: None)


def forget(monkeypatch: pytest.MonkeyPatch, module: str, *cached: Any) -> None:
    """Let a module be imported again, and what was made of it be made again."""
    monkeypatch.delitem(sys.modules, module, raising=False)
    for function in cached:
        monkeypatch.setattr(inductor_loops, function.__name__, function.__wrapped__)
        monkeypatch.setattr(compiler, function.__name__, function.__wrapped__)


@needs_compiler
@pytest.mark.usefixtures("inductors_programs")
@pytest.mark.parametrize("broken", [another_constructor, another_argument, renamed_class])
def test_without_our_loops_programs_are_as_torchs_compiler_writes_them(
    broken: Break, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken(monkeypatch)
    fitted = trained()
    (line,) = lines(caplog, DOWN)
    assert line.startswith("engine: programs with fedlit's own loops cannot be had (")
    assert "as torch's compiler writes them, about 2 times slower" in line
    assert form(fitted) == (True, "inductor")
    assert largest_difference(weights_of(fitted), one_by_one()) < TOLERANCE


@needs_compiler
@pytest.mark.parametrize("broken", [no_compile, another_loop_operator])
def test_without_torchs_compiler_steps_are_eager(
    broken: Break, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken(monkeypatch)
    fitted = trained()
    down = lines(caplog, DOWN)
    assert [RUNGS[1].name in line for line in down] == [True, True]
    assert "It goes on with eager steps, about" in down[1]
    assert form(fitted) == (False, "lean")
    line = fitted.loop.choice.line()
    assert line.startswith(f"engine: vectorized, 4 lanes × 1 worker, eager ({RUNGS[1].name} cannot be had: ")
    assert largest_difference(weights_of(fitted), one_by_one()) < TOLERANCE


@needs_compiler
@pytest.mark.usefixtures("our_programs")
def test_without_the_entrys_name_python_drives_the_same_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiler, "_ENTRY", "another_name")
    fitted = trained()
    (line,) = lines(caplog, PYTHON_DRIVES)
    assert "the entry of torch's compiled programs is not found" in line
    assert form(fitted) == (True, "lean")
    assert lines(caplog, DOWN) == []
    assert largest_difference(weights_of(fitted), one_by_one()) < TOLERANCE


@needs_compiler
def test_a_method_that_inductor_has_no_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_loops, "OVERRIDDEN", (*inductor_loops.OVERRIDDEN, "codegen_gone"))
    with pytest.raises(AttributeError, match="Inductor's writer of C\\+\\+ has no codegen_gone"):
        inductor_loops.lean_wrapper.__wrapped__()


@needs_compiler
def test_all_phases_of_a_client_come_to_the_same_rung(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_compile(monkeypatch)
    client = PFedMe(tiny_net(), lr=0.1, batch_size=4)
    fitted = run(client, engine="vectorized", compiled=True)
    again = run(PFedMe(tiny_net(), lr=0.1, batch_size=4))
    assert len(lines(caplog, DOWN)) == 2
    assert largest_difference(weights_of(fitted), weights_of(again)) < TOLERANCE


# ---- the C++ compiler ------------------------------------------------------------------------------------------------


def script(folder: Path, *lines: str) -> str:
    path = folder / "cxx"
    path.write_text("\n".join(["#!/bin/sh", *lines]))
    path.chmod(0o755)
    return str(path)


def absent(folder: Path) -> str:
    return str(folder / "nonexistent")


def failing(folder: Path) -> str:
    return script(folder, "echo it is broken >&2", "exit 1")


@pytest.mark.parametrize(
    ("make", "why"),
    [(absent, "there is no C++ compiler"), (failing, "cxx does not work: it is broken")],
    ids=["absent", "failing"],
)
@pytest.mark.parametrize("asked", [{"engine": "vectorized"}, {"engine": "auto", "lanes": None, "workers": None}])
def test_without_a_compiler_that_works_nothing_is_compiled(
    make: Callable[[Path], str], why: str, asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", make(tmp_path))
    fitted = trained(**asked)
    assert form(fitted) == (False, "lean")
    assert why in fitted.loop.choice.line()
    assert "about 10 times the speed" in fitted.loop.choice.line()
    assert largest_difference(weights_of(fitted), one_by_one()) < TOLERANCE


TRAINING = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
from tests.engines.test_ladder import form, one_by_one, trained, largest_difference, weights_of
fitted = trained()
print(form(fitted), largest_difference(weights_of(fitted), one_by_one()) < 1e-10)
"""


def in_a_process(folder: Path, **environment: str) -> str:
    """A run of its own: torch reads CXX when it is imported."""
    given = os.environ | {"FEDLIT_CACHE": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)} | environment
    done = subprocess.run([sys.executable, "-c", TRAINING], env=given, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@needs_compiler
def test_a_compiler_that_is_too_old_for_torch_costs_time_and_lines(tmp_path: Path) -> None:
    old = script(
        tmp_path,
        'case "$*" in *tried.so*|*--version*) exec g++ "$@";; esac',
        "echo 'fatal error: C++20 is not known' >&2",
        "exit 1",
    )
    said = in_a_process(tmp_path, CXX=old)
    assert said.count("error: C++20 is not known). It goes on with") == 2
    assert "(False, 'lean') True" in said


@needs_compiler
def test_without_any_folder_that_can_be_written_steps_are_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    fitted = trained()
    assert form(fitted) == (False, "lean")
    assert lines(caplog, DOWN)
    assert largest_difference(weights_of(fitted), one_by_one()) < TOLERANCE


# ---- whose error it is -----------------------------------------------------------------------------------------------


class StepError(RuntimeError):
    """A user's own."""


def wrong(x: Tensor) -> tuple[Tensor, ...]:
    raise StepError("a mistake in a step")


@needs_compiler
@pytest.mark.parametrize("loops", ["lean", "inductor"])
def test_an_error_of_the_program_itself_is_not_the_compilers(loops: inductor_loops.Loops) -> None:
    with pytest.raises(StepError, match="a mistake in a step"):
        compile_program(wrong, [torch.ones(3)], loops=loops)


@needs_compiler
def test_an_error_of_what_stands_for_torchs_operators_is_the_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {torch.ops.aten.mm.default: lambda a: a}  # torch gives it two
    monkeypatch.setattr(compiler, "stand_ins", lambda beside: table)
    with pytest.raises(CompilerError, match="TypeError"):
        compile_program(lambda x: (x @ x,), [torch.ones(3, 3)])


def test_a_line_quotes_what_a_compiler_marks_as_an_error() -> None:
    said = compiler.in_one_line(RuntimeError("C++ compile error\n\nOutput:\n  a.cpp:3:1: error: what is this\nmore"))
    assert said == "RuntimeError: a.cpp:3:1: error: what is this"


# ---- what is recorded ------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.usefixtures("inductors_programs")
def test_a_resumed_run_has_its_rung_again_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        another_constructor(patch)
        whole = trained(rounds=4, run=tmp_path / "whole")
        trained(rounds=2, run=tmp_path / "part")
    resumed = trained(rounds=4, run=tmp_path / "part", resume=True)
    assert form(resumed) == (True, "inductor")
    assert largest_difference(weights_of(resumed), weights_of(whole)) == 0.0


@needs_compiler
@pytest.mark.usefixtures("our_programs")
def test_a_resumed_run_that_cannot_have_its_rung_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(rounds=2, run=tmp_path / "run")
    monkeypatch.setenv("FEDLIT_CACHE", str(tmp_path / "another"))
    another_constructor(monkeypatch)
    with pytest.raises(ResumeError, match="used programs with fedlit's own loops, which cannot be had here .* bits"):
        trained(rounds=4, run=tmp_path / "run", resume=True)


def test_an_eager_run_is_resumed_eagerly_where_there_is_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CXX", absent(tmp_path))
        whole = trained(rounds=4, run=tmp_path / "whole")
        trained(rounds=2, run=tmp_path / "part")
    resumed = trained(rounds=4, run=tmp_path / "part", resume=True)
    assert form(resumed) == (False, "lean")
    assert largest_difference(weights_of(resumed), weights_of(whole)) == 0.0


# ---- several processes -----------------------------------------------------------------------------------------------


class AnotherFails(Ranks):
    """Beside a rank that cannot have the first rung."""

    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Any] = ["no compiler there", None]

    def all_gather(self, word: Any) -> list[Any]:
        return [word, self.others.pop(0)]


def test_all_ranks_step_down_where_one_has_to() -> None:
    made: list[EngineChoice] = []
    noted: list[EngineChoice] = []

    def make(choice: EngineChoice) -> Engine:
        made.append(choice)
        return Engine(0, lambda store, index: (index, index))

    first = EngineChoice("vectorized", 3, 2, True, 8, 1, "a test", convolution="direct")
    ladder = Ladder(first, make, AnotherFails(), noted.append, is_resumed=False)
    ladder.prepare(*[None] * 4)  # type: ignore[arg-type]  # this engine prepares nothing
    assert [rung_of(choice) for choice in made] == [0, 1]
    assert [(choice.loops, choice.convolution, choice.lanes) for choice in noted] == [("inductor", "torch", 3)]


def test_the_last_rung_keeps_all_lanes_and_a_net_with_one_lane_has_one() -> None:
    several, single = (EngineChoice("vectorized", lanes, 2, True, 8, 1, "", compiles="step") for lanes in (3, 1))
    forms: Sequence[EngineChoice] = [RUNGS[2].of(choice) for choice in (several, single)]
    assert [(choice.lanes, choice.workers, choice.compiled, choice.compiles) for choice in forms] == [
        (6, 1, False, "loop"),
        (1, 1, False, "loop"),
    ]
