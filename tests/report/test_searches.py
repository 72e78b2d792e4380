"""Searches over several options: which runs are one, what matters in it, and what is drawn."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Picture

from fedlit.report.figures import draw_figures
from fedlit.report.figures.importance import LEAST_TRIALS, importances
from fedlit.report.figures.search_figures import heat_map, search_drawn, slices
from fedlit.report.figures.searches import Search, find_searches, short_names
from fedlit.report.figures.style import look
from fedlit.results.runs import Group, group_runs, read_run
from tests.report.folders import write_run

RATES = (0.01, 0.1, 1.0)


@pytest.fixture(autouse=True)
def styled() -> Iterator[None]:
    """As `draw_figures` draws."""
    with look():
        yield


def grid(folder: Path, **options: Any) -> list[Group]:
    """Six settings of two rates; the best round on validation is not the last one."""
    paths = [
        write_run(
            folder / f"{alpha}-{rate}",
            {"val/acc": [0.2 + alpha + rate / 10, 0.1], "global/acc": [0.1, 0.1]},
            model={"dual_lr": alpha, "lr": rate},
            **({"algorithm": "FedBC"} | options),
        )
        for alpha in (0.1, 0.2)
        for rate in RATES
    ]
    return group_runs([read_run(path) for path in paths])


def search_over(settings: Sequence[Mapping[str, Any]], scores: Sequence[float], goal: Any = "maximize") -> Search:
    return Search("FedBC", list(settings[0]), settings, scores, "val/acc", goal)


def drawn_at_random(count: int, options: int = 3) -> Search:
    """Scores that depend on the first option alone."""
    values = 10 ** np.random.default_rng(0).uniform(-4, 0, (count, options))
    settings = [{f"model.o{k}": float(f"{value:.6g}") for k, value in enumerate(row)} for row in values]
    return search_over(settings, [1 - abs(float(np.log10(row[0])) + 2) / 4 for row in values])


def texts_in(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.axes[0].texts]


# which runs are a search


def test_settings_of_one_algorithm_are_scored_by_their_best_round_on_validation(tmp_path: Path) -> None:
    (search,) = find_searches(grid(tmp_path))
    assert (search.label, search.metric, search.goal) == ("FedBC", "val/acc", "maximize")
    assert sorted(search.options) == ["model.dual_lr", "model.lr"]
    assert search.scores == pytest.approx([0.2 + alpha + rate / 10 for alpha in (0.1, 0.2) for rate in RATES])
    assert [search.settings[place] for place in search.best] == [{"model.dual_lr": 0.2, "model.lr": 1.0}]


def test_scores_are_means_over_seeds(tmp_path: Path) -> None:
    first, second = (grid(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    both = group_runs([run for group in (*first, *second) for run in group.runs])
    (search,) = find_searches(both)
    assert len(search.scores) == 6


def test_other_data_are_another_search_and_have_a_number(tmp_path: Path) -> None:
    apart = [grid(tmp_path / str(count), data_options={"num_clients": count}) for count in (10, 20)]
    both = group_runs([run for groups in apart for group in groups for run in group.runs])
    assert [search.label for search in find_searches(both)] == ["FedBC (1)", "FedBC (2)"]


def test_one_option_or_a_few_variants_are_no_search(tmp_path: Path) -> None:
    groups = grid(tmp_path)
    assert list(find_searches([group for group in groups if group.options["model.dual_lr"] == 0.1])) == []
    assert list(find_searches(groups[:3])) == []


def test_an_option_that_has_the_values_of_another_is_not_one_more(tmp_path: Path) -> None:
    pairs = [(alpha, rate) for alpha in (0.1, 0.2) for rate in RATES]
    paths = [
        write_run(tmp_path / str(k), {"val/acc": [0.5]}, model={"dual_lr": a, "tolerance_lr": a, "lr": rate})
        for k, (a, rate) in enumerate(pairs)
    ]
    (search,) = find_searches(group_runs([read_run(path) for path in paths]))
    assert sorted(search.options) == ["model.dual_lr", "model.lr"]


def test_without_validation_there_is_no_search(tmp_path: Path) -> None:
    settings = [{"dual_lr": alpha, "lr": rate} for alpha in (0.1, 0.2) for rate in RATES]
    paths = [write_run(tmp_path / str(k), {"global/acc": [0.5]}, model=own) for k, own in enumerate(settings)]
    assert list(find_searches(group_runs([read_run(path) for path in paths]))) == []


def test_numbers_with_many_digits_were_drawn_and_others_were_listed() -> None:
    search = search_over([{"a": 0.1, "b": 0.123456, "c": "x"}, {"a": 1e-7, "b": 0.2, "c": "y"}], [1.0, 2.0])
    assert [search.is_drawn(option) for option in "abc"] == [False, True, False]


def test_names_are_short_where_that_is_enough() -> None:
    assert short_names(["model.lr", "model.dual_lr"]) == {"model.lr": "lr", "model.dual_lr": "dual_lr"}
    both = ["model.lr", "trainer.server_optimizer.lr"]
    assert short_names(both) == {name: name for name in both}


# importance


def test_the_option_that_decides_is_the_most_important() -> None:
    shares = importances(drawn_at_random(40))
    assert shares is not None
    assert next(iter(shares)) == "model.o0"
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["model.o0"] > 0.6


def test_the_goal_says_which_end_is_good() -> None:
    values = [float(f"{value:.6g}") for value in np.random.default_rng(1).uniform(0.1, 1, 40)]
    settings = [{"a": value, "b": value if value < 0.3 else 0.9} for value in values]
    up, down = (importances(search_over(settings, values, goal)) for goal in ("maximize", "minimize"))
    assert up is not None
    assert down is not None
    assert up["b"] < down["b"]


@pytest.mark.parametrize("scores", [[0.5] * 30, [0.5] * 29 + [0.6]], ids=["all tied", "tied but for one"])
def test_tied_trials_do_not_tell_what_matters(scores: list[float]) -> None:
    settings = drawn_at_random(30).settings
    search = search_over(settings, scores)
    assert importances(search) is None
    assert "Too many scores are the same" in search_drawn(search).figure.caption


def test_few_trials_do_not_tell_what_matters() -> None:
    search = drawn_at_random(LEAST_TRIALS - 1)
    assert importances(search) is None
    assert f"told of {LEAST_TRIALS} settings or more" in search_drawn(search).figure.caption


def test_without_optuna_the_slices_are_drawn_and_the_caption_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    drawn = search_drawn(drawn_at_random(30))
    assert "pip install 'fedlit[sweep]'" in drawn.figure.caption
    assert len(drawn.picture.axes) == 3


# pictures


def test_a_cell_has_the_best_score_of_its_pair_of_values_and_the_best_are_framed() -> None:
    pairs = [(0.1, 1.0), (0.1, 2.0), (0.2, 1.0), (0.2, 2.0), (0.2, 2.0)]
    search = search_over([{"a": a, "b": b} for a, b in pairs], [0.5, 0.9, 0.7, 0.9, 0.3])
    picture = heat_map(search)
    assert sorted(texts_in(picture)) == ["50.0", "70.0", "90.0", "90.0"]
    assert len(picture.axes[0].patches) == 2


def test_a_pair_of_values_without_a_score_stays_empty() -> None:
    pairs = [(0.1, 1.0), (0.1, 2.0), (0.2, 1.0)]
    picture = heat_map(search_over([{"a": a, "b": b} for a, b in pairs], [0.5, 0.9, 0.7]))
    assert len(texts_in(picture)) == 3


def test_draws_from_two_ranges_are_points() -> None:
    search = drawn_at_random(30, options=2)
    (points,) = heat_map(search).axes[0].collections
    assert len(np.asarray(points.get_offsets())) == 30
    assert texts_in(heat_map(search)) == []


def shade(search: Search, score: float) -> float:
    """How light the cell of a score is, from 0 to 3."""
    (cells,) = heat_map(search).axes[0].images
    return float(sum(cells.cmap(cells.norm(score))[:3]))


@pytest.mark.parametrize(("goal", "good", "bad"), [("maximize", 0.4, 0.1), ("minimize", 0.1, 0.4)])
@pytest.mark.parametrize("between", [(0.2, 0.3), (0.4, 0.4), (0.1, 0.1)], ids=["apart", "tied high", "tied low"])
def test_dark_is_good(goal: str, good: float, bad: float, between: tuple[float, float]) -> None:
    search = search_over([{"a": a, "b": b} for a in (1, 2) for b in (1, 2)], [0.1, *between, 0.4], goal)
    assert shade(search, good) < shade(search, bad)


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_where_all_are_tied_all_are_good(goal: str) -> None:
    search = search_over([{"a": a, "b": b} for a in (1, 2) for b in (1, 2)], [0.5] * 4, goal)
    assert shade(search, 0.5) < 1


def test_slices_begin_with_the_importances_and_have_a_panel_for_each_option() -> None:
    search = drawn_at_random(30)
    shares = importances(search)
    assert shares is not None
    picture = slices(search, shares)
    assert [axes.get_xlabel() for axes in picture.axes] == ["importance", *shares]
    widths = [bar.get_width() for bar in picture.axes[0].patches]
    assert widths == pytest.approx(sorted(shares.values()))


@pytest.mark.parametrize(("goal", "marker"), [("maximize", "v"), ("minimize", "^")])
def test_a_trial_that_is_far_worse_is_a_triangle_at_the_edge(goal: str, marker: str) -> None:
    sign = 1 if goal == "maximize" else -1
    scores = [0.5 + sign * one for one in (0.30, 0.31, 0.32, 0.33, 0.34, 0.35, -0.45)]
    settings = [{f"model.o{k}": place for k in range(3)} for place in range(1, 8)]
    panel = slices(search_over(settings, scores, goal), None).axes[0]
    (edge,) = [line for line in panel.lines if line.get_marker() == marker]
    (height,) = np.asarray(edge.get_ydata(), dtype=float)
    assert abs(height - 0.5) < 0.45
    low, high = panel.get_ylim()
    assert high - low < 0.3


def test_values_that_are_no_numbers_have_places_of_their_own() -> None:
    settings = [{"a": word, "b": rate, "c": rate} for word in ("dual", "samples") for rate in RATES]
    picture = slices(search_over(settings, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), None)
    assert [tick.get_text() for tick in picture.axes[0].get_xticklabels()] == ["dual", "samples"]


def test_a_report_of_a_search_has_its_figure_and_needs_no_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    (figure,) = draw_figures(grid(tmp_path / "runs"), tmp_path / "figures", kinds=["searched"])
    assert figure.name == "search_fedbc"
    assert "6 settings; a score is the best val/acc over the rounds" in figure.caption
    assert (tmp_path / "figures" / "search_fedbc.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures" / "search_fedbc.pdf").read_bytes().startswith(b"%PDF")
