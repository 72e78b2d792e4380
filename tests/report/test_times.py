"""Simulated time as an axis and as a column: seeds with other times are averaged as staircases."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedlit.report import write_report
from fedlit.report.figures import draw_figures
from fedlit.report.figures.base import Curve, curve_by_time
from fedlit.report.figures.curves import curves_figure
from fedlit.report.figures.style import look, styles_of
from fedlit.report.grids import results_grid
from fedlit.report.tables import choose_metrics, measured
from fedlit.results.runs import Group, find_runs, group_runs, read_run
from tests.report.folders import one_group, write_run

Values = Sequence[float | None]


def timed_group(folder: Path, *seeds: tuple[Values, Values], **options: Any) -> Group:
    """A run for each (times, accuracies)."""
    paths = [
        write_run(folder / str(seed), {"time/sim_s": times, "global/acc": values}, seed=seed, **options)
        for seed, (times, values) in enumerate(seeds)
    ]
    return one_group([read_run(path) for path in paths])


def found(group: Group) -> Curve:
    curve = curve_by_time(group, "global/acc")
    assert curve is not None
    return curve


def test_a_run_alone_keeps_its_own_times(tmp_path: Path) -> None:
    curve = found(timed_group(tmp_path, ([0, 1.5, 4], [0.1, 0.2, 0.4])))
    assert curve.is_timed
    assert curve.x.tolist() == [0, 1.5, 4]
    assert curve.mean.tolist() == [0.1, 0.2, 0.4]
    assert curve.std is None


def test_seeds_are_averaged_as_staircases_at_the_times_of_any_of_them(tmp_path: Path) -> None:
    curve = found(timed_group(tmp_path, ([0, 2, 6], [0.0, 0.4, 0.8]), ([0, 3, 5], [0.2, 0.6, 1.0])))
    assert curve.x.tolist() == [0, 2, 3, 5], "until the first of them ends"
    assert curve.mean == pytest.approx([0.1, 0.3, 0.5, 0.7])
    assert curve.std == pytest.approx([0.2 / 2**0.5] * 2 + [0.2 / 2**0.5, 0.6 / 2**0.5])


def test_a_staircase_begins_where_all_seeds_have_begun(tmp_path: Path) -> None:
    assert found(timed_group(tmp_path, ([1, 4], [0.1, 0.2]), ([3, 5], [0.3, 0.4]))).x.tolist() == [3, 4]


def test_rounds_that_were_not_evaluated_have_no_place_on_the_axis_of_time(tmp_path: Path) -> None:
    assert found(timed_group(tmp_path, ([1, 2, 3], [0.1, None, 0.3]))).x.tolist() == [1, 3]


def test_two_rounds_at_one_time_count_as_the_later_one(tmp_path: Path) -> None:
    curve = found(timed_group(tmp_path, ([1, 1, 2], [0.1, 0.2, 0.3])))
    assert (curve.x.tolist(), curve.mean.tolist()) == ([1, 2], [0.2, 0.3])


def test_without_a_clock_or_without_common_times_there_is_no_curve(tmp_path: Path) -> None:
    without = one_group([read_run(write_run(tmp_path / "none", {"global/acc": [0.1]}))])
    assert curve_by_time(without, "global/acc") is None
    apart = timed_group(tmp_path / "apart", ([1, 2], [0.1, 0.2]), ([3, 4], [0.1, 0.2]))
    assert curve_by_time(apart, "global/acc") is None
    assert [figure.name for figure in draw_figures([apart], tmp_path / "figures")] == ["accuracy"]


def test_a_curve_by_time_is_drawn_in_steps_on_an_axis_of_seconds(tmp_path: Path) -> None:
    group = timed_group(tmp_path, ([0, 2, 6], [0.0, 0.4, 0.8]), ([0, 3, 5], [0.2, 0.6, 1.0]))
    with look():
        picture = curves_figure({"global/acc": [found(group)]}, styles_of([group.label]))
    (line,) = picture.axes[0].lines
    assert line.get_drawstyle() == "steps-post"
    assert picture.axes[0].get_xlabel() == "simulated time (s)"
    corners = picture.axes[0].collections[0].get_paths()[0].vertices
    assert len(corners) > 2 * len(found(group).x) + 3, "the band has the corners of its line"


def test_runs_with_a_clock_have_a_figure_by_time_that_names_those_without(tmp_path: Path) -> None:
    metrics = {"time/sim_s": [1, 2.5], "global/acc": [0.1, 0.5], "personal/acc": [0.2, 0.6]}
    paths = [
        write_run(tmp_path / "a", metrics),
        write_run(tmp_path / "b", {"global/acc": [0.1, 0.2]}, algorithm="FedBC"),
    ]
    figures = draw_figures(group_runs([read_run(path) for path in paths]), tmp_path / "figures")
    (by_time,) = [figure for figure in figures if figure.name == "accuracy_by_time"]
    assert "A value holds until the next one was measured." in by_time.caption
    assert by_time.caption.endswith("Without time/sim_s, and so not shown: FedBC.")


def test_personal_accuracy_alone_has_a_figure_by_time(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", {"time/sim_s": [1, 2], "personal/acc": [0.2, 0.6]}))
    names = [figure.name for figure in draw_figures(group_runs([run]), tmp_path / "figures")]
    assert names == ["accuracy_by_time", "user_accuracy"]


# the column "time to"


THRESHOLDS = {"rounds_to/0.40": 2, "rounds_to/0.60": 3, "rounds_to/0.90": None}


def test_the_time_to_a_threshold_is_that_of_the_first_round_that_reaches_it(tmp_path: Path) -> None:
    metrics = {"time/sim_s": [1.5, 2.5, 4.5, 9], "global/acc": [0.1, 0.4, 0.7, 0.3]}
    run = read_run(write_run(tmp_path, metrics, summary=THRESHOLDS))
    assert measured(run, "time_to/0.40") == 2.5
    assert measured(run, "time_to/0.60") == 4.5
    assert measured(run, "time_to/0.90") is None
    assert measured(run, "time_to/0.50") is None, "nobody asked for it"


def test_tables_have_the_columns_that_any_run_with_a_clock_reached(tmp_path: Path) -> None:
    metrics = {"time/sim_s": [1.5, 2.5], "global/acc": [0.1, 0.4]}
    clocked = write_run(tmp_path / "a", metrics, summary=THRESHOLDS)
    without = write_run(tmp_path / "b", {"global/acc": [0.1, 0.8]}, summary=THRESHOLDS, algorithm="FedBC")
    assert choose_metrics([read_run(without)], []) == ["global/acc"]
    runs = [read_run(clocked), read_run(without)]
    names = choose_metrics(runs, [])
    assert names == ["global/acc", "time_to/0.40"]
    grid = results_grid("x", group_runs(runs), names, 1)
    assert grid.headings[-1].text == "time to 40 % [s]\u00a0↓"
    assert [row[-1].text for row in grid.rows] == ["2.500", "—"]
    assert grid.notes == ["FedBC: time_to/0.40 is not known: no clock, or never reached."]


def test_seeds_that_never_got_there_are_counted_out(tmp_path: Path) -> None:
    values: list[Values] = [[0.1, 0.5], [0.1, 0.2]]
    group = timed_group(tmp_path, *(([1, 2], own) for own in values), summary=THRESHOLDS)
    grid = results_grid("x", [group], ["time_to/0.40"], 1)
    assert grid.rows[0][-1].text == "2.000 (1 of 2)"


def test_a_report_on_clocked_runs_shows_time_in_every_file(tmp_path: Path) -> None:
    metrics = {"time/sim_s": [1.5, 2.5], "global/acc": [0.1, 0.4]}
    write_run(tmp_path / "runs" / "a", metrics, summary=THRESHOLDS)
    files = write_report(find_runs([tmp_path / "runs"]), tmp_path / "report")
    assert tmp_path / "report" / "figures" / "accuracy_by_time.png" in files
    for name in ("report.html", "report.md", "tables.tex"):
        assert "time to 40" in (tmp_path / "report" / name).read_text()
