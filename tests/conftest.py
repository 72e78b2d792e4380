"""What the tests share. fedlit comes first: it lets Lightning be imported beside a CPU-only torch."""

import os  # isort: skip

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and fedlit read it: tests run side by side

import fedlit  # isort: skip  # noqa: E402

import base64
import gc
import importlib.metadata
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from fedlit.algorithms import pfedme
from fedlit.cli.main import main
from fedlit.data.partition_plot import draw_partition
from fedlit.engines.ladder import Ladder
from fedlit.experiments.fork_server import ForkServer, Imported
from fedlit.trainer import summary
from tests.cloud_runs import clouds as clouds
from tests.forked import open_forked
from tests.problems import traced_program
from tests.real_files import real as real

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # tests run side by side; a run sets its own number for as long as it lasts

SHIPPED = sorted(Path(fedlit.__file__).parents[1].glob("configs/*.yaml"))

TINY = (
    "--config synthetic_fedbc.yaml --data.num_clients 4 --data.size_sigma 0 --data.size_mean 1 --data.size_min 12 "
    "--trainer.clients_per_round 2 --trainer.rounds 3 --trainer.engine sequential --trainer.checkpoint_every 1 "
    "--trainer.enable_progress_bar false --run run"
)
"""A run of FedBC that takes a quarter of a second, in the folder `run`."""


NOT_DRAWN = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
"""A PNG of one pixel."""

DRAWING = ("fedlit.trainer.fit.draw_partition", "fedlit.cli.data.draw_partition")
"""Who draws partitions."""


def pytest_collection_finish() -> None:
    """What is imported and collected stays until the end: the collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


Call = Callable[[str], Answer]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below the folder with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder of a user without W&B credentials; what a run leaves in the environment is undone."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "FEDLIT_", "PL_"))]:
        if name != "WANDB_DATA_DIR":
            monkeypatch.delenv(name)
    for name in ("WANDB_MODE", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # Lightning sets these: restored at the end
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "netrc").touch()
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(sys, "path", list(sys.path))  # a command adds its working folder
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def call(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """`call("fit --config ...")`: the command line, in this process and in an empty working folder."""

    def run(words: str) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(words))
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Answer(ended.value.code, said.out, said.err)

    return run


@pytest.fixture(autouse=True)
def ladder_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test wants to be compiled is compiled as we write it: stepping down would hide that it cannot be."""

    def refuse(self: Ladder, why: str) -> None:
        raise AssertionError(f"the training stepped down: {why}")

    monkeypatch.setattr(Ladder, "_step_down", refuse)


@pytest.fixture
def partition_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user has it."""
    for place in DRAWING:
        monkeypatch.setattr(place, draw_partition)


@pytest.fixture
def figures_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are planned, and each file is a pixel: tests/report draws them."""
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: Path(path).write_bytes(NOT_DRAWN))


@pytest.fixture(params=["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the program of a compiled run is run: as it is given to the compiler, which is quick, or compiled."""
    if request.param == "traced":
        monkeypatch.setattr("fedlit.engines.vectorized.compile_program", traced_program)


@pytest.fixture
def few_inner_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """pFedMe with `inner_nu` takes up to a hundred inner steps for each step: a quarter of a minute for a tiny run."""
    monkeypatch.setattr(pfedme, "MOST_INNER_STEPS", 3)


@pytest.fixture
def refusal(call: Call, workplace: Path) -> Callable[..., str]:
    """`refusal("fit ...", code=2)`: the one paragraph that is said; nothing in the working folder changes."""

    def run(words: str, *, code: int = 2) -> str:
        before = files(workplace)
        answer = call(words)
        assert answer.code == code
        assert answer.out == ""
        assert answer.err.startswith("fedlit: ")
        assert answer.err.endswith("\n")
        assert answer.err.count("\n") == 1, "one paragraph, without a traceback"
        assert files(workplace) == before
        return answer.err

    return run


@pytest.fixture(autouse=True)
def wandb_ends_with_its_test(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """W&B reads its environment once and keeps it: the next test must not get this one's.

    What an offline run leaves for `wandb sync` does not go to the user's home.
    """
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path_factory.getbasetemp() / "wandb"))
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture(autouse=True, scope="session")
def installed_packages_are_listed_once() -> Iterator[None]:
    """Every Lightning trainer asks all installed packages for plugins: a seventh of a small run's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_fabric.utilities.registry.entry_points", cache(importlib.metadata.entry_points))
        yield


@pytest.fixture(autouse=True, scope="session")
def commit_and_versions_are_asked_once() -> Iterator[None]:
    """Every summary of a run holds them; git is a process of its own, and each version is read from a file."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("git_commit", "versions"):
            patch.setattr(f"fedlit.trainer.fit_results.{name}", cache(getattr(summary, name)))
        yield


@pytest.fixture(autouse=True, scope="session")
def partitions_are_not_drawn() -> Iterator[None]:
    """A run's folder holds a drawing of its partition, which takes longer than a small run: one pixel must do."""
    with pytest.MonkeyPatch.context() as patch:
        for place in DRAWING:
            patch.setattr(place, lambda described, path: path.write_bytes(NOT_DRAWN))
        yield


@pytest.fixture(autouse=True, scope="session")
def seats_are_forks() -> Iterator[None]:
    """A seat of `compare`, `sweep` or `reproduce` imports fedlit for seconds; test_seat.py and what is killed do so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "_open", open_forked)
        patch.setattr(Imported, "start", lambda self: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def nothing_waits_for_the_disk() -> Iterator[None]:
    """What the system has of a file outlives a kill -9; only a loss of power needs `fsync`, and no test has that.

    A small run asks for it 38 times. A file that is closed is still an error.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield
