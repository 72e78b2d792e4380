"""Numbers of min and max user against their formulas, written out."""

from pathlib import Path

import numpy as np
import pytest

from fedlit.metrics.catalogue import MIN_MAX_METRICS, metric
from fedlit.report.min_max import min_max_metrics
from fedlit.report.tables import measured
from fedlit.results.runs import read_run
from tests.report.folders import write_run

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_gap_and_share_are_those_of_the_formulas(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    low, high = draw.uniform(0.3, 0.9, 30).round(2), draw.uniform(0.3, 0.9, 30).round(2)
    run = read_run(write_run(tmp_path, {"min_user/acc": low.tolist(), "max_user/acc": high.tolist()}))
    found = min_max_metrics(run.rows, run.measures)
    gaps = np.abs(high - low)
    assert found == pytest.approx(
        {
            "min_max/rounds": 30,
            "min_user/acc_last10": low[-10:].mean(),
            "max_user/acc_last10": high[-10:].mean(),
            "min_max/acc_gap": gaps[-10:].mean(),
            "min_max/acc_within10": np.mean(gaps.round(2) <= 0.10),
        }
    )
    assert 0 < found["min_max/acc_within10"] < 1
    assert gaps[-10:].mean() > abs((high - low)[-10:].mean()) + 0.01, "signs matter here"


def test_ten_points_are_within_ten_points(tmp_path: Path) -> None:
    assert 0.4 - 0.3 > 0.1, "in binary numbers"
    run = read_run(write_run(tmp_path, {"min_user/acc": [0.3, 0.3], "max_user/acc": [0.4, 0.41]}))
    assert measured(run, "min_max/acc_within10") == 0.5


def test_rounds_in_which_one_of_the_two_was_not_measured_do_not_count(tmp_path: Path) -> None:
    numbers = {"min_user/acc": [0.1, None, 0.5, None], "max_user/acc": [0.2, 0.9, None, 0.3]}
    run = read_run(write_run(tmp_path, numbers))
    assert measured(run, "min_user/acc_last10") == 0.1
    assert measured(run, "min_max/acc_gap") == pytest.approx(0.1)


def test_a_measure_that_is_not_a_share_has_a_gap_and_no_ten_points(tmp_path: Path) -> None:
    numbers = {"global/mse": [1.0, 1.0], "min_user/mse": [2.0, 4.0], "max_user/mse": [1.0, 1.0]}
    run = read_run(write_run(tmp_path, numbers))
    found = min_max_metrics(run.rows, run.measures)
    means = {"min_user/mse_last10": 3.0, "max_user/mse_last10": 1.0, "min_max/mse_gap": 2.0}
    assert found == {"min_max/rounds": 2, **means}
    assert (metric("min_max/mse_gap").best, metric("min_max/mse_gap").unit) == ("min", "")
    assert (metric("min_user/mse_last10").best, metric("min_user/mse_last10").label) == (
        "min",
        "min-user MSE, last ten",
    )


@pytest.mark.parametrize("name", MIN_MAX_METRICS)
def test_what_reports_compute_is_on_the_page_of_metrics(name: str) -> None:
    assert f"`{name}`" in PAGE
    assert metric(name) is MIN_MAX_METRICS[name]
