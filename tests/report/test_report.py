"""`fedlit report` from run folders to files, as a user calls it."""

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from fedlit.report import write_report
from fedlit.report.page import build_report
from fedlit.results.runs import find_runs, read_run
from tests.conftest import TINY, Call, files
from tests.report.folders import write_run

ACCURACIES = {"FedAvg": [0.50, 0.52, 0.54], "FedBC": [0.60, 0.63, 0.66]}


@pytest.fixture
def runs(workplace: Path) -> Path:
    """Two algorithms with three seeds each, in the folder `runs`."""
    for algorithm, values in ACCURACIES.items():
        for seed, value in enumerate(values):
            numbers = {"global/acc": [0.1, value - 0.02, value], "users/gini": [0.9, 0.5, 1 - value]}
            write_run(workplace / "runs" / f"{algorithm}-{seed}", numbers, algorithm=algorithm, seed=seed)
    return Path("runs")


def cells(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "cells.json").read_text())
    return found


@pytest.mark.usefixtures("figures_are_not_drawn")
def test_really_trained_runs_become_a_report(call: Call, workplace: Path) -> None:
    for algorithm in ("fedavg", "fedbc"):
        tiny = TINY.replace("synthetic_fedbc", f"synthetic_{algorithm}")
        assert call(f"fit {tiny}/{algorithm} --wandb disabled").code == 0
    answer = call("report run --against fedbc_table1_synthetic_global")
    assert answer.code == 0
    out = workplace / "run" / "report"
    assert {path.name for path in out.iterdir()} == {"report.html", "report.md", "tables.tex", "cells.json", "figures"}
    page = (out / "report.html").read_text()
    pictures = re.findall(r'<img src="([^"]+)"', page)
    assert pictures
    assert all((out / picture).is_file() and (out / picture).with_suffix(".pdf").is_file() for picture in pictures)
    assert {cell["row"] for cell in cells(out)} == {"FedAvg", "FedBC"}


def test_the_report_goes_beside_the_runs_unless_said_otherwise(call: Call, runs: Path, workplace: Path) -> None:
    answer = call("report runs --metric global/acc")
    assert answer.code == 0
    assert (workplace / "runs" / "report" / "report.html").is_file()
    assert str(runs / "report" / "report.html") in answer.out
    assert call("report runs/FedAvg-0 runs/FedBC-0 --metric global/acc").code == 0
    assert (workplace / "report" / "report.html").is_file()
    assert call("report runs --metric global/acc --out deep/er").code == 0
    assert (workplace / "deep" / "er" / "report.html").is_file()


def test_every_cell_is_the_mean_of_the_runs_it_names(runs: Path, workplace: Path) -> None:
    write_report(find_runs([runs]), Path("out"))
    found = cells(workplace / "out")
    assert {cell["table"] for cell in found} == {"synthetic-results", "synthetic-differences"}
    for cell in found:
        values = [one["value"] for one in cell["values"]]
        assert cell["n"] == len(values) == 3
        assert cell["mean"] == pytest.approx(fmean(values))
        assert cell["std"] == pytest.approx(stdev(values))
    for cell in (cell for cell in found if cell["table"] == "synthetic-results"):
        for one in cell["values"]:
            run = read_run(workplace / "out" / one["run"])
            assert (run.seed, run.final(cell["column"])) == ((one["seed"], one["data_seed"]), one["value"])


def test_differences_name_both_runs_of_each_pair(runs: Path, workplace: Path) -> None:
    write_report(find_runs([runs]), Path("out"))
    (cell,) = [
        c for c in cells(workplace / "out") if c["table"].endswith("differences") and c["column"] == "global/acc"
    ]
    assert cell["interval"] == pytest.approx([0.11 - 0.0248414, 0.11 + 0.0248414], abs=1e-6)
    assert [(one["run"], one["reference"]["run"]) for one in cell["values"]] == [
        (f"../runs/FedBC-{seed}", f"../runs/FedAvg-{seed}") for seed in range(3)
    ]
    assert all(one["own"] - one["reference"]["value"] == pytest.approx(one["value"]) for one in cell["values"])


def test_the_terminal_shows_results_and_clear_differences_in_80_columns(call: Call, runs: Path) -> None:
    answer = call("report runs")
    assert "52.00 ± 2.00" in answer.out
    assert "FedBC: global accuracy [%] +11.00 (+8.52 to +13.48; 3 pairs), better" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_metrics_last_rounds_and_reference_are_the_users(call: Call, runs: Path, workplace: Path) -> None:
    answer = call("report runs --metric users/gini --metric global/acc --last 2 --reference FedBC")
    assert answer.code == 0
    text = (workplace / "runs" / "report" / "report.md").read_text()
    assert "the mean of the 2 last evaluated rounds" in text
    assert "Differences to FedBC" in text
    row = next(line for line in text.splitlines() if line.startswith("| FedAvg | 3 |"))
    assert row.endswith("| 51.00 ± 2.00 |")


