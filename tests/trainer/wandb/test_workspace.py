"""The workspace as W&B would store it, made without an account."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedlit import FedAvg, FedBC, FedBCDI, FederatedTrainer, TensorData
from fedlit.client.tasks import TASKS
from fedlit.metrics.catalogue import METRICS, MIN_MAX_METRICS, STATES, record_columns
from fedlit.metrics.measures import ACCURACY
from fedlit.report.min_max import min_max_metrics
from fedlit.trainer.checkpoint import loop_of
from fedlit.trainer.wandb.users import HISTOGRAM
from fedlit.trainer.wandb.workspace import Bars, Lines, Media, Scatter, sections, specification, workspace

STATEFUL = (FedBC, FedBCDI)
"""Their states have words, and so charts, once their classes are defined: whichever test runs first."""


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    return specification(workspace("team", "fedlit", "Federated users"))


@pytest.fixture(scope="module")
def panels(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return panels_of(spec)


def panels_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels of all sections."""
    return [panel for section in spec["section"]["panelBankConfig"]["sections"] for panel in section["panels"]]


def values_of(content: Any, key: str) -> Iterator[Any]:
    """Every value that stands under a key, at any depth."""
    if isinstance(content, dict):
        yield from (value for name, value in content.items() if name == key)
        yield from (found for value in content.values() for found in values_of(value, key))
    if isinstance(content, list):
        yield from (found for value in content for found in values_of(value, key))


def test_lines_name_only_metrics_of_the_catalogue(panels: list[dict[str, Any]]) -> None:
    lines = [panel for panel in panels if panel["viewType"] == "Run History Line Plot"]
    named = {name for metrics in values_of(lines, "metrics") for name in metrics}
    assert named - set(METRICS) == {HISTOGRAM}
    assert len(named) > 20


def test_lines_are_drawn_over_the_round(panels: list[dict[str, Any]]) -> None:
    lines = [panel for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert {panel["config"]["xAxis"] for panel in lines} == {"round"}


def test_points_are_columns_of_the_users_table(panels: list[dict[str, Any]]) -> None:
    scatters = [panel["config"] for panel in panels if panel["viewType"] == "Vega2"]
    assert {axis for config in scatters for axis in config["fieldSettings"].values()} <= {
        *record_columns([ACCURACY]),
        *STATES,
    }
    keys = {field["value"] for fields in values_of(scatters, "args") for field in fields if field["name"] == "tableKey"}
    assert keys == {"users/table"}


@pytest.mark.parametrize(
    "chart",
    [
        Lines("min- and max-user accuracy, mean over 10 rounds", ("min_user/acc", "max_user/acc"), 10),
        Lines(
            "gap of min- and max-user accuracy, mean over 10 rounds",
            ("min_user/acc", "max_user/acc"),
            10,
            "abs(${max_user/acc} - ${min_user/acc})",
        ),
        Bars("gap of min- and max-user accuracy, last 10 rounds", ("min_max/acc_gap",)),
        Bars("rounds with min and max user within ten points", ("min_max/acc_within10",)),
        Lines("accuracy of the worst, mean and best user", ("users/acc_min", "users/acc_mean", "users/acc_max")),
        Lines("min user: coefficient beside share of samples", ("min_user/weight", "min_user/size_share"), 10),
        Lines("max user: coefficient beside share of samples", ("max_user/weight", "max_user/size_share"), 10),
        Scatter("dual λ by data size", "size", "dual"),
        Lines("dual λ of the cohort", ("dual/mean", "dual/min", "dual/max")),
        Lines("tolerance γ of the cohort", ("tolerance/mean",)),
        Scatter("rounds offline by data size", "size", "offline"),
        Scatter("coefficient by data size", "size", "weight"),
        Media("users/table"),
    ],
    ids=lambda chart: getattr(chart, "title", "table"),
)
def test_what_federated_runs_are_compared_by_is_shown(chart: Lines | Bars | Scatter | Media) -> None:
    assert chart in [shown for charts in sections().values() for shown in charts]


def test_every_chart_becomes_one_panel(panels: list[dict[str, Any]]) -> None:
    assert len(panels) == sum(len(charts) for charts in sections().values())


def small_run(task: str, folder: Path) -> FederatedTrainer:
    """One round of a task on data of its kind; 20 rows for each of three clients."""
    x = torch.randn(60, 4)
    data, net = {
        "classification": ((x, (x[:, 0] > 0).long()), nn.Linear(4, 2)),
        "regression": ((x, x.sum(1)), nn.Linear(4, 1)),
        "multilabel": ((x, (x[:, :2] > 0).float()), nn.Linear(4, 2)),
        "segmentation": ((x.reshape(60, 1, 2, 2), (x > 0).long().reshape(60, 2, 2)), nn.Conv2d(1, 2, 1)),
        "next_token": ((x.argsort(1), x.argsort(1).roll(1, 1)), nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))),
    }[task]
    trainer = FederatedTrainer(rounds=1, clients_per_round=2, run=folder, enable_progress_bar=False)
    options = {"num_tokens": 4} if task == "next_token" else {}
    trainer.fit(FedAvg(net, task=task), datamodule=TensorData(*data, torch.arange(60) % 3, val_fraction=0.2, **options))
    return trainer


@pytest.mark.parametrize("task", TASKS)
def test_panels_of_a_task_name_what_its_runs_have(task: str, tmp_path: Path) -> None:
    measures = TASKS[task].measures
    shown = panels_of(specification(workspace("team", "fedlit", "Federated users", measures)))
    trainer = small_run(task, tmp_path / "run")
    states = {curve for state in STATES.values() for curve in state.curves or {}}
    named = {name for metrics in values_of(shown, "metrics") for name in metrics}
    of_reports = min_max_metrics(loop_of(trainer).history.rows, measures)
    assert named - states - set(trainer.history) - set(of_reports) == {f"users/{measures[0].name}_hist"}
    assert {f"global/{measure.name}" for measure in measures} <= named
    axes = {
        axis for panel in shown if panel["viewType"] == "Vega2" for axis in panel["config"]["fieldSettings"].values()
    }
    assert axes - set(STATES) <= set(trainer.users)
    if task == "regression":
        assert not [text for text in map(str, shown) if "accuracy" in text]


def test_runs_are_grouped_by_experiment_and_algorithm(spec: dict[str, Any]) -> None:
    (runs,) = spec["section"]["runSets"]
    assert [key["name"] for key in runs["grouping"]] == ["group", "jobType"]


def test_min_and_max_user_are_drawn_as_running_means_over_ten_rounds(panels: list[dict[str, Any]]) -> None:
    smoothed = [panel["config"] for panel in panels if panel["config"].get("smoothingType") == "average"]
    assert [config["smoothingWeight"] for config in smoothed] == [10] * len(smoothed)
    drawn = {tuple(config["metrics"]) for config in smoothed}
    assert drawn == {
        ("min_user/acc", "max_user/acc"),
        ("min_user/weight", "min_user/size_share"),
        ("max_user/weight", "max_user/size_share"),
    }
    (gap,) = [config for config in smoothed if config.get("expressions")]
    assert gap["expressions"] == ["abs(${max_user/acc} - ${min_user/acc})"]


def test_numbers_of_min_and_max_user_are_those_of_the_catalogue(panels: list[dict[str, Any]]) -> None:
    bars = [panel["config"] for panel in panels if panel["viewType"] == "Bar Chart"]
    named = {name for config in bars for name in config["metrics"]}
    assert named == {"min_max/acc_gap", "min_max/acc_within10"}
    assert named <= set(MIN_MAX_METRICS)
