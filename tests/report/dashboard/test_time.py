"""Curves by what a run has spent, in a real browser: offered where runs counted it, and true to what was measured."""

import re
import shutil
from pathlib import Path
from statistics import mean, stdev

import pytest
import yaml
from selenium.webdriver.common.keys import Keys

from fedlit.report.dashboard import write_dashboard
from fedlit.results.runs import find_runs
from tests.cloud_runs import EVENTS
from tests.report.dashboard.browser import Page, row_of
from tests.report.dashboard.made import make_run
from tests.report.dashboard.test_charts import FIRST, numbers

CHOICE = "#axis"
BY_TIME = "input[value=time] + span"


@pytest.fixture(scope="module")
def clocked(trained: Path, clouds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of clouds, and fedbc-1 without a clock, as if it were of the same data."""
    folder = tmp_path_factory.mktemp("clocked")
    for name in ("fedavg-0", "fedavg-1", "fedprox-0"):
        shutil.copytree(clouds / name, folder / name)
    shutil.copytree(trained / "fedbc-1", folder / "fedbc-1")
    config, theirs = (yaml.safe_load((folder / name / "config.yaml").read_text()) for name in ("fedbc-1", "fedavg-0"))
    (folder / "fedbc-1" / "config.yaml").write_text(yaml.safe_dump(config | {"data": theirs["data"]}))
    return folder


@pytest.fixture(scope="module")
def timed(clocked: Path) -> Path:
    """The dashboard of these runs."""
    write_dashboard(find_runs([clocked]), clocked / "page.html")
    return clocked / "page.html"


def rows_of(run: Path) -> list[dict[str, float]]:
    """metrics.csv, read without fedlit."""
    return [row_of(run, number) for number in range(EVENTS + 1)]


def held(run: Path, time: float) -> dict[str, float]:
    """The row that holds at a time, which the page shows in four digits."""
    return [row for row in rows_of(run) if row["time/sim_s"] <= time * (1 + 5e-4)][-1]


def axis_name(page: Page) -> str:
    return page.texts("svg.chart .name")[-1]


def test_runs_without_a_clock_do_not_offer_its_axis(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    assert page.texts(f"{CHOICE} label") == ["Round", "Client steps", "MB sent"]
    page.open(dashboard, "x=time")
    assert axis_name(page) == "round"
    assert len(page.lines()) == 2


def test_the_reader_chooses_round_or_simulated_time(page: Page, timed: Path) -> None:
    page.open(timed, "metrics=global/acc")
    assert axis_name(page) == "round"
    before = page.lines()
    page.click(BY_TIME)
    assert axis_name(page) == "simulated time (s)"
    assert page.lines() != before
    assert page.one(FIRST).get_attribute("aria-label").startswith("global accuracy by simulated time. Arrow keys")
    page.click("input[value=round] + span")
    assert page.lines() == before


def test_a_line_by_time_is_a_staircase(page: Page, timed: Path) -> None:
    page.open(timed, "x=time&mode=runs&metrics=global/acc")
    corners = [tuple(map(float, point.split())) for point in page.lines()[0].removeprefix("M").split("L")]
    assert len(corners) == 2 * EVENTS + 1
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in zip(corners, corners[1:], strict=False))


def test_hover_by_time_tells_the_round_and_the_value_of_that_round(page: Page, timed: Path, clocked: Path) -> None:
    page.open(timed, "x=time&mode=runs&metrics=global/loss")
    page.hover(FIRST, -400, 0)  # where FedProx, with fewer servers at a time, has not ended yet
    heading, rows = page.tip()
    time = numbers(heading)[0]
    assert re.fullmatch(r"At [\d.]+ s", heading)
    for label, text in rows.items():
        found = re.fullmatch(r"(\w+), seed (\d) \(round (\d+)\)", label)
        assert found is not None
        row = held(clocked / f"{found[1].lower()}-{found[2]}", time)
        assert int(found[3]) == row["round"]
        assert numbers(text)[0] == pytest.approx(row["global/loss"], rel=5e-4)
    assert len(rows) == 3


def test_hover_by_time_shows_the_mean_of_staircases(page: Page, timed: Path, clocked: Path) -> None:
    page.open(timed, "x=time&metrics=global/loss")
    page.hover(FIRST, -60, 0)
    heading, rows = page.tip()
    both = [held(clocked / f"fedavg-{seed}", numbers(heading)[0]) for seed in (0, 1)]
    (label,) = [label for label in rows if label.startswith("FedAvg")]
    low, high = sorted(int(row["round"]) for row in both)
    assert label == (f"FedAvg (round {low})" if low == high else f"FedAvg (rounds {low} to {high})")
    values = [row["global/loss"] for row in both]
    assert numbers(rows[label]) == pytest.approx([mean(values), stdev(values)], abs=0.00051)


def test_hover_by_round_tells_the_time(page: Page, timed: Path, clocked: Path) -> None:
    page.open(timed, "mode=runs&metrics=global/loss")
    page.hover(FIRST, 30, 0)
    heading, rows = page.tip()
    time = row_of(clocked / "fedavg-0", int(heading.split()[1]))["time/sim_s"]
    (label,) = [label for label in rows if label.startswith("FedAvg, seed 0")]
    assert numbers(label.partition("(")[2]) == pytest.approx([time], rel=5e-4)
    assert "FedBC, seed 1" in rows, "it has no clock"


def test_runs_without_a_clock_are_counted_where_they_are_not_drawn(page: Page, timed: Path) -> None:
    page.open(timed, "mode=runs&metrics=global/acc")
    assert len(page.lines()) == 4
    page.click(BY_TIME)
    assert len(page.lines()) == 3
    assert page.texts("#hint")[0].endswith("Without a clock, and so not drawn: 1 run.")
    page.open(timed, "x=time&mode=runs&metrics=global/acc&algorithm=FedBC&seed=1")
    assert page.texts("#view .empty") == ["None of the chosen runs has measured this with a clock."]


def test_a_zoom_is_in_seconds_is_kept_and_ends_with_the_axis(page: Page, timed: Path) -> None:
    page.open(timed, "x=time")
    whole = page.lines()
    page.drag(FIRST, -60, 60)
    assert re.fullmatch(r"[\d.]+ to [\d.]+ s · show all", page.texts("#zoom-reset")[0])
    page.hover("h1")
    drawn, zoom = page.lines(), page.texts("#zoom-reset")
    assert drawn != whole
    page.reload()
    assert page.lines() == drawn
    assert page.texts("#zoom-reset") == zoom
    page.click("input[value=round] + span")
    assert page.texts("#zoom-reset") == []


def test_keys_walk_through_times_and_zoom(page: Page, timed: Path) -> None:
    page.open(timed, "x=time")
    page.js("document.querySelector('svg.chart').focus()")
    chart = page.browser.switch_to.active_element
    chart.send_keys(Keys.HOME)
    assert page.tip()[0] == "At 0 s"
    chart.send_keys(Keys.ARROW_RIGHT)
    assert numbers(page.tip()[0])[0] > 0
    chart.send_keys("+")
    page.settle()
    assert page.texts("#zoom-reset")[0].startswith("0 to ")
    chart.send_keys(Keys.ESCAPE)
    page.settle()
    assert page.texts("#zoom-reset") == []


def test_the_smallest_and_largest_users_have_the_axis_and_tables_do_not(page: Page, timed: Path) -> None:
    page.open(timed, "x=time&tab=extremes")
    assert set(page.texts("svg.chart .name")[1::2]) == {"simulated time (s)"}
    page.click("#tab-finals")
    assert page.texts(CHOICE) == []


@pytest.mark.parametrize("width", [420, 1280])
def test_the_choice_fits_into_the_window(page: Page, timed: Path, width: int) -> None:
    page.resize(width)
    page.open(timed, "x=time")
    assert page.js("return document.documentElement.scrollWidth") <= width
    assert page.texts(f"{CHOICE} label") == ["Round", "Simulated time", "Client steps", "MB sent"]


@pytest.mark.parametrize(
    ("key", "name", "columns", "words"),
    [
        ("steps", "client steps (all clients)", ["train/steps"], r"After ([\d,]+) client steps"),
        ("mb", "MB sent (up and down)", ["comm/up_mb", "comm/down_mb"], r"After ([\d.e-]+) MB"),
    ],
)
def test_client_steps_and_bytes_are_sums_since_the_start(
    page: Page, dashboard: Path, trained: Path, key: str, name: str, columns: list[str], words: str
) -> None:
    page.open(dashboard, "mode=runs&metrics=global/loss")
    page.click(f"input[value={key}] + span")
    assert axis_name(page) == name
    page.hover(FIRST, 30, 0)
    heading, rows = page.tip()
    found = re.fullmatch(words, heading)
    assert found is not None
    place = float(found[1].replace(",", ""))
    for label, text in rows.items():
        said = re.fullmatch(r"(\w+), seed (\d) \(round (\d+)\)", label)
        assert said is not None
        run, round = trained / f"{said[1].lower()}-{said[2]}", int(said[3])
        spent = [sum(row_of(run, number)[column] for column in columns) for number in range(1, round + 2)]
        assert sum(spent[:-1]) <= place * (1 + 1e-3)
        assert place <= sum(spent) * (1 + 1e-3), "the next round had not ended"
        assert numbers(text)[0] == pytest.approx(row_of(run, round)["global/loss"], rel=5e-4)
    assert len(rows) == 4


def test_a_run_that_did_not_count_all_its_rounds_has_no_sums(page: Page, tmp_path: Path) -> None:
    make_run(tmp_path / "whole", "FedAvg")
    older = make_run(tmp_path / "older", "FedBC")
    lines = (older / "metrics.csv").read_text().splitlines()
    at = lines[0].split(",").index("train/steps")
    cells = lines[2].split(",")
    lines[2] = ",".join([*cells[:at], "", *cells[at + 1 :]])
    (older / "metrics.csv").write_text("\n".join(lines) + "\n")
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "x=steps&metrics=global/acc")
    assert len(page.lines()) == 1
    assert page.texts("#hint")[0].endswith("Without a count of client steps, and so not drawn: 1 run.")