def test_the_same_runs_give_the_same_report(runs: Path, workplace: Path) -> None:
    write_report(find_runs([runs]), Path("out"))
    before = files(workplace / "out")
    write_report(find_runs([runs]), Path("out"))
    assert files(workplace / "out") == before


def test_the_files_that_are_returned_are_all_that_were_written(runs: Path, workplace: Path) -> None:
    written = write_report(find_runs([runs]), Path("out"))
    assert sorted(str(path.relative_to("out")) for path in written) == sorted(files(workplace / "out"))


def test_each_data_set_has_its_own_tables_and_figures(workplace: Path) -> None:
    for data in ("Synthetic", "MNIST"):
        write_run(workplace / "runs" / data, {"global/acc": [0.2, 0.5]}, data=data)
    write_report(find_runs([Path("runs")]), Path("out"))
    text = (workplace / "out" / "report.md").read_text()
    assert "## MNIST" in text
    assert "## Synthetic" in text
    assert "The runs are of different data: MNIST, Synthetic. Each has its own tables." in text
    assert {cell["table"] for cell in cells(workplace / "out")} == {"mnist-results", "synthetic-results"}
    assert {path.name for path in (workplace / "out" / "figures").iterdir()} == {"mnist", "synthetic"}


def test_runs_with_other_measures_have_their_own_tables(workplace: Path) -> None:
    write_run(workplace / "runs" / "classes", {"global/acc": [0.2, 0.5]}, data="TensorData")
    write_run(workplace / "runs" / "numbers", {"global/mse": [0.4, 0.3]}, data="TensorData")
    report = build_report(find_runs([Path("runs")]), Path("out"))
    assert {section.data for section in report.sections} == {"TensorData (accuracy)", "TensorData (MSE)"}
    columns = {
        section.data: [head.name for head in section.grids[0].headings if head.name] for section in report.sections
    }
    assert columns == {"TensorData (accuracy)": ["global/acc"], "TensorData (MSE)": ["global/mse"]}


def test_a_seed_that_was_run_twice_counts_once(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", {"global/acc": [0.5]}),
        write_run(tmp_path / "b", {"global/acc": [0.4, 0.9]}),
        write_run(tmp_path / "c", {"global/acc": [0.4, 0.7]}, seed=1),
    ]
    report = build_report([read_run(path) for path in paths], tmp_path / "out")
    assert [entry.text for entry in report.grids[0].rows[0]] == ["FedAvg", "2", "80.00 ± 14.14"]
    assert f"{paths[0]} is left out, because {paths[1]} has the same seed and is newer." in report.remarks


def test_missing_client_records_are_said(runs: Path) -> None:
    report = build_report(find_runs([runs / "FedAvg-0"]), Path("out"))
    (remark,) = report.remarks
    assert re.fullmatch("Client records are missing or damaged.*: FedAvg-0.", remark)


def test_damaged_and_unfinished_runs_are_left_out_with_a_line(
    call: Call, runs: Path, workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (workplace / "runs" / "FedAvg-0" / "summary.json").write_text("{")
    with (workplace / "runs" / "FedAvg-1" / "metrics.csv").open("a") as metrics:
        metrics.write("4,0.")
    (workplace / "runs" / "FedBC-0" / "metrics.csv").write_text("round,global/acc\n0,0.1\n")
    answer = call("report runs --metric global/acc")
    assert answer.code == 0
    assert "left out: runs/FedAvg-0/summary.json cannot be read" in caplog.text
    assert "left out: runs/FedBC-0 has no finished round" in caplog.text
    counts = {cell["row"]: cell["n"] for cell in cells(workplace / "runs" / "report") if "results" in cell["table"]}
    assert counts == {"FedAvg": 2, "FedBC": 2}


def test_numbers_that_are_not_finite_are_null(workplace: Path) -> None:
    write_run(workplace / "run", {"global/acc": [0.5], "global/loss": [float("inf")]})
    write_report(find_runs([Path("run")]), Path("out"), metrics=["global/loss"])
    (cell,) = cells(workplace / "out")
    assert (cell["mean"], cell["std"], cell["values"][0]["value"]) == (None, None, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--metric global/ac", "Did you mean 'global/acc'?"),
        ("--last 0", "--last is 0"),
        ("--against fedbc_table", "Did you mean 'fedbc_table1_synthetic_global'?"),
        ("--against fedbc_table_2", "Did you mean 'fedbc_table2_"),
        ("--against fedbc_tabel2", "Did you mean 'fedbc_table2_"),
        ("--reference FedAv", "Did you mean 'FedAvg'?"),
        ("--out runs/FedAvg-0/config.yaml", "cannot be made a folder"),
        ("--search runs", "--search runs holds no search that can be read"),
    ],
)
def test_wrong_input_is_one_paragraph_and_writes_nothing(runs: Path, refusal: Any, words: str, message: str) -> None:
    assert message in refusal(f"report runs {words}")
