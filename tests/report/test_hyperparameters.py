"""The table of hyper-parameters: from config.yaml and the records that sweeps and tables made again really write."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from fedlit import FedBC, FederatedTrainer
from fedlit.client.base import Client
from fedlit.errors import ConfigError
from fedlit.experiments.sweep.file import find_sweep, read_sweep
from fedlit.experiments.sweep.sweep import definition
from fedlit.experiments.trials import Trial, TrialLog
from fedlit.report.grids import Grid
from fedlit.report.hyperparameters import OF_ADAM, OF_THE_ROUND, OF_THE_WORLD, UNUSED, hyperparameters_grid
from fedlit.report.latex import grid_lines
from fedlit.report.searches import value_text
from fedlit.results.runs import find_runs, group_runs
from tests.report.folders import write_run


def table(folder: Path, *searches: Path) -> Grid:
    return hyperparameters_grid("t", group_runs(find_runs([folder])), searches)


def lines(grid: Grid) -> list[tuple[str, ...]]:
    return [tuple(entry.text for entry in row) for row in grid.rows]


def test_shared_options_stand_once_and_each_algorithm_has_its_own(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"lr": 0.01, "momentum": 0.5, "l2": 0.0, "lr_decay": 1.0, "clip": None}
    write_run(tmp_path / "a", {"x": [1, 1]}, model=shared)
    write_run(tmp_path / "b", {"x": [1, 1]}, algorithm="FedBC", model=shared | {"dual_lr": 1e-7, "tolerance_init": 0.0})
    assert lines(table(tmp_path)) == [
        ("all", "rounds", "—", "2"),
        ("all", "lr", "—", "0.01"),
        ("all", "momentum", "—", "0.5"),
        ("all", "clients_per_round", "—", "2"),
        ("FedBC", "dual_lr", "—", "1e-7"),
        ("FedBC", "tolerance_init", "—", "0"),
    ]


def test_options_of_adam_are_listed_where_adam_is(tmp_path: Path) -> None:
    options = {"betas": [0.9, 0.999], "eps": 1e-8}
    write_run(tmp_path / "a", {"x": [1]}, model={"optimizer": "adam", **options})
    write_run(tmp_path / "b", {"x": [1]}, model={"optimizer": "sgd", **options}, algorithm="FedBC")
    found = [line for line in lines(table(tmp_path)) if line[1] in ("optimizer", "betas", "eps")]
    assert found == [
        ("FedAvg", "optimizer", "—", "adam"),
        ("FedAvg", "betas", "—", "[0.9, 0.999]"),
        ("FedAvg", "eps", "—", "1e-8"),
    ]


def test_what_is_left_out_are_options_at_their_defaults() -> None:
    known: dict[str, Any] = {}
    for owner in (Client, FederatedTrainer):
        known |= {name: given.default for name, given in inspect.signature(owner).parameters.items()}
    assert {name: known[name] for name in UNUSED if name in known} == {
        name: value for name, value in UNUSED.items() if name in known
    }
    assert {*UNUSED, *OF_THE_ROUND, *OF_THE_WORLD, *(name.removeprefix("model.") for name in OF_ADAM)} <= set(known)


def sweep(folder: Path, name: str, values: dict[float, float]) -> Path:
    """A finished sweep of a shipped file: learning rate -> the objective."""
    file = read_sweep(find_sweep(name))
    record = TrialLog(folder / "sweep.json", definition(file, []))
    for number, (rate, value) in enumerate(values.items()):
        path = write_run(
            folder / f"trial-{number:03d}", {"val/acc": [value]}, algorithm="FedBC", model={"lr": rate, "dual_lr": 1e-3}
        )
        parameters = {"model.lr": rate, "model.dual_lr": 1e-3}
        record.trials[path.name] = Trial(path.name, parameters, status="finished", value=value, run=path.name)
    record.save()
    return folder


def test_a_sweep_shows_the_ranges_and_its_best_trial_alone(tmp_path: Path) -> None:
    grid = table(sweep(tmp_path / "s", "synthetic_fedbc", {0.01: 0.7, 0.1: 0.9, 0.5: 0.8}))
    searched = [line for line in lines(grid) if line[2] != "—"]
    rates = ", ".join(value_text(rate) for rate in (0.001, 0.01, 0.1, 0.5, 1.0))
    duals = ", ".join(value_text(rate) for rate in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2))
    assert {(option, values, chosen) for _, option, values, chosen in searched} == {
        ("lr", rates, "0.1"),
        ("dual_lr", duals, "0.001"),
    }
    assert all(row[3].bold == (row[2].text != "—") for row in grid.rows)
    assert grid.notes == [
        "FedBC lr=0.1: grid search of 3 trials, ranked by val/acc.",
        "Left out: 2 groups that were run to choose these values, and were not chosen.",
    ]


def test_a_range_is_told_with_its_scale(tmp_path: Path) -> None:
    grid = table(sweep(tmp_path / "s", "synthetic_fedbc_random", {0.1: 0.9}))
    (found,) = [line for line in lines(grid) if line[1] == "dual_lr"]
    assert found[2] == "1e-7 to 0.01, logarithmic"


def test_runs_after_a_search_are_told_of_it_by_naming_its_folder(tmp_path: Path) -> None:
    search = sweep(tmp_path / "s", "synthetic_fedbc", {0.01: 0.7, 0.1: 0.9})
    write_run(tmp_path / "runs" / "bc", {"x": [1]}, algorithm="FedBC", model={"lr": 0.1, "dual_lr": 1e-3})
    write_run(tmp_path / "runs" / "avg", {"x": [1]}, model={"lr": 0.5})
    grid = table(tmp_path / "runs", search)
    assert {line[:2] for line in lines(grid) if line[2] != "—"} == {("FedBC", "lr"), ("FedBC", "dual_lr")}
    assert len([line for line in lines(grid) if line[:2] == ("FedAvg", "lr")]) == 1


def test_a_table_made_again_shows_what_its_search_tried(tmp_path: Path) -> None:
    record = TrialLog(tmp_path / "reproduce.json", {"command": "reproduce", "table": "fedbc_table7", "rounds": 100})
    for name, cell, rate, searched in (
        ("c2-FedBC-try00", "FedBC:C=2", 0.01, True),
        ("c2-FedBC-try01", "FedBC:C=2", 0.1, True),
        ("c1-FedBC-seed0", "FedBC:C=1", 0.1, False),
    ):
        write_run(tmp_path / name, {"x": [1]}, algorithm="FedBC", model={"lr": rate}, seed=5 if searched else 0)
        parameters = {"cell": cell, "searched": searched, "model.lr": rate}
        record.trials[name] = Trial(name, parameters, status="finished", value=0.5, run=name)
    record.save()
    grid = hyperparameters_grid("t", group_runs(find_runs([tmp_path / "c1-FedBC-seed0"])))
    assert ("FedBC", "lr", "0.01, 0.1", "0.1") in lines(grid)
    assert grid.notes == ["FedBC: 2 runs of the search of fedbc_table7."]


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"about": {"parameters": 1, "metric": 2}, "trials": [{"run": "a"}]}']
)
def test_a_damaged_record_costs_a_line_and_is_refused_where_it_was_named(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_run(tmp_path / "a", {"x": [1]}, model={"lr": 0.1})
    (tmp_path / "sweep.json").write_text(content)
    assert ("FedAvg", "lr", "—", "0.1") in lines(table(tmp_path))
    assert "without its search, whose record cannot be read" in caplog.text
    with pytest.raises(ConfigError, match="--search .* holds no search that can be read"):
        table(tmp_path, tmp_path)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {"x": [1]})
    with pytest.raises(ConfigError, match="Give a folder of 'fedlit sweep' or 'fedlit reproduce'"):
        table(tmp_path, tmp_path / "nowhere")


def test_the_table_is_latex_with_rules_and_escaped_names(tmp_path: Path) -> None:
    text = "\n".join(grid_lines(table(sweep(tmp_path / "s", "synthetic_fedbc", {0.1: 0.9})), "Synthetic"))
    assert r"\begin{tabular}{llll}" in text
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 1
    rows = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert all(row.count(" & ") == 3 and row.endswith(r"\\") for row in rows)
    assert r"dual\_lr & 1e-7, 1e-6, 1e-5, 0.0001, 0.001, 0.01 & {\boldmath\textbf{0.001}} \\" in text


def test_every_option_of_an_algorithm_can_be_a_row(tmp_path: Path) -> None:
    own = {name: 0.5 for name in inspect.signature(FedBC).parameters if name not in ("net", "local")}
    write_run(tmp_path / "a", {"x": [1]}, algorithm="FedBC", model=own)
    assert set(own) <= {line[1] for line in lines(table(tmp_path))}
    assert json.dumps(lines(table(tmp_path)))
