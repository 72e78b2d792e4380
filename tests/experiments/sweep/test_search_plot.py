"""The picture at the end of a sweep, and trials that are tied."""

from pathlib import Path
from typing import Any

import pytest

from fedlit.experiments.sweep.parallel_plot import headline
from fedlit.experiments.sweep.search_plot import draw_search, plain, search_of
from tests.experiments.sweep.test_parallel_plot import EIGHT, made

TWO: dict[str, Any] = {"model.dual_lr": {"values": [1e-4, 1e-3]}, "model.lr": {"values": [0.01, 0.1]}}


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_any_number_of_parameters_is_drawn_without_a_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    png, pdf = draw_search(made(tmp_path, dict(list(EIGHT.items())[:width]), 40, failed=2))
    assert (png.name, pdf.name) == ("search.png", "search.pdf")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_nothing_is_drawn_where_no_trial_has_finished_or_nothing_varies(tmp_path: Path) -> None:
    assert draw_search(made(tmp_path, TWO, 4, failed=4)) == []
    assert draw_search(made(tmp_path, {"model.lr": {"value": 0.1}}, 1)) == []
    assert list(tmp_path.glob("search*")) == []


def test_trials_with_the_same_value_share_a_rank(tmp_path: Path) -> None:
    sweep = made(tmp_path, TWO, 4)
    for trial, value in zip(sweep.trial_log.trials.values(), (0.5, 0.9, 0.9, 0.7), strict=True):
        trial.value = value
    assert sweep.ranks() == [1, 1, 3, 4]
    assert [trial.name for trial in sweep.ranked()[:2]] == ["trial-001", "trial-002"]
    assert "best trial-001 (and 1 more with that value), 90.00 %" in headline(sweep, sweep.ranked())
    assert len(search_of(sweep, sweep.ranked()).best) == 2


def test_failed_trials_are_not_in_the_picture(tmp_path: Path) -> None:
    sweep = made(tmp_path, TWO, 4, failed=1)
    search = search_of(sweep, sweep.ranked())
    assert len(search.scores) == len(search.settings) == 3
    assert search.goal == "maximize"


@pytest.mark.parametrize(
    ("given", "shown"),
    [("1e-7", 1e-7), (0.1, 0.1), (3, 3), (True, "True"), ("fedlit.ExpAlpha", "ExpAlpha"), ([1, 2], "[1, 2]")],
)
def test_values_are_numbers_or_words(given: Any, shown: Any) -> None:
    assert plain(given) == shown
