"""A run that is not finished is not averaged with finished ones."""

from pathlib import Path

from fedlit.report.finished import finished_alone, left_out
from fedlit.report.page import build_report
from fedlit.results.runs import Run, group_runs, read_run
from tests.conftest import Call
from tests.report.folders import write_run


def runs_of(tmp_path: Path, *finished: bool) -> list[Run]:
    """A run for each, of which the unfinished ones have the worse half of the rounds."""
    paths = [
        write_run(
            tmp_path / f"seed-{seed}",
            {"global/acc": [0.2, 0.8] if is_finished else [0.2]},
            seed=seed,
            summary={"finished": is_finished},
        )
        for seed, is_finished in enumerate(finished)
    ]
    return [read_run(path) for path in paths]


def test_means_of_a_report_leave_unfinished_runs_out_and_say_so(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, True, True, False)
    report = build_report(runs, tmp_path / "out", metrics=["global/acc"])
    assert [entry.text for entry in report.grids[0].rows[0]] == ["FedAvg", "2", "80.00 ± 0.00"]
    said = f"{runs[2].path} is left out of the means of FedAvg, because it is not finished (last round: 1)."
    assert said in report.remarks
    assert not [remark for remark in report.remarks if "different length" in remark]


def test_the_command_of_the_dashboard_names_a_run_that_is_left_out(call: Call, tmp_path: Path) -> None:
    runs = runs_of(tmp_path, True, False)
    answer = call(f"dashboard {tmp_path}")
    assert answer.code == 0
    assert f"{runs[1].path} is left out of the means of FedAvg" in answer.out


def test_a_group_without_any_finished_run_keeps_all(tmp_path: Path) -> None:
    groups = group_runs(runs_of(tmp_path, False, False))
    assert [len(group.runs) for group in finished_alone(groups)] == [2]
    assert left_out(groups) == []
