"""Up to 50 runs × 500 rounds × 100 clients: the page stays usable."""

import shutil
from pathlib import Path

import pytest

from fedlit.report.dashboard import write_dashboard
from fedlit.results.runs import find_runs
from tests.report.dashboard.browser import Page
from tests.report.dashboard.made import make_run

ALGORITHMS = (
    *("FedAvg", "FedProx", "FedBC", "Scaffold", "FedDyn"),
    *("Ditto", "PFedMe", "PerFedAvg", "QFedAvg", "FedFor"),
)


def make_runs(folder: Path, seeds: int) -> None:
    """Numbers are drawn once for each seed, which saves time; every run is packed by itself all the same."""
    for seed in range(seeds):
        first = make_run(folder / f"{ALGORITHMS[0].lower()}-{seed}", ALGORITHMS[0], seed, rounds=500, clients=100)
        for algorithm in ALGORITHMS[1:]:
            other = shutil.copytree(first, folder / f"{algorithm.lower()}-{seed}")
            config = (other / "config.yaml").read_text().replace(ALGORITHMS[0], algorithm)
            (other / "config.yaml").write_text(config)


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_many_runs_of_500_rounds_and_100_clients_stay_usable(page: Page, tmp_path: Path, seeds: int) -> None:
    make_runs(tmp_path / "runs", seeds)
    write_dashboard(find_runs([tmp_path / "runs"]), tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 25e6
    page.open(tmp_path / "page.html", "mode=runs")
    paints = page.js("return performance.getEntriesByType('paint').map(e => [e.name, e.startTime])")
    drawn = page.js("return performance.getEntriesByName('drawn')[0].startTime")
    assert dict(paints)["first-contentful-paint"] < 3000
    assert drawn < 6000, "all charts"
    assert len(page.lines()) == len(ALGORITHMS) * seeds
    page.hover("svg.chart", 30, 0)
    assert len(page.tip()[1]) == len(ALGORITHMS) * seeds
    page.click("#tab-users")
    assert len(page.column(1)) == 100
    assert "of the 501 evaluated rounds" in page.texts(".note")[-1]


@pytest.fixture(scope="module")
def forty_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Group k has the learning rate k; its final accuracy falls with k."""
    folder = tmp_path_factory.mktemp("groups")
    for number in range(40):
        run = make_run(folder / f"run-{number:02}", "FedAvg", seed=0, rounds=3, clients=2, lr=number)
        (run / "metrics.csv").write_text(f"round,global/acc\n0,0.1\n3,{0.9 - number / 100}\n")
    write_dashboard(find_runs([folder]), folder / "page.html")
    return folder / "page.html"


def test_of_many_groups_the_best_twelve_are_drawn_and_the_page_says_so(page: Page, forty_groups: Path) -> None:
    page.open(forty_groups)
    assert len(page.lines()) == 12
    assert page.texts("#legend button") == [f"FedAvg lr={number}" for number in range(12)]
    assert page.texts("#run-count") == ["12 of 40"]
    assert page.texts("#legend p")[0].startswith("12 groups of 40, those with the best global values at the end.")


def test_lines_that_are_drawn_first_differ_where_there_are_more_groups_than_looks(
    page: Page, forty_groups: Path
) -> None:
    page.open(forty_groups)
    script = "return [...document.querySelectorAll('#legend button svg')].map(swatch => swatch.outerHTML)"
    assert len(set(page.js(script))) == 12


def test_a_filter_draws_the_best_of_what_passes(page: Page, forty_groups: Path) -> None:
    page.open(forty_groups, "filter=lr%3D3")
    assert page.texts("#legend button") == [f"FedAvg lr={number}" for number in (3, *range(30, 40))]
    assert len(page.lines()) == 11


def test_all_groups_can_be_drawn_and_the_legend_leaves_room_for_the_charts(page: Page, forty_groups: Path) -> None:
    page.open(forty_groups)
    page.click("#runs-all")
    assert len(page.lines()) == 40
    assert page.js("return document.getElementById('legend').offsetHeight") < 200
    page.reload()
    assert len(page.lines()) == 40
