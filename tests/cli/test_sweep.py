"""`fedlit sweep` as a user calls it: what it refuses, says, writes, and does not run again."""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Answer, Call
from tests.experiments.sweep.sweeps import TINY, TOO_FAST, answer_of, write_sweep

Refusal = Callable[..., str]
LR: dict[str, Any] = {"model.lr": {"values": [0.02, 0.1]}}


@dataclass(frozen=True)
class Done:
    """A sweep that came to its end, with one failed trial of three."""

    answer: Answer
    words: str
    folder: Path

    def trials(self) -> list[dict[str, Any]]:
        held = json.loads((self.folder / "sweep.json").read_text())["trials"]
        assert isinstance(held, list)
        return held

    def starts(self) -> list[int]:
        """How often each trial was started."""
        return [path.read_text().count("$ fedlit fit") for path in sorted(self.folder.glob("trial-*.log"))]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """The sweep, run once for all tests of this file."""
    work = tmp_path_factory.mktemp("work")
    path = write_sweep(work / "rates.yaml", {"model.lr": {"values": [0.02, 0.1, TOO_FAST]}})
    words = f"sweep {path} --jobs 2 --out {work / 'out'} {TINY}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        yield Done(answer_of(words), words, work / "out")


# what is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--jobs 0", "--jobs is 0; give 1 or more"),
        ("--runs 0", "--runs is 0; give 1 or more"),
        ("--seed -1", "--seed is -1; give 0 or more"),
        ("--run here", "--run cannot be given here"),
        ("--overwrite", "--overwrite cannot be given here"),
        ("--model.lr 0.1", "sweep.yaml sweeps model.lr"),
        ("--trainer.round 3", "'trainer.round' is not an option. Did you mean 'trainer.rounds'?"),
        ("--model.dual_lr fast", "model.dual_lr is 'fast', but it must be a number"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(
    refusal: Refusal, workplace: Path, words: str, said: str
) -> None:
    write_sweep(workplace / "sweep.yaml", LR)
    assert said in refusal(f"sweep sweep.yaml {words}")


def test_an_unknown_parameter_is_refused_with_file_key_and_the_nearest_name(refusal: Refusal, workplace: Path) -> None:
    write_sweep(workplace / "sweep.yaml", {"model.lrr": {"value": 0.1}})
    assert "sweep.yaml: 'model.lrr' is not an option. Did you mean 'model.lr'?" in refusal("sweep sweep.yaml")


def test_a_file_that_is_no_yaml_is_refused_with_its_line(refusal: Refusal, workplace: Path) -> None:
    (workplace / "sweep.yaml").write_text("method: grid\nparameters: [\n")
    assert "sweep.yaml, line 3: this is not YAML" in refusal("sweep sweep.yaml")


def test_a_sweep_without_a_metric_is_refused_with_an_example(refusal: Refusal, workplace: Path) -> None:
    write_sweep(workplace / "sweep.yaml", LR, metric=None)
    assert "Add metric: {name: val/acc, goal: maximize}" in refusal("sweep sweep.yaml")


def test_a_file_that_does_not_exist_is_refused(refusal: Refusal) -> None:
    assert "There is no sweep file 'x.yaml'" in refusal("sweep x.yaml")


def test_other_commands_still_refuse_what_they_do_not_know(call: Call) -> None:
    answer = call("dashboard run --trainer.rounds 3")
    assert answer.code == 2
    assert "unrecognized arguments: --trainer.rounds 3" in answer.err


# what it does


def test_a_failing_trial_does_not_stop_the_others(done: Done) -> None:
    assert done.answer.code == 0, done.answer
    assert [trial["status"] for trial in done.trials()] == ["finished", "finished", "failed"]
    failed = done.trials()[2]
    assert re.search(r"client \d diverged", failed["reason"])
    assert f"failed: trial-002 (lr=1e+12): {failed['reason']}" in done.answer.out


def test_each_end_is_a_line_without_a_terminal(done: Done) -> None:
    lines = [line for line in done.answer.out.splitlines() if re.match(r"\d/3 trial-00\d \(lr=", line)]
    assert len(lines) == 3
    assert [line[:3] for line in lines] == ["1/3", "2/3", "3/3"]


def test_the_ranking_the_picture_and_the_best_command_come_last(done: Done) -> None:
    finished = sorted(done.trials()[:2], key=lambda trial: (-trial["value"], trial["name"]))
    rows = [line.split() for line in done.answer.out.splitlines() if re.match(r" +\d +trial", line)]
    assert [row[1] for row in rows] == [trial["name"] for trial in finished]
    assert rows[0][3] == f"{100 * finished[0]['value']:.2f}"
    assert (done.folder / "parallel.png").is_file()
    assert (done.folder / "search.png").is_file()
    best = done.answer.out.splitlines()[-1]
    lr = finished[0]["parameters"]["model.lr"]
    assert best.startswith(f"best: fedlit fit --config synthetic_fedbc.yaml --model.lr={lr} --data.num_clients 4")


def test_the_table_has_the_test_accuracy_of_each_trials_best_round(done: Done) -> None:
    (heading,) = [line.split() for line in done.answer.out.splitlines() if line.lstrip().startswith("rank")]
    rows = [line.split() for line in done.answer.out.splitlines() if re.match(r" +\d +trial", line)]
    assert heading[-2:] == ["val/acc", "best/global_acc"]
    for row in rows:
        summary = json.loads((done.folder / row[1] / "summary.json").read_text())
        assert row[-2:] == [f"{100 * summary['best/global_acc']:.2f}", "%"]


def test_a_value_is_the_best_of_its_run(done: Done) -> None:
    from fedlit.results.runs import read_run

    for trial in done.trials()[:2]:
        assert trial["value"] == max(read_run(done.folder / trial["run"]).series("val/acc")[1])


def test_the_same_command_runs_nothing_again_and_says_the_same(done: Done, call: Call) -> None:
    before = done.starts()
    answer = call(done.words)
    assert answer.code == 0
    assert done.starts() == before
    assert answer.out[answer.out.index("rank") :] == done.answer.out[done.answer.out.index("rank") :]


def test_failed_trials_are_retried_on_request(done: Done, call: Call) -> None:
    before = done.starts()
    assert call(f"{done.words} --retry-failed").code == 0
    assert done.starts() == [before[0], before[1], before[2] + 1]


def test_the_folder_of_another_sweep_is_refused(done: Done, refusal: Refusal, workplace: Path) -> None:
    write_sweep(workplace / "other.yaml", LR)
    assert "parameters changed" in refusal(f"sweep other.yaml --out {done.folder} {TINY}")


def test_a_damaged_record_is_refused(refusal: Refusal, workplace: Path) -> None:
    write_sweep(workplace / "sweep.yaml", LR)
    (workplace / "out").mkdir()
    (workplace / "out" / "sweep.json").write_text('{"about": {')
    assert "out/sweep.json is damaged" in refusal("sweep sweep.yaml --out out")


def test_a_folder_that_another_process_uses_is_refused(call: Call, workplace: Path) -> None:
    from fedlit.experiments.runner import claimed

    write_sweep(workplace / "sweep.yaml", LR)
    (workplace / "out").mkdir()
    with claimed(workplace / "out"):
        answer = call("sweep sweep.yaml --out out")
    assert answer.code == 2
    assert f"out is in use: process {os.getpid()} on " in answer.err


def test_a_sweep_of_which_all_trials_fail_fails_and_what_is_ignored_or_unwise_is_said(
    call: Call, workplace: Path
) -> None:
    metric = {"name": "global/acc", "goal": "maximize"}
    stopping = {"type": "hyperband", "min_iter": 3}
    write_sweep(workplace / "sweep.yaml", {"model.dual_lr": {"value": -1.0}}, metric=metric, early_terminate=stopping)
    answer = call(f"sweep sweep.yaml {TINY}")
    assert answer.code == 1
    assert "global/acc is measured on test data" in answer.out
    assert "early_terminate: every trial runs to its end here" in answer.out
    assert "model.dual_lr is -1.0; give 0 (frozen duals) or more." in answer.out
    assert len(list(Path("runs").glob("sweep-sweep-*"))) == 1
