"""The numbers of tables: hand-computed means and spreads, who is best, what is missing, and how numbers are shown."""

import math
from pathlib import Path

import pytest

from fedlit.errors import ConfigError
from fedlit.report.formats import Style, heading, style_of
from fedlit.report.grids import results_grid, results_grids
from fedlit.report.tables import Cell, Value, cell_of, choose_metrics, measured
from fedlit.results.runs import group_runs, read_run
from tests.report.folders import one_group, seeds, write_run


def cell(*values: float, missing: int = 0) -> Cell:
    runs = [Value(Path(str(seed)), (seed, 0), value) for seed, value in enumerate(values)]
    return Cell("FedAvg", "global/acc", runs, [Path("lost")] * missing)


def test_mean_and_deviation_are_those_of_a_sample(tmp_path: Path) -> None:
    found = cell_of(one_group(seeds(tmp_path, "global/acc", [0.2, 0.4, 0.9])), "global/acc")
    assert found.n == 3
    assert found.mean == pytest.approx(0.5)
    assert found.std == pytest.approx(math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2))


def test_every_value_of_a_cell_names_its_run_and_seed(tmp_path: Path) -> None:
    runs = seeds(tmp_path, "global/acc", [0.2, 0.4])
    values = cell_of(one_group(runs), "global/acc").values
    assert [(one.run, one.seed, one.value) for one in values] == [
        (runs[0].path, (0, 0), 0.2),
        (runs[1].path, (1, 0), 0.4),
    ]


def test_one_seed_has_no_spread() -> None:
    assert cell(0.5).std is None
    assert Style(100, 2).cell(cell(0.5)) == "50.00"


def test_a_value_that_is_not_finite_spoils_the_mean_visibly() -> None:
    assert Style(100, 2).cell(cell(0.5, math.inf)) == "nan ± nan"


def test_a_cell_says_how_many_of_its_runs_it_has() -> None:
    assert Style(100, 2).cell(cell(0.25, 0.75, missing=1)) == "50.00 ± 35.36 (2 of 3)"
    assert Style(100, 2).cell(cell(missing=3)) == "—"


def test_the_last_rounds_are_averaged_on_request(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, {"global/acc": [0.1, 0.2, 0.4]}))
    assert measured(run, "global/acc") == 0.4
    assert measured(run, "global/acc", last=2) == pytest.approx(0.3)


def test_metrics_of_the_summary_count_and_a_threshold_that_was_never_reached_is_missing(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, {"x": [1]}, summary={"rounds_to/0.40": 12, "rounds_to/0.90": None}))
    assert measured(run, "rounds_to/0.40") == 12
    assert measured(run, "rounds_to/0.90") is None


def test_default_metrics_are_those_that_the_runs_have(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, {"train/loss": [1], "users/gini": [0.1], "global/acc": [0.5]}))
    assert choose_metrics([run], []) == ["global/acc", "users/gini"]
    assert choose_metrics([run], ["train/loss", "train/loss"]) == ["train/loss"]


@pytest.mark.parametrize(
    ("local", "columns"),
    [([0.5], ["personal/acc"]), ([0.4], ["local/acc", "personal/acc"])],
    ids=["the same", "another"],
)
def test_personal_accuracy_is_a_column_and_the_local_one_only_where_it_is_another(
    tmp_path: Path, local: list[float], columns: list[str]
) -> None:
    run = read_run(write_run(tmp_path, {"local/acc": local, "personal/acc": [0.5]}))
    assert choose_metrics([run], []) == columns


def test_runs_with_min_and_max_users_have_columns_for_them(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, {"min_user/acc": [0.5], "max_user/acc": [0.9], "global/acc": [0.8]}))
    names = ["min_user/acc_last10", "max_user/acc_last10", "min_max/acc_gap", "min_max/acc_within10"]
    assert choose_metrics([run], []) == ["global/acc", *names]


def test_groups_of_different_lengths_are_marked_in_the_table(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "short", {"global/acc": [0.5] * 2}),
        write_run(tmp_path / "long", {"global/acc": [0.5] * 3}, algorithm="FedBC"),
        write_run(tmp_path / "longer", {"global/acc": [0.5] * 4}, algorithm="FedBC", seed=1),
    ]
    grid = results_grid("t", group_runs([read_run(path) for path in paths]), ["global/acc"], 1)
    column = [heading.text for heading in grid.headings].index("rounds")
    assert [row[column].text for row in grid.rows] == ["2", "3 to 4"]
    assert grid.notes == ["The runs have different lengths: the longer ones had more rounds to learn in."]


def test_an_unknown_metric_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, {"global/acc": [0.5], "train/loss": [1]}))
    with pytest.raises(ConfigError, match=r"--metric global/accuracy .*Did you mean 'global/acc'\? .*train/loss"):
        choose_metrics([run], ["global/accuracy"])


