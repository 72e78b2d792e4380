"""Up to 50 runs × 500 rounds × 100 clients: the page stays usable."""

import shutil
from pathlib import Path

import pytest

from fedlit.dashboard import write_dashboard
from fedlit.results import find_runs
from tests.dashboard.browser import Page
from tests.dashboard.made import make_run

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
