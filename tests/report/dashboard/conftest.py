"""A few real runs, their dashboard, and a browser that shows it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from fedlit import FedAvg, FedBC
from fedlit.report.dashboard import write_dashboard
from fedlit.results.runs import find_runs
from tests.problems import run, tiny_net
from tests.report.dashboard.browser import Page, chromium

ROUNDS = 12


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms with two seeds each, four clients, twelve rounds: folders fedavg-0, fedavg-1, fedbc-0, fedbc-1."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for client in (FedAvg(tiny_net(), lr=0.3, batch_size=4), FedBC(tiny_net(), lr=0.3, batch_size=4)):
            name = f"{type(client).__name__.lower()}-{seed}"
            run(client, rounds=ROUNDS, seed=seed, run=str(folder / name))
    return folder


@pytest.fixture(scope="session")
def dashboard(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dashboard of these runs."""
    out = tmp_path_factory.mktemp("page") / "dashboard.html"
    write_dashboard(find_runs([trained]), out)
    return out


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One browser for all tests."""
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def page(browser: Chrome) -> Iterator[Page]:
    """A laptop's window. Whatever the test did, the console must have stayed empty."""
    opened = Page(browser)
    opened.resize(1280)
    opened.prefer("light")
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # selenium has no types here; drops what was before
    yield opened
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]  # as above
