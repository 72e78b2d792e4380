"""Every metric has one name and one definition: what is measured, what is documented and what is listed agree."""

from pathlib import Path

import pytest

from fedlit import FedBC
from fedlit.catalogue import METRICS, SUMMARY_METRICS, metric, shown
from fedlit.history import EXTRA_METRICS, MeasuredParts, round_columns
from tests.problems import tiny_net

SHIPPED = tuple(METRICS)
"""When this file is collected: other tests have algorithms of their own, which add to the catalogue."""
OF_CLOUDS = ("buffer/staleness", "cloud/consensus", "cloud/staleness", "cloud/waiting", "time/sim_s")
"""Columns of runs with a virtual clock, a buffer or several servers."""
PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()


def test_the_catalogue_has_every_column_of_a_run_and_no_other() -> None:
    columns = round_columns(FedBC(tiny_net(), dual_momentum=0.5), MeasuredParts(finetuned=True, extra=EXTRA_METRICS))
    assert sorted({*columns, *OF_CLOUDS}) == sorted(SHIPPED)


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
    assert shown(name, value) == text
