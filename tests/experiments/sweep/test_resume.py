"""A sweep that is stopped anywhere, even by kill -9, goes on to the same ranking, though a trial fails on the way."""

import json
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedlit.experiments.jobs import rounds_done
from tests.experiments.sweep.sweeps import TINY, TOO_FAST, answer_of, write_sweep
from tests.forked import Fork, forked

ROUNDS = 24
SECONDS = 300
PARAMETERS: dict[str, dict[str, Any]] = {
    "grid": {"model.dual_lr": {"values": [0.001]}, "model.lr": {"values": [0.02, TOO_FAST, 0.1]}},
    "random": {
        "model.dual_lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-2},
        "model.lr": {"values": [0.02, 0.1, TOO_FAST]},
    },
}
WORDS = TINY.replace("--trainer.rounds 3", f"--trainer.rounds {ROUNDS}")
Whole = Callable[[str], tuple[list[Any], str]]


def words_of(method: str, work: Path, jobs: int = 2) -> str:
    """A sweep of three trials, of which one fails, in the folder `work`."""
    path = write_sweep(work / "sweep.yaml", PARAMETERS[method], method=method)
    return f"sweep {path} --runs 3 --seed 6 --jobs {jobs} --out {work / 'out'} {WORDS}"


def finished(words: str) -> str:
    """What it says when it comes to its end."""
    answer = answer_of(words)
    assert answer.code == 0, answer
    return answer.out


def trials(work: Path) -> list[dict[str, Any]]:
    try:
        held = json.loads((work / "out" / "sweep.json").read_text())["trials"]
    except FileNotFoundError:
        return []
    assert isinstance(held, list)
    return held


def outcome(work: Path) -> list[Any]:
    """All that a sweep came to, without its times."""
    return [[trial[key] for key in ("name", "parameters", "status", "value", "reason")] for trial in trials(work)]


def ranking(said: str) -> str:
    return said[said.index("rank") : said.index("picture:")]


def children_of(parent: int) -> list[Path]:
    """Folders in /proc of the processes that it started."""
    stats = [path for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return [path.parent for path in stats if path.read_text().rsplit(")", 1)[1].split()[1] == str(parent)]


def wait_until(condition: Callable[[], bool], process: Fork) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not come so far"
        assert process.poll() is None, "it ended before it could be stopped"
        time.sleep(0.01)


def is_in_the_middle(work: Path) -> bool:
    """A trial is done, and another has some rounds."""
    states = {trial["name"]: trial["status"] for trial in trials(work)}
    rounds = [rounds_done(work / "out" / name / "metrics.csv") for name, state in states.items() if state == "running"]
    return any(state in ("finished", "failed") for state in states.values()) and any(0 < r < ROUNDS / 2 for r in rounds)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What a sweep comes to when nobody stops it; each is run once."""

    @cache
    def run(method: str) -> tuple[list[Any], str]:
        work = tmp_path_factory.mktemp(method)
        said = finished(words_of(method, work))
        return outcome(work), ranking(said)

    return run


@pytest.mark.parametrize(
    ("method", "by", "jobs"),
    [
        ("grid", signal.SIGKILL, 1),
        pytest.param("grid", signal.SIGKILL, 2, marks=pytest.mark.slow),
        pytest.param("grid", signal.SIGINT, 2, marks=pytest.mark.slow),
        pytest.param("random", signal.SIGKILL, 2, marks=pytest.mark.slow),
        pytest.param("random", signal.SIGTERM, 2, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_sweep_goes_on_to_the_same_ranking(
    whole: Whole, workplace: Path, method: str, by: signal.Signals, jobs: int
) -> None:
    words = words_of(method, workplace, jobs)
    process = forked(words)
    wait_until(lambda: is_in_the_middle(workplace), process)
    children = children_of(process.pid)
    assert 1 <= len(children) <= jobs
    process.send_signal(by)
    assert process.wait(SECONDS) == (-by if by == signal.SIGKILL else 130)
    said = finished(words)  # at once: it waits for what the killed one left
    assert (outcome(workplace), ranking(said)) == whole(method)
    assert sorted(trial[2] for trial in outcome(workplace)) == ["failed", "finished", "finished"]
    assert not any(child.exists() for child in children)
