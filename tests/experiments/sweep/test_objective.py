"""What a sweep ranks by: the best value over the rounds, and warnings about bad choices."""

from pathlib import Path

import pytest

from fedlit.errors import ConfigError
from fedlit.experiments.sweep.objective import check_metric, objective, remarks
from fedlit.results.runs import Run


def run_with(values: list[float], summary: dict[str, float | None] | None = None) -> Run:
    rows = [{"val/acc": value} for value in values]
    return Run(Path("run"), {}, list(range(len(rows))), rows, dict(summary or {}), {})


def test_the_objective_is_the_best_value_over_the_rounds_as_the_goal_says() -> None:
    run = run_with([0.1, 0.7, 0.5])
    assert objective(run, "val/acc", "maximize") == 0.7
    assert objective(run, "val/acc", "minimize") == 0.1


def test_values_that_are_not_finite_do_not_count() -> None:
    assert objective(run_with([0.2, float("nan"), float("inf")]), "val/acc", "maximize") == 0.2


def test_a_number_that_only_the_summary_has_counts() -> None:
    run = run_with([0.1], {"rounds_to/0.40": 12, "rounds_to/0.90": None})
    assert objective(run, "rounds_to/0.40", "minimize") == 12
    assert objective(run, "rounds_to/0.90", "minimize") is None


@pytest.mark.parametrize("name", ["global/acc", "users/acc_min", "personal/acc", "min_user/acc"])
def test_choosing_by_test_data_is_warned_of(name: str) -> None:
    assert "measured on test data" in " ".join(remarks(name, "maximize"))


@pytest.mark.parametrize(
    ("name", "goal"), [("val/acc", "maximize"), ("train/loss", "minimize"), ("global/train_loss", "minimize")]
)
def test_choosing_by_other_data_is_not(name: str, goal: str) -> None:
    assert remarks(name, goal) == []  # type: ignore[arg-type]  # pytest's parameters have no types


def test_a_goal_that_looks_for_the_worst_is_warned_of() -> None:
    assert "more is better" in " ".join(remarks("val/acc", "minimize"))


def test_a_callback_may_bring_a_metric_of_its_own() -> None:
    check_metric("own/number", has_validation=True, has_callbacks=True)
    with pytest.raises(ConfigError, match="no run measures"):
        check_metric("own/number", has_validation=True, has_callbacks=False)
