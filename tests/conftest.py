"""What the tests share. fedlit comes first: it lets Lightning be imported beside a CPU-only torch."""

import fedlit  # isort: skip

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedlit.cli import main
from tests.cloud_runs import clouds as clouds
from tests.real_files import real as real

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHIPPED = sorted(Path(fedlit.__file__).parents[1].glob("configs/*.yaml"))

TINY = (
    "--config synthetic_fedbc.yaml --data.num_clients 4 --data.size_sigma 0 --data.size_mean 1 --data.size_min 12 "
    "--trainer.clients_per_round 2 --trainer.rounds 3 --trainer.engine sequential --trainer.checkpoint_every 1 "
    "--trainer.enable_progress_bar false --run run"
)
"""A run of FedBC that takes a quarter of a second, in the folder `run`."""


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
