"""Two groups of runs user by user, in a real browser."""

import csv
from pathlib import Path
from statistics import mean

import pytest
import torch
from selenium.webdriver.common.keys import Keys

from fedlit import FedAvg, FederatedTrainer, TensorData
from fedlit.report.dashboard import write_dashboard
from fedlit.results.records import read_clients
from fedlit.results.runs import find_runs
from tests.report.dashboard.browser import Page
from tests.report.dashboard.made import make_run
from tests.report.dashboard.test_charts import numbers

CLIENTS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and FedBC on the same clients with two seeds; FedProx with the second seed on other clients."""
    folder = tmp_path_factory.mktemp("pairs")
    for seed in (0, 1):
        for name in ("FedAvg", "FedBC"):
            make_run(folder / f"{name.lower()}-{seed}", name, seed, rounds=3, clients=CLIENTS)
    make_run(folder / "fedprox-1", "FedProx", 1, rounds=3, clients=CLIENTS, partition="other")
    return folder


@pytest.fixture(scope="module")
def paired(folder: Path) -> Path:
    """Their dashboard."""
    write_dashboard(find_runs([folder]), folder / "page.html")
    return folder / "page.html"


def accuracies(folder: Path, name: str, column: str) -> dict[int, float]:
    """Each client's accuracy in the last round, mean over seeds."""
    tables = [read_clients(folder / f"{name}-{seed}").to_pylist() for seed in (0, 1)]
    last = [{row["client"]: row[column] for row in table if row["round"] == 3} for table in tables]
    return {client: mean(own[client] for own in last) for client in range(CLIENTS)}


@pytest.mark.parametrize("column", ["acc_personal", "acc_global"])
def test_every_user_stands_where_its_two_accuracies_are(page: Page, paired: Path, folder: Path, column: str) -> None:
    page.open(paired, "tab=pairs")
    page.choose("#pair-acc", column)
    under_a, under_b = (accuracies(folder, name, column) for name in ("fedavg", "fedbc"))
    assert len(page.find("svg.pairs circle.user")) == CLIENTS
    for disc in page.find("svg.pairs circle.user"):
        client = int(disc.get_attribute("data-client") or -1)
        pixels = [float(disc.get_attribute(name) or "nan") for name in ("cx", "cy")]
        script = "const c = document.querySelector('svg.pairs').chart; return [c.x(arguments[0]), c.y(arguments[1])]"
        assert pixels == pytest.approx(page.js(script, under_a[client], under_b[client]), abs=0.06)
    line = page.one("svg.pairs .diagonal")
    left, low, right, high = (float(line.get_attribute(name) or "nan") for name in ("x1", "y1", "x2", "y2"))
    assert right - left == pytest.approx(low - high), "both axes have the same scale"


def test_the_sentence_and_the_table_say_who_gains(page: Page, paired: Path, folder: Path) -> None:
    page.open(paired, "tab=pairs")
    a, b = (accuracies(folder, name, "acc_personal") for name in ("fedavg", "fedbc"))
    gains = {client: b[client] - a[client] for client in a}
    better, worse = sum(gain > 0 for gain in gains.values()), sum(gain < 0 for gain in gains.values())
    said = page.texts("#pair-facts")[0]
    assert said.startswith(
        f"Of 12 users, {better} gain under FedBC, {worse} lose, {12 - better - worse} stay the same."
    )
    assert f"Worst user {100 * min(a.values()):.2f} % and {100 * min(b.values()):.2f} %." in said
    assert [int(text) for text in page.column(1)] == sorted(gains, key=lambda client: -gains[client])
    assert [float(text) for text in page.column(5)] == pytest.approx(
        sorted((100 * gain for gain in gains.values()), reverse=True), abs=0.0051
    )
    assert page.texts(".note")[-1].startswith("Means over 2 pairs of runs with the seeds 0, 1.")


def test_swapping_turns_gains_into_losses(page: Page, paired: Path) -> None:
    page.open(paired, "tab=pairs")
    gains = [float(text) for text in page.column(5)]
    page.click("#pair-swap")
    assert [float(text) for text in page.column(5)] == [-gain for gain in reversed(gains)]
    assert page.texts("svg.pairs .name") == ["under FedAvg", "under FedBC"]
    page.reload()
    assert page.texts("svg.pairs .name") == ["under FedAvg", "under FedBC"]


def test_runs_on_other_clients_are_not_compared(page: Page, paired: Path) -> None:
    page.open(paired, "tab=pairs")
    last = "return [...document.querySelectorAll('#pair-b option')].at(-1).value"
    page.choose("#pair-b", page.js(last))
    assert page.texts("#pair-facts")[0].startswith("These two have no runs with the same seed and the same partition")
    assert page.texts("svg.pairs") == []


def test_filters_choose_the_pairs(page: Page, paired: Path) -> None:
    page.open(paired, "tab=pairs&seed=1")
    assert page.texts(".note")[-1].startswith("Seed 1.")
    page.click("#algorithms [data-value=FedBC]")
    assert page.texts("#view .empty")[0].startswith("Two groups of one data set are compared here")


def test_runs_without_accuracies_are_pointed_to_another_view(page: Page, tmp_path: Path) -> None:
    x = torch.randn(60, 2)
    data = TensorData(x, x.sum(1), torch.arange(60) % 3)
    trainer = FederatedTrainer(rounds=1, clients_per_round=2, run=tmp_path / "run", enable_progress_bar=False)
    trainer.fit(FedAvg(torch.nn.Linear(2, 1), task="regression"), datamodule=data)
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "tab=pairs")
    assert page.texts("#view .empty")[0].endswith("but these runs measure MSE. See the view Users.")


def test_pointer_and_keys_tell_of_a_user(page: Page, paired: Path) -> None:
    page.open(paired, "tab=pairs")
    page.js("document.querySelector('svg.pairs').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.HOME)
    heading, rows = page.tip()
    first = [page.column(number)[0] for number in range(1, 6)]
    assert heading == f"Client {first[0]}"
    assert [numbers(rows[name])[0] for name in ("data size", "under FedAvg", "under FedBC", "gain")] == [
        float(text) for text in first[1:]
    ]
    page.js("document.activeElement.blur()")
    page.hover(f"svg.pairs [data-client='{page.column(1)[3]}']")
    assert page.texts("tbody tr.near td:first-child") == [page.tip()[0].removeprefix("Client ")]


def test_the_comparison_is_saved(page: Page, paired: Path, tmp_path: Path) -> None:
    page.open(paired, "tab=pairs")
    file = page.download("figcaption .save:nth-child(2)", tmp_path)
    assert file.name == "FedBC-against-FedAvg-user-by-user.csv"
    with file.open(encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    assert [row["client"] for row in rows] == page.column(1)
    assert [100 * float(row["accuracy under FedBC"]) for row in rows] == pytest.approx(
        [float(text) for text in page.column(4)], abs=0.0051
    )
