"""The workspace as W&B would store it, made without an account."""

from collections.abc import Iterator
from typing import Any

import pytest

from fedlit.catalogue import METRICS, RECORD_COLUMNS, STATES
from fedlit.tracking.users import HISTOGRAM
from fedlit.tracking.workspace import Lines, Media, Scatter, sections, specification, workspace


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    return specification(workspace("team", "fedlit", "Federated users"))


@pytest.fixture(scope="module")
def panels(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for section in spec["section"]["panelBankConfig"]["sections"] for panel in section["panels"]]


def values_of(content: Any, key: str) -> Iterator[Any]:
    """Every value that stands under a key, at any depth."""
    if isinstance(content, dict):
        yield from (value for name, value in content.items() if name == key)
        yield from (found for value in content.values() for found in values_of(value, key))
    if isinstance(content, list):
        yield from (found for value in content for found in values_of(value, key))


def test_lines_name_only_metrics_of_the_catalogue(panels: list[dict[str, Any]]) -> None:
    named = {name for metrics in values_of(panels, "metrics") for name in metrics}
    assert named - set(METRICS) == {HISTOGRAM}
    assert len(named) > 20


def test_lines_are_drawn_over_the_round(panels: list[dict[str, Any]]) -> None:
    assert {panel["config"]["xAxis"] for panel in panels if "metrics" in panel["config"]} == {"round"}


def test_points_are_columns_of_the_users_table(panels: list[dict[str, Any]]) -> None:
    scatters = [panel["config"] for panel in panels if panel["viewType"] == "Vega2"]
    assert {axis for config in scatters for axis in config["fieldSettings"].values()} <= {*RECORD_COLUMNS, *STATES}
    keys = {field["value"] for fields in values_of(scatters, "args") for field in fields if field["name"] == "tableKey"}
    assert keys == {"users/table"}


@pytest.mark.parametrize(
    "chart",
    [
        Lines("min- and max-user accuracy", ("min_user/acc", "max_user/acc")),
        Lines("min user: coefficient beside share of samples", ("min_user/weight", "min_user/size_share")),
        Lines("max user: coefficient beside share of samples", ("max_user/weight", "max_user/size_share")),
        Scatter("dual λ by data size", "size", "dual"),
        Lines("dual λ of the cohort", ("dual/mean", "dual/min", "dual/max")),
        Lines("tolerance γ of the cohort", ("tolerance/mean",)),
        Scatter("rounds offline by data size", "size", "offline"),
        Scatter("coefficient by data size", "size", "weight"),
        Media("users/table"),
    ],
    ids=lambda chart: getattr(chart, "title", "table"),
)
def test_what_federated_runs_are_compared_by_is_shown(chart: Lines | Scatter | Media) -> None:
    assert chart in [shown for charts in sections().values() for shown in charts]


def test_every_chart_becomes_one_panel(panels: list[dict[str, Any]]) -> None:
    assert len(panels) == sum(len(charts) for charts in sections().values())


def test_runs_are_grouped_by_experiment_and_algorithm(spec: dict[str, Any]) -> None:
    (runs,) = spec["section"]["runSets"]
    assert [key["name"] for key in runs["grouping"]] == ["group", "jobType"]
