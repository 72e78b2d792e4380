"""Every metric has one name and one definition: what is measured, what is documented and what is listed agree."""

from pathlib import Path
from typing import Any

import pytest

from fedlit import Buffer, FedBC
from fedlit.evaluation.round_metrics import EXTRA_METRICS
from fedlit.metrics.catalogue import METRICS, SUMMARY_METRICS, format_value, metric
from tests.cloud_runs import run_in_a_cloud
from tests.problems import tiny_net

SHIPPED = tuple(METRICS)
"""When this file is collected: other tests have algorithms of their own, which add to the catalogue."""
PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_the_catalogue_has_every_column_of_a_run_and_no_other(tmp_path: Path) -> None:
    client = FedBC(tiny_net(), dual_momentum=0.5, batch_size=4)
    everything: dict[str, Any] = {
        "extra_metrics": EXTRA_METRICS,
        "finetune_lr": [0.1, 0.2],
        "finetune_epochs": 1,
        "rounds": 1,
    }
    buffered = {"cloud": None, "buffer": Buffer(size=2, concurrency=4)}
    cloud = run_in_a_cloud(client, tmp_path / "cloud", val_fraction=0.2, newcomers=0.2, **everything)
    one_server = run_in_a_cloud(client, tmp_path / "one", val_fraction=0.2, **everything, **buffered)
    headers = [(folder / "metrics.csv").read_text().splitlines()[0].split(",") for folder in (cloud, one_server)]
    assert set(headers[0]) | set(headers[1]) == {"round", *SHIPPED}


@pytest.mark.parametrize("name", [*SHIPPED, *SUMMARY_METRICS])
def test_every_metric_is_on_the_page(name: str) -> None:
    group, _, last = name.partition("/")
    family = f"_{last.rpartition('_')[2]}"  # written as `users/acc_min`, `_max`, …
    assert f"`{name}`" in PAGE or (f"`{group}/" in PAGE and f"`{family}`" in PAGE)


def test_a_callbacks_own_metric_is_described_by_its_name() -> None:
    assert metric("mine/gap").label == "mine/gap"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("rounds_to/0.40", "rounds to 40 %"),
        ("rounds_to/0.85", "rounds to 85 %"),
        ("time_to/0.85", "time to 85 %"),
        ("time_to/soon", "time_to/soon"),
    ],
)
def test_every_threshold_has_words_of_its_own(name: str, label: str) -> None:
    assert metric(name).label == label


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("global/acc", 0.83456, "83.46 %"),
        ("users/acc_var", 0.01234, "0.0123"),
        ("comm/up_mb", 1.5, "1.5 MB"),
        ("global/loss", 0.123456, "0.1235"),
        ("time/sim_s", 12.5, "12.5 s"),
        ("cloud/waiting", 0.25, "25.00 %"),
        ("time_to/0.40", 12.5, "12.5 s"),
    ],
)
def test_values_are_shown_as_people_read_them(name: str, value: float, text: str) -> None:
    assert format_value(name, value) == text
