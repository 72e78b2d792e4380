"""The table at the end of a run: its best round by validation, and min and max user over many rounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlit import FedAvg, FedBC, FederatedTrainer
from fedlit.evaluation.history import Best, History
from fedlit.metrics.catalogue import MIN_MAX_METRICS
from fedlit.metrics.measures import ACCURACY, MSE, Measure
from fedlit.report.min_max import min_max_metrics
from fedlit.results.runs import read_run
from fedlit.trainer.fit_results import Summary
from fedlit.trainer.summary import MIN_MAX, summarise
from tests.client.test_tasks import fitted
from tests.cloud_runs import run_in_a_cloud
from tests.problems import run, tiny_data, tiny_net


def history_of(*pairs: tuple[float, float] | None, measure: Measure = ACCURACY) -> History:
    """A round for each pair of min and max user; None where the round was not evaluated."""
    history = History()
    names = (f"min_user/{measure.name}", f"max_user/{measure.name}")
    for round, pair in enumerate(pairs):
        history.add(round, {"train/loss": 1.0} | (dict(zip(names, pair, strict=True)) if pair else {}))
    return history


def trained(rounds: int, **options: Any) -> FederatedTrainer:
    return run(FedBC(tiny_net(), lr=0.3, batch_size=4), tiny_data(val_fraction=0.3), rounds=rounds, **options)


def told(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name.startswith(("best/", *MIN_MAX))}


# min and max user


def test_means_are_over_the_last_ten_rounds_that_were_evaluated() -> None:
    early, late = [(0.0, 0.0)] * 5, [(0.1 * k, 0.5) for k in range(10)]
    gaps = [pair for evaluated in late for pair in (evaluated, None)]  # every other round is evaluated
    assert min_max_metrics(history_of(*early, *gaps).rows, [ACCURACY]) == {
        "min_max/rounds": 15,
        "min_user/acc_last10": pytest.approx(0.45),
        "max_user/acc_last10": pytest.approx(0.5),
        "min_max/acc_gap": pytest.approx(0.25),
        "min_max/acc_within10": pytest.approx(8 / 15),  # the early five, and 40, 50 and 60 beside 50
    }


def test_fewer_than_ten_rounds_are_all_counted_and_it_is_said_how_many() -> None:
    found = min_max_metrics(history_of((0.2, 0.6), (0.4, 0.45)).rows, [ACCURACY])
    assert found["min_max/rounds"] == 2
    assert found["min_user/acc_last10"] == pytest.approx(0.3)
    assert found["min_max/acc_within10"] == 0.5


@pytest.mark.parametrize(("low", "high"), [(0.7, 0.8), (0.8, 0.7), (0.9, 1.0), (0.0, 0.1)])
def test_ten_points_are_within_ten_points_whatever_rounding_does(low: float, high: float) -> None:
    assert min_max_metrics(history_of((low, high)).rows, [ACCURACY])["min_max/acc_within10"] == 1.0


def test_points_are_for_shares_alone() -> None:
    found = min_max_metrics(history_of((3.0, 5.0), measure=MSE).rows, [MSE])
    assert found == {
        "min_max/rounds": 1,
        "min_user/mse_last10": 3.0,
        "max_user/mse_last10": 5.0,
        "min_max/mse_gap": 2.0,
    }


def test_without_users_that_were_measured_nothing_is_told() -> None:
    assert min_max_metrics(history_of(None, None).rows, [ACCURACY]) == {}


# the best round


def test_the_best_round_has_its_own_validation_and_test_accuracy() -> None:
    trainer = trained(6)
    history, summary = trainer.history, trainer.summary
    place = int(np.nanargmax(history["val/acc"]))  # of equals the first
    assert summary["best/round"] == history["round"][place] == summary["best"]["round"]
    assert summary["best/val_acc"] == history["val/acc"][place]
    assert summary["best/global_acc"] == history["global/acc"][place]


def test_without_validation_there_is_no_best_round() -> None:
    summary = run(FedAvg(tiny_net()), tiny_data()).summary
    assert [name for name in summary if name.startswith("best")] == []
    assert "best round" not in str(summary)


def test_a_run_without_rounds_that_count_has_a_summary() -> None:
    assert told(summarise(History(), Best(), 0, ())) == {}


# real runs


def test_numbers_are_those_of_the_rows_on_disk(tmp_path: Path) -> None:
    trained(13, run=str(tmp_path / "run"), eval_every=1)
    read = read_run(tmp_path / "run")
    for name in ("min_user/acc", "max_user/acc"):
        mean = read.final(name, last=10)
        assert read.summary[f"{name}_last10"] == pytest.approx(mean)
    assert read.summary["min_max/rounds"] == 13


def test_a_resumed_run_has_the_numbers_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    trained(5, run=str(tmp_path / "run"))
    resumed = trained(12, run=str(tmp_path / "run"), resume=True)
    assert told(resumed.summary) == told(trained(12).summary)


@pytest.mark.parametrize(("task", "measure", "has_points"), [("regression", "mse", False), ("next_token", "acc", True)])
def test_other_tasks_are_told_by_their_first_measure(task: str, measure: str, has_points: bool) -> None:
    summary = fitted(task).summary
    names = {f"min_user/{measure}_last10", f"max_user/{measure}_last10", "min_max/rounds", f"min_max/{measure}_gap"}
    points = {f"min_max/{measure}_within10"} if has_points else set()
    assert {name for name in summary if name.startswith(MIN_MAX)} == names | points


def test_a_cloud_has_them_too(tmp_path: Path) -> None:
    folder = run_in_a_cloud(FedAvg(tiny_net(), batch_size=4), tmp_path / "cloud", val_fraction=0.2)
    names = set(told(read_run(folder).summary))
    assert names == {f"best/{name}" for name in ("round", "val_acc", "global_acc")} | set(MIN_MAX_METRICS)


def test_the_printed_table_has_them_by_their_names() -> None:
    summary = trained(3).summary
    names = set(told(summary))
    lines = [line for line in str(summary).splitlines() if names & set(line.replace("│", " ").split())]
    assert [line.split("│")[3].strip() for line in lines] == list(told(summary))
    assert f"{100 * summary['best/global_acc']:.2f} %" in str(summary)
    assert "rounds within ten points" in str(summary)


def test_the_table_of_a_summary_without_them_has_the_last_values_alone() -> None:
    """`fedlit evaluate` prints such a table, and older runs have such a file."""
    text = str(Summary({"rounds": 3, "final": {"global/acc": 0.5}}))
    assert "50.00 %" in text
    assert "best/" not in text
