"""The parallel-coordinates picture: where values stand, what is written, and that it can be drawn anywhere."""

from math import isclose
from pathlib import Path
from typing import Any

import pytest

from fedlit.experiments.sweep.axes import Axis, axis_of
from fedlit.experiments.sweep.parallel_plot import draw_parallel, picture
from fedlit.experiments.sweep.search import make_search
from fedlit.experiments.sweep.sweep import Sweep
from fedlit.experiments.trials import Trial, TrialLog
from tests.experiments.sweep.sweeps import make_sweep

EIGHT: dict[str, Any] = {
    "model.lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0},
    "model.dual_lr": {"distribution": "log_uniform_values", "min": 1e-7, "max": 1e-2},
    "model.batch_size": {"values": [10, 20, 50]},
    "model.momentum": {"min": 0.0, "max": 0.9},
    "model.tolerance_init": {"values": [0, 0.001, 0.01, 0.1, 1.0]},
    "trainer.weights": {"values": ["samples", "uniform", "fedlit.server.weights.ExpAlpha"]},
    "model.local_epochs": {"min": 1, "max": 20},
    "trainer.server_optimizer.lr": {"min": 0.1, "max": 2.0},
    "model.clip": {"value": 1.0},
}


def made(folder: Path, parameters: dict[str, Any], count: int, failed: int = 0) -> Sweep:
    """A sweep whose trials have made-up values."""
    method = "grid" if all("values" in given for given in parameters.values()) else "random"
    file = make_sweep(folder, parameters, method=method)
    search = make_search(file, count, 0)
    trial_log = TrialLog(folder / "sweep.json", {})
    for k in range(search.total):
        trial = Trial(f"trial-{k:03d}", search.propose(k, []), status="finished", value=(k * 37 % 100) / 100)
        trial_log.trials[trial.name] = trial
    for trial in list(trial_log.trials.values())[:failed]:
        trial.status, trial.value = "failed", None
    return Sweep(file, search, trial_log, [], 10)


def texts(axis: Axis) -> list[str]:
    return [text for _, text in axis.ticks]


def test_few_numbers_are_all_written_and_spread_ones_stand_by_their_logarithm() -> None:
    axis = axis_of("lr", [0.001, 0.01, 0.1])
    assert [axis.place(value) for value in (0.001, 0.01, 0.1)] == pytest.approx([0.0, 0.5, 1.0])
    assert texts(axis) == ["0.001", "0.01", "0.1"]


def test_numbers_close_together_stand_by_their_size() -> None:
    axis = axis_of("n", [10, 20, 50])
    assert axis.place(20) == pytest.approx(0.25)


def test_a_logarithmic_distribution_has_a_logarithmic_axis_whatever_was_drawn() -> None:
    assert axis_of("lr", [0.1, 0.2, 0.4], is_log=True).place(0.2) == pytest.approx(0.5)


def test_zero_among_spread_values_stands_in_a_step_of_its_own() -> None:
    axis = axis_of("gamma", [0.0, 0.001, 0.1])
    assert [axis.place(value) for value in (0.0, 0.001, 0.1)] == [0.0, 0.5, 1.0]


def test_far_numbers_are_powers_of_ten_on_the_whole_axis() -> None:
    assert texts(axis_of("dual_lr", [1e-7, 1e-4, 0.01])) == ["$10^{-7}$", "$10^{-4}$", "$10^{-2}$"]
    assert "$10^{-5}$" in texts(axis_of("dual_lr", [k * 1.1e-7 for k in range(1, 9000)]))


def test_words_stand_in_the_given_order_and_paths_end_with_their_class() -> None:
    axis = axis_of("weights", ["samples", "fedlit.weights.ExpAlpha"])
    assert list(axis.ticks) == [(0.0, "samples"), (1.0, "ExpAlpha")]
    assert texts(axis_of("flag", [True, False])) == ["True", "False"]


def test_one_value_alone_stands_in_the_middle() -> None:
    assert axis_of("lr", [0.1]).place(0.1) == 0.5
    assert axis_of("w", ["dual"]).place("dual") == 0.5


@pytest.mark.parametrize("count", [1, 2, 100])
def test_labels_keep_their_distance(count: int) -> None:
    places = sorted(place for place, _ in axis_of("x", [k + 0.001 * k**2 for k in range(count)]).ticks)
    assert all(right - left > 0.04 or isclose(right, left) for left, right in zip(places[:-1], places[1:], strict=True))


@pytest.mark.parametrize("width", [1, 2, 8])
def test_a_hundred_trials_are_drawn_without_a_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    sweep = made(tmp_path, dict(list(EIGHT.items())[:width]), 100, failed=2)
    png, pdf = draw_parallel(sweep)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_the_best_trial_and_the_failed_ones_are_named(tmp_path: Path) -> None:
    sweep = made(tmp_path, {"model.lr": {"values": [0.01, 0.1, 1.0]}}, 3, failed=1)
    figure = picture(sweep, sweep.ranked())
    assert figure.get_suptitle() == "sweep.yaml: 2 trials; best trial-002, 74.00 % with lr=1"
    assert figure.get_supxlabel() == "not drawn, failed: trial-000 (lr=0.01)"


def test_nothing_is_drawn_where_no_trial_has_finished(tmp_path: Path) -> None:
    assert draw_parallel(made(tmp_path, {"model.lr": {"values": [0.01, 0.1]}}, 2, failed=2)) == []
    assert list(tmp_path.glob("parallel*")) == []
