"""The view of min and max user in a real browser: numbers, the picture of each group, and what is left out."""

import csv
import json
from pathlib import Path
from statistics import mean, stdev

import pytest
from selenium.webdriver.common.keys import Keys

from fedlit.report.dashboard import write_dashboard
from fedlit.report.min_max import min_max_metrics
from fedlit.results.runs import find_runs, read_run
from tests.report.dashboard.browser import Page, row_of
from tests.report.dashboard.made import make_run
from tests.report.dashboard.test_charts import numbers
from tests.report.folders import write_run

PANELS = ".block .charts > figure"
SEEDS = (0, 1, 2)
ROUNDS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and FedBC with three seeds; what is drawn of them is noise of 40 rounds."""
    folder = tmp_path_factory.mktemp("extremes")
    for seed in SEEDS:
        for name in ("FedAvg", "FedBC"):
            make_run(folder / f"{name.lower()}-{seed}", name, seed, rounds=ROUNDS)
    return folder


@pytest.fixture(scope="module")
def noisy(folder: Path) -> Path:
    """Their dashboard."""
    write_dashboard(find_runs([folder]), folder / "page.html")
    return folder / "page.html"


def values(folder: Path, name: str, metric: str) -> list[float]:
    """A number of min and max user in each seed, by report/min_max.py."""
    runs = [read_run(folder / f"{name.lower()}-{seed}") for seed in SEEDS]
    return [min_max_metrics(run.rows, run.measures)[metric] for run in runs]


def by_hand(folder: Path, name: str, round: int, window: int) -> dict[str, list[float]]:
    """Mean over the last rounds until this one, by seed, from metrics.csv alone."""
    found: dict[str, list[float]] = {"min user": [], "max user": [], "gap": []}
    for seed in SEEDS:
        rows = [row_of(folder / f"{name.lower()}-{seed}", at) for at in range(max(0, round - window + 1), round + 1)]
        low, high = ([row[f"{user}_user/acc"] for row in rows] for user in ("min", "max"))
        found["min user"].append(mean(low))
        found["max user"].append(mean(high))
        found["gap"].append(mean(abs(a - b) for a, b in zip(low, high, strict=True)))
    return found


def test_the_table_has_the_numbers_of_the_report_with_their_spread_over_seeds(
    page: Page, noisy: Path, folder: Path
) -> None:
    page.open(noisy, "tab=extremes")
    assert [text.split("\n")[0].strip() for text in page.column(1)] == [
        f"{name} 3 runs, 40 rounds" for name in ("FedAvg", "FedBC")
    ]
    columns = ("min_user/acc_last10", "max_user/acc_last10", "min_max/acc_gap", None, "min_max/acc_within10")
    for number, metric in enumerate(columns, start=2):
        for name, shown in zip(("FedAvg", "FedBC"), page.column(number), strict=True):
            own = values(folder, name, metric) if metric else None
            if own is not None:
                assert numbers(shown) == pytest.approx([100 * mean(own), 100 * stdev(own)], abs=0.051)


def test_rounds_within_ten_points_are_counted_at_the_end_and_in_all(page: Page, tmp_path: Path) -> None:
    gaps = [0.5] * 10 + [0.1] * 6 + [0.11] * 4
    write_run(tmp_path / "run", {"min_user/acc": [0.3] * 20, "max_user/acc": [0.3 + gap for gap in gaps]})
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "tab=extremes")
    assert [page.column(number) for number in (4, 5, 6)] == [["10.4"], ["60.0"], ["30.0"]]
    page.choose("#window", "5")
    assert [page.column(number) for number in (4, 5, 6)] == [["10.8"], ["20.0"], ["30.0"]]
    assert page.texts(".gaps th small")[-2:] == ["% of the last 5 rounds", "% of all rounds"]


@pytest.mark.parametrize("window", [10, 25])
def test_a_point_is_the_mean_of_the_last_rounds_of_each_run_and_the_last_point_is_the_table(
    page: Page, noisy: Path, folder: Path, window: int
) -> None:
    page.open(noisy, "tab=extremes" if window == 10 else f"tab=extremes&window={window}")
    page.js(f"document.querySelectorAll('{PANELS} svg.chart')[1].focus()")
    chart = page.browser.switch_to.active_element
    for key, round in ((Keys.HOME, 0), (Keys.END, ROUNDS)):
        chart.send_keys(key)
        heading, rows = page.tip()
        assert heading == f"Round {round}"
        expected = by_hand(folder, "FedBC", round, window)
        for word in ("min user", "max user"):
            own = expected[word]
            assert numbers(rows[f"{word}: FedBC"]) == pytest.approx([100 * mean(own), 100 * stdev(own)], abs=0.0051)
    shown = [numbers(page.column(number)[1])[0] for number in (2, 3, 4)]
    assert shown == pytest.approx(
        [100 * mean(own) for own in by_hand(folder, "FedBC", ROUNDS, window).values()], abs=0.051
    )


def test_the_view_begins_smoothed_and_the_reader_may_see_what_was_measured(
    page: Page, noisy: Path, folder: Path
) -> None:
    page.open(noisy, "tab=extremes")
    assert page.one("#window").get_attribute("value") == "10"
    assert page.texts("#smoothing-label") == []
    smooth = page.lines()
    page.choose("#window", "1")
    assert page.lines() != smooth
    page.hover(f"{PANELS} svg.chart", 30, 0)
    heading, rows = page.tip()
    measured = [row_of(folder / f"fedavg-{seed}", int(heading.split()[1]))["min_user/acc"] for seed in SEEDS]
    assert numbers(rows["min user: FedAvg"])[0] == pytest.approx(100 * mean(measured), abs=0.0051)
    assert page.texts("#hint")[0].endswith("the numbers are means of the last 10 evaluated rounds.")
    page.click("#tab-curves")
    assert page.texts("#window-label") == []


def corners(path: str) -> list[tuple[float, float]]:
    """The points of a drawn path."""
    return [(float(x), float(y)) for x, y in (point.split() for point in path.strip("MZ").split("L"))]


def test_each_group_has_a_picture_in_which_the_band_fills_the_gap_between_both_lines(page: Page, noisy: Path) -> None:
    page.open(noisy, "tab=extremes")
    assert page.texts(f"{PANELS} h2") == ["FedAvg", "FedBC"]
    for panel in (1, 2):
        within = f"{PANELS}:nth-child({panel}) svg.chart"
        high, low = (path.get_attribute("d") or "" for path in page.find(f"{within} path.line"))
        (band,) = (path.get_attribute("d") or "" for path in page.find(f"{within} path.band"))
        assert set(corners(band)) == {*corners(high), *corners(low)}
    spans = page.js(
        f"return [...document.querySelectorAll('{PANELS} svg.chart')]"
        ".map(({chart}) => [chart.span, chart.y(0.2), chart.y(0.8)])"
    )
    assert spans[0] == spans[1], "both have the same axes"


def test_the_gap_has_a_picture_of_all_groups(page: Page, noisy: Path, folder: Path) -> None:
    page.open(noisy, "tab=extremes")
    assert page.texts(".rest figcaption h2")[0] == "gap between min user and max user"
    page.js("document.querySelector('.rest svg.chart').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.END)
    _, rows = page.tip()
    for name in ("FedAvg", "FedBC"):
        own = values(folder, name, "min_max/acc_gap")
        assert numbers(rows[name]) == pytest.approx([100 * mean(own), 100 * stdev(own)], abs=0.0051)


def test_single_runs_have_a_row_and_a_picture_each(page: Page, noisy: Path) -> None:
    page.open(noisy, "tab=extremes&mode=runs")
    names = [f"{name}, seed {seed}" for name in ("FedAvg", "FedBC") for seed in SEEDS]
    assert page.texts(f"{PANELS} h2") == names
    assert [text.split(" 40 rounds")[0] for text in page.column(1)] == names
    assert "±" not in "".join(page.column(4))


def test_a_run_that_is_not_finished_is_not_averaged_and_the_page_says_which(page: Page, tmp_path: Path) -> None:
    for seed, rounds in ((0, 20), (1, 20), (2, 7)):
        make_run(tmp_path / f"fedbc-{seed}", seed=seed, rounds=rounds)
    (tmp_path / "fedbc-2" / "summary.json").write_text(json.dumps({"finished": False}))
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "tab=extremes")
    (remark,) = page.texts("#remarks li")
    assert remark.endswith("fedbc-2 is left out of the means of FedBC, because it is not finished (last round: 7).")
    assert page.column(1)[0].split("\n")[-1].endswith("2 runs, 20 rounds")
    page.click("#tab-finals")
    assert page.texts("tbody td small") == ["2 runs"]
    page.open(tmp_path / "page.html", "metrics=global/acc")
    page.js("document.querySelector('svg.chart').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.HOME)
    own = [row_of(tmp_path / f"fedbc-{seed}", 0)["global/acc"] for seed in (0, 1)]
    assert numbers(page.tip()[1]["FedBC"])[0] == pytest.approx(100 * mean(own), abs=0.0051)
    page.open(tmp_path / "page.html", "tab=extremes&mode=runs")
    assert page.texts(f"{PANELS} h2") == ["FedBC, seed 0", "FedBC, seed 1", "FedBC, seed 2"]


def test_the_files_of_the_table_and_of_a_picture_hold_what_is_shown(
    page: Page, noisy: Path, folder: Path, tmp_path: Path
) -> None:
    page.open(noisy, "tab=extremes")
    with page.download(".block .note .save", tmp_path).open(newline="") as file:
        heads, *rows = csv.reader(file)
    gap = float(rows[1][heads.index("gap (points, last 10 rounds)")])
    assert gap == pytest.approx(mean(values(folder, "FedBC", "min_max/acc_gap")), rel=1e-5)
    picture = page.download(f"{PANELS} .save:first-child", tmp_path).read_text()
    assert "max user: FedAvg" in picture


def test_other_measures_have_a_gap_without_points(page: Page, tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"global/mse": [2.0], "min_user/mse": [3.0], "max_user/mse": [1.0]})
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "tab=extremes")
    assert page.texts(".gaps thead th") == [
        "group",
        "min user\nlast 10 rounds",
        "max user\nlast 10 rounds",
        "gap\nlast 10 rounds",
    ]
    assert [page.column(number) for number in (2, 3, 4)] == [["3"], ["1"], ["2"]]


@pytest.mark.parametrize("tab", ["extremes", "finals", "users", "pairs"])
@pytest.mark.parametrize("mode", ["mean", "runs"])
def test_no_column_is_cut_at_1400_pixels(page: Page, tmp_path: Path, tab: str, mode: str) -> None:
    for seed in (0, 1):
        for rate in (0.001, 0.1):
            make_run(tmp_path / f"prox-{rate}-{seed}", "FedProx", seed, clients=12, mu=rate, lr=rate / 10)
            make_run(tmp_path / f"bc-{rate}-{seed}", "FedBC", seed, clients=12, dual_lr=rate, lr=rate / 10)
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.resize(1400)
    page.open(tmp_path / "page.html", f"tab={tab}&mode={mode}")
    widths = page.js(
        "return [...document.querySelectorAll('.scroll')].map(part => [part.scrollWidth, part.clientWidth])"
    )
    assert widths
    assert all(needed <= room for needed, room in widths)
