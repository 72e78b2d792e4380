"""Folders of real runs in which a seed occurs twice, or whose metrics.csv is half a file or another run's."""

import shutil
from pathlib import Path

import pytest

from fedlit.errors import RunError
from fedlit.report.dashboard.content import content_of
from fedlit.report.page import build_report
from fedlit.results.folder import RunFolder
from fedlit.results.runs import find_runs, group_runs, mixed, read_run
from tests.conftest import TINY, Call, files

TINIEST = TINY.replace("--run run", "")
SEEDS = "The groups were run with different seeds"


@pytest.fixture
def twice(call: Call) -> Path:
    """FedBC with seed 0 in two folders, FedAvg with seed 0 in one."""
    for name, more in {"bc-again": "", "bc": "", "avg": " --model FedAvg"}.items():
        assert call(f"fit {TINIEST} --run runs/{name}{more}").code == 0
    return Path("runs")


def test_a_seed_that_was_run_twice_counts_once_and_is_not_another_seed(twice: Path) -> None:
    groups = group_runs(find_runs([twice]))
    assert [[run.path.name for run in group.runs] for group in groups] == [["avg"], ["bc"]]
    said = mixed(groups)
    assert f"{twice / 'bc-again'} is left out, because {twice / 'bc'} has the same seed and is newer." in said
    assert not [remark for remark in said if remark.startswith(SEEDS)]


def test_the_finished_run_counts_though_another_is_newer(twice: Path) -> None:
    (twice / "bc" / "summary.json").unlink()  # as a kill leaves it
    (_, group) = group_runs(find_runs([twice]))
    assert [run.path.name for run in group.runs] == ["bc-again"]
    assert group.repeated == [
        f"{twice / 'bc'} is left out, because {twice / 'bc-again'} has the same seed and is finished."
    ]


def test_report_and_dashboard_count_the_same_runs_and_say_the_same(twice: Path) -> None:
    runs = find_runs([twice])
    report, page = build_report(runs, Path("out")), content_of(runs).index
    assert [run["name"] for run in page["runs"]] == ["avg", "bc"]
    assert [run["title"] for run in page["runs"]] == ["FedAvg, seed 0", "FedBC, seed 0"]
    (section,) = report.sections
    assert [run.path.name for group in section.groups for run in group.runs] == ["avg", "bc"]
    assert [grid.rows[1][1].text for grid in report.grids if grid.name.endswith("-results")] == ["1"]
    for remarks in (report.remarks, page["remarks"]):
        assert [remark for remark in remarks if "has the same seed and is newer" in remark]
        assert not [remark for remark in remarks if SEEDS in remark]


def test_the_dashboards_command_says_what_is_left_out(twice: Path, call: Call) -> None:
    answer = call("dashboard runs")
    assert "2 runs in 2 groups" in answer.out
    assert f"{twice / 'bc-again'} is left out, because" in answer.out


# metrics.csv


@pytest.fixture
def run(call: Call) -> RunFolder:
    """Three rounds, finished."""
    assert call(f"fit {TINY}").code == 0
    return RunFolder(Path("run"))


def halve(metrics: Path) -> None:
    """The header, the initial model and the first of three rounds."""
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]))


def test_half_a_metrics_file_is_refused(run: RunFolder, call: Call) -> None:
    halve(run.metrics)
    with pytest.raises(RunError, match=r"run/metrics.csv is not whole: 2 of the 3 rounds .* first round 2\. Restore"):
        read_run(run.path)
    for command in ("report run", "dashboard run"):
        before = files(run.path)
        answer = call(command)
        assert answer.code == 2
        assert "metrics.csv is not whole" in answer.err
        assert files(run.path) == before


def test_half_a_file_is_made_whole_by_a_resume(run: RunFolder, call: Call) -> None:
    whole = run.metrics.read_text()
    halve(run.metrics)
    assert call(f"fit {TINY} --resume").code == 0
    assert run.metrics.read_text() == whole
    assert read_run(run.path).rounds == [0, 1, 2, 3]


def test_metrics_of_another_seed_are_refused(run: RunFolder, call: Call) -> None:
    assert call(f"fit {TINIEST} --run other --seed_everything 1").code == 0
    shutil.copy("other/metrics.csv", run.metrics)
    with pytest.raises(RunError, match=r"run/metrics.csv is of another run than summary.json: train/loss of round 3"):
        read_run(run.path)


def test_a_run_among_others_that_is_not_whole_is_left_out_with_a_line(
    run: RunFolder, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    assert call(f"fit {TINIEST} --run runs/good --seed_everything 1").code == 0
    shutil.copytree(run.path, "runs/half")
    halve(Path("runs/half/metrics.csv"))
    with caplog.at_level("WARNING", "fedlit"):
        assert [found.path.name for found in find_runs([Path("runs")])] == ["good"]
    assert "left out: runs/half/metrics.csv is not whole" in caplog.text


def test_a_run_that_is_still_training_is_read(run: RunFolder) -> None:
    """No summary yet; or the summary of a part whose last checkpoint was damaged, so that rounds are trained again."""
    halve(run.metrics)
    summary = run.summary.read_text()
    run.summary.unlink()
    assert read_run(run.path).rounds == [0, 1]
    run.summary.write_text(summary)
    with run.claimed():
        assert read_run(run.path).rounds == [0, 1]


def test_a_run_that_goes_on_after_its_summary_is_read(run: RunFolder, call: Call) -> None:
    summary = run.summary.read_text()
    assert call(f"fit {TINY.replace('--trainer.rounds 3', '--trainer.rounds 5')} --resume").code == 0
    run.summary.write_text(summary)  # as a kill after round 5 leaves it
    assert read_run(run.path).rounds == [0, 1, 2, 3, 4, 5]