@pytest.mark.parametrize(
    ("name", "means", "value", "shown"),
    [
        ("global/acc", [0.5], 0.8342, "83.42"),
        ("users/acc_var", [0.01], 0.012345, "0.0123"),
        ("users/gini", [0.27812, 0.6], 0.27812, "0.2781"),
        ("rounds_to/0.40", [43.3333], 43.3333, "43.33"),
        ("global/grad_norm2", [1e-7, 20.0], 1.23456e-7, "1.235e−07"),
        ("dual/mean", [0.0], 0.0, "0.00"),
        ("dual/mean", [-12.0], -12.0, "−12.00"),
    ],
)
def test_numbers_have_the_decimals_of_their_column(name: str, means: list[float], value: float, shown: str) -> None:
    assert style_of(name, means).number(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.0123, "+1.23"), (-0.0123, "−1.23"), (0.0, "0.00"), (-1e-6, "0.00")])
def test_differences_have_a_sign_unless_they_read_as_zero(value: float, shown: str) -> None:
    assert Style(100, 2).signed(value) == shown


def test_units_stand_in_the_heading() -> None:
    assert heading("global/acc") == "global accuracy [%]"
    assert heading("my/own") == "my/own"


def bold_rows(tmp_path: Path, name: str, values: dict[str, float]) -> list[str]:
    runs = [run for label, value in values.items() for run in seeds(tmp_path, name, [value], algorithm=label)]
    grid = results_grid("t", group_runs(runs), [name], 1)
    return [row[0].text for row in grid.rows if row[-1].bold]


@pytest.mark.parametrize(
    ("name", "values", "best"),
    [
        ("global/acc", {"FedAvg": 0.5, "FedBC": 0.6}, ["FedBC"]),
        ("users/gini", {"FedAvg": 0.5, "FedBC": 0.6}, ["FedAvg"]),
        ("dual/mean", {"FedAvg": 0.5, "FedBC": 0.6}, []),
        ("global/acc", {"FedAvg": 0.60001, "FedBC": 0.6, "FedProx": 0.1}, ["FedAvg", "FedBC"]),
        ("global/acc", {"FedAvg": 0.60001, "FedBC": 0.6}, []),
        ("global/acc", {"FedAvg": 0.0, "FedBC": 0.0, "FedProx": 0.0}, []),
        ("global/acc", {"FedAvg": 0.6}, []),
    ],
    ids=["higher", "lower", "neither", "ties as they are shown", "all read alike", "all zero", "alone"],
)
def test_the_best_of_a_column_is_bold(tmp_path: Path, name: str, values: dict[str, float], best: list[str]) -> None:
    assert bold_rows(tmp_path, name, values) == best


def test_a_metric_that_a_group_lacks_is_a_dash_with_a_note(tmp_path: Path) -> None:
    runs = [*seeds(tmp_path, "global/acc", [0.5]), *seeds(tmp_path, "dual/mean", [0.5], algorithm="FedBC")]
    grid = results_grid("t", group_runs(runs), ["global/acc", "dual/mean"], 1)
    assert [[entry.text for entry in row] for row in grid.rows] == [
        ["FedAvg", "1", "50.00", "—"],
        ["FedBC", "1", "—", "0.5000"],
    ]
    assert grid.notes == ["FedBC: global/acc was not measured.", "FedAvg: dual/mean was not measured."]


def test_a_metric_that_one_seed_lacks_is_marked_and_noted(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", {"global/acc": [0.5], "x": [1]}, seed=0),
        write_run(tmp_path / "b", {"global/acc": [None], "x": [1]}, seed=1),
    ]
    grid = results_grid("t", group_runs([read_run(path) for path in paths]), ["global/acc"], 1)
    assert grid.rows[0][-1].text == "50.00 (1 of 2)"
    assert grid.notes == ["FedAvg: global/acc is not known of b; the others count."]


def test_the_caption_says_which_rounds_and_how_many_seeds(tmp_path: Path) -> None:
    groups = group_runs(seeds(tmp_path, "global/acc", [0.5, 0.6]))
    assert "over n seeds; the last evaluated round" in results_grid("t", groups, ["global/acc"], 1).caption
    assert "the mean of the 3 last evaluated rounds" in results_grid("t", groups, ["global/acc"], 3).caption


def test_a_wide_table_is_one_of_models_and_one_of_users(tmp_path: Path) -> None:
    models = ["global/acc", "global/user_acc", "local/acc", "personal/acc"]
    users = ["users/acc_min", "users/acc_var", "users/gini", "min_user/weight", "max_user/weight"]
    groups = group_runs([read_run(write_run(tmp_path, {name: [0.5] for name in (*models, *users)}))])
    grids = results_grids("t", groups, [*models, *users], 1)
    columns = {grid.name: [heading.name for heading in grid.headings if heading.name] for grid in grids}
    assert columns == {"t-results": models, "t-users": users}
    assert [grid.name for grid in results_grids("t", groups, users, 1)] == ["t-results"]
