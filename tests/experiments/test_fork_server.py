"""A seat: imports once, runs one command after the other, and outlives none of them nor its owner."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedlit.experiments.fork_server import IMPORTED, ForkServer, Imported

CORES = sorted(os.sched_getaffinity(0))[:1]
SECONDS = 300
LONG = ["fit", "--config", "synthetic_fedavg.yaml", "--trainer.rounds=100000", "--trainer.engine=sequential"]


OPEN, START = ForkServer._open, Imported.start
"""As a user has them; in the session, tests/conftest.py has others."""


@pytest.fixture(scope="module")
def seat() -> Iterator[ForkServer]:
    one = ForkServer(CORES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "_open", OPEN)
        patch.setattr(Imported, "start", START)
        yield one
        one.close()
        IMPORTED.close()


def said(seat: ForkServer, words: list[str], log: Path) -> tuple[int, str]:
    """(exit code, what it said)."""
    with log.open("ab") as file:
        seat.start(words, file)
        return seat.wait(), log.read_text()


def begun(seat: ForkServer, folder: Path) -> None:
    """Start a run that has no end, and wait until it has some rounds."""
    with (folder / "log").open("ab") as file:
        seat.start([*LONG, "--run", str(folder / "run")], file)
    wait_until(lambda: (folder / "run" / "metrics.csv").is_file() or seat.poll() is not None)
    assert seat.poll() is None, (folder / "log").read_text()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not come so far"
        time.sleep(0.01)


def seat_of(process: int) -> int:
    """The process that it was forked from."""
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_commands_follow_each_other_in_one_process_that_imported_once(seat: ForkServer, tmp_path: Path) -> None:
    code, text = said(seat, ["list", "configs"], tmp_path / "first")
    assert (code, "synthetic_fedbc" in text) == (0, True)
    code, text = said(seat, ["fit", "--config", "synthetic_fedbc.yaml", "--model.lr=-1"], tmp_path / "second")
    assert code == 2
    assert text.startswith("fedlit: ")


def test_a_run_is_ended_and_the_seat_goes_on(
    seat: ForkServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    begun(seat, tmp_path)
    seat.terminate()
    assert seat.wait() == 130, "it ended with its round"
    assert "continue with" in (tmp_path / "log").read_text()
    begun(seat, tmp_path_factory.mktemp("again"))
    seat.kill()
    assert seat.wait() == -signal.SIGKILL
    assert said(seat, ["list", "sweeps"], tmp_path / "other")[0] == 0


def test_a_run_of_a_killed_seat_ends_with_its_round_and_a_new_seat_takes_its_place(
    seat: ForkServer, tmp_path: Path
) -> None:
    begun(seat, tmp_path)
    run = json.loads((tmp_path / "run" / "lock").read_text())["pid"]
    os.kill(seat_of(run), signal.SIGKILL)
    assert seat.wait() == -signal.SIGKILL
    wait_until(lambda: "continue with" in (tmp_path / "log").read_text())
    assert said(seat, ["list", "sweeps"], tmp_path / "other")[0] == 0


def test_a_seat_runs_on_its_cores(seat: ForkServer, tmp_path: Path) -> None:
    begun(seat, tmp_path)
    run = json.loads((tmp_path / "run" / "lock").read_text())["pid"]
    assert sorted(os.sched_getaffinity(run)) == CORES
    seat.kill()
    seat.wait()
