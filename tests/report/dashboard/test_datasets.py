"""Runs of several data sets in a real browser: they are chosen, drawn, named and judged apart."""

from pathlib import Path
from typing import Any

import pytest

from fedlit.report.dashboard import write_dashboard
from fedlit.report.dashboard.datasets import datasets_of
from fedlit.results.runs import find_runs, group_runs
from tests.report.dashboard.browser import Page
from tests.report.dashboard.made import make_run
from tests.report.folders import write_run

MILD, HARD = "Synthetic alpha=0.5", "Synthetic alpha=1"
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg, and FedBC with two rates, on mild data; FedAvg and FedProx, for fewer rounds, on hard ones."""
    folder = tmp_path_factory.mktemp("mixed")
    mild: dict[str, Any] = {"data": {"alpha": 0.5}}
    hard: dict[str, Any] = {"data": {"alpha": 1}, "partition": "other", "rounds": 3}
    for seed in (0, 1):
        make_run(folder / f"mild-fedavg-{seed}", "FedAvg", seed, **mild, lr=0.1)
        for lr in (0.1, 0.2):
            make_run(folder / f"mild-fedbc-{lr}-{seed}", "FedBC", seed, **mild, lr=lr)
        make_run(folder / f"hard-fedavg-{seed}", "FedAvg", seed, **hard, lr=0.5)
        make_run(folder / f"hard-fedprox-{seed}", "FedProx", seed, **hard, mu=1)
    write_dashboard(find_runs([folder]), folder / "page.html")
    return folder / "page.html"


def test_a_metric_has_a_chart_for_each_data_set_with_its_groups_alone(page: Page, mixed: Path) -> None:
    page.open(mixed, "metrics=global/acc")
    assert page.texts("figcaption h2") == ["global accuracy", "global accuracy"]
    assert page.texts("figcaption .data") == [HARD, MILD]
    assert [len(figure.find_elements("css selector", "path.line")) for figure in page.find("figure")] == [2, 3]
    page.hover("figure:nth-child(2) svg.chart", 30, 0)
    assert set(page.tip()[1]) == {"FedAvg", "FedBC lr=0.1", "FedBC lr=0.2"}


def test_labels_say_what_differs_within_a_data_set_and_no_more(page: Page, mixed: Path) -> None:
    labels = {group.label for group in group_runs(find_runs([mixed.parent]))}
    assert "FedAvg lr=0.1 alpha=0.5" in labels, "what a label would be without its data set"
    page.open(mixed)
    assert page.legend() == ["FedAvg", "FedProx", "FedAvg", "FedBC lr=0.1", "FedBC lr=0.2"]
    assert page.texts("#legend .data") == [HARD, MILD]
    assert page.texts("#run-list .family") == [HARD, MILD]


def test_chips_choose_data_sets(page: Page, mixed: Path) -> None:
    page.open(mixed, "metrics=global/acc")
    assert page.texts("#data button") == [HARD, MILD]
    page.click("#data button:nth-of-type(2)")
    assert page.texts("figcaption .data") == [MILD]
    assert page.legend() == ["FedAvg", "FedBC lr=0.1", "FedBC lr=0.2"]
    assert page.texts("#run-list .family") == [MILD]
    page.reload()
    assert page.texts("figcaption .data") == [MILD]
    page.click("#runs-clear")
    assert page.texts("figcaption .data") == [HARD, MILD]


@pytest.mark.parametrize(("press", "count"), [([], 12), (["#runs-all"], 40)])
def test_every_group_that_is_drawn_is_in_the_legend_however_many_there_are(
    page: Page, tmp_path: Path, press: list[str], count: int
) -> None:
    for number in range(40):
        make_run(tmp_path / str(number), "FedBC", rounds=1, clients=1, lr=number / 100, tolerance=1000 + number)
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    for button in press:
        page.click(button)
    top, height = page.one("#legend").rect["y"], page.js("return document.getElementById('legend').scrollHeight")
    buttons = [button.rect for button in page.find("#legend button")]
    assert len(buttons) == len(page.legend()) == count
    assert all(button["y"] + button["height"] <= top + height + 1 for button in buttons)


def test_an_algorithm_has_its_colour_in_every_data_set(page: Page, mixed: Path) -> None:
    page.open(mixed, "metrics=global/acc")
    first = [figure.find_element("css selector", "path.line") for figure in page.find("figure")]
    colours = {line.value_of_css_property("stroke") for line in first}
    assert len(colours) == 1, "FedAvg's"
    assert all(line.get_attribute("stroke-dasharray") is None for line in first)


def test_a_zoom_beyond_the_end_of_a_data_set_leaves_its_chart_whole(page: Page, mixed: Path) -> None:
    page.open(mixed, "metrics=global/acc&zoom=4,5")
    spans = page.js("return [...document.querySelectorAll('svg.chart')].map(picture => picture.chart.span)")
    assert spans == [[0, 3], [4, 5]]


def test_remarks_are_of_one_data_set(page: Page, mixed: Path) -> None:
    page.open(mixed)
    assert page.texts("#remarks li") == [], "different data and lengths are no matter where they are not compared"


def test_final_values_name_the_data_and_have_a_best_one_in_each(page: Page, mixed: Path) -> None:
    page.open(mixed, "tab=finals&metrics=global/acc")
    assert page.column(2) == [HARD] * 2 + [MILD] * 3
    finals = [float(text.split()[0]) for text in page.column(4)]
    best = {f"{max(own):.2f}" for own in (finals[:2], finals[2:])}
    assert {text.split()[0] for text in page.texts("td.best")} == best


def test_users_say_of_which_data_they_are(page: Page, mixed: Path) -> None:
    page.open(mixed, "tab=users")
    groups = page.js("return [...document.querySelectorAll('#user-run optgroup')].map(group => group.label)")
    assert groups == [HARD, MILD]
    assert page.texts("#user-facts")[0].startswith(f"{HARD}: Mean under z ")


def test_a_data_set_that_did_not_measure_something_has_no_chart_of_it(page: Page, mixed: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "mild", "FedAvg", data={"alpha": 0.5})
    make_run(tmp_path / "hard", "FedAvg", data={"alpha": 1})
    text = (run / "metrics.csv").read_text()
    (run / "metrics.csv").write_text(text.replace("users/gini", "mine/gini"))
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "metrics=users/gini")
    assert page.texts("figcaption .data") == [HARD]


def test_a_name_leaves_out_options_that_follow_from_others(tmp_path: Path) -> None:
    for number, clients in enumerate((30, 100)):
        for alpha in (0.5, 1):
            data = {"alpha": alpha, "beta": alpha, "num_clients": clients, "test_fraction": 1 / clients}
            make_run(tmp_path / f"{alpha}-{number}", rounds=1, clients=1, data=data)
    datasets = datasets_of(group_runs(find_runs([tmp_path])))
    assert {dataset.name for dataset in datasets} == {
        f"Synthetic alpha={alpha} num_clients={clients}" for alpha in (0.5, 1) for clients in (30, 100)
    }
    assert "Synthetic alpha=1 beta=1 num_clients=100 test_fraction=0.01" in {dataset.about for dataset in datasets}
    assert [group.label for dataset in datasets for group in dataset.groups] == ["FedBC"] * 4


def test_names_of_data_are_text(page: Page, tmp_path: Path) -> None:
    make_run(tmp_path / "one", data={"note": EVIL})
    make_run(tmp_path / "two", data={"note": "a, b"})
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "metrics=global/acc")
    assert page.texts("figcaption .data") == [f"Synthetic note={EVIL}", "Synthetic note=a, b"]
    page.click("#data button:nth-of-type(2)")
    page.reload()
    assert page.texts("figcaption .data") == ["Synthetic note=a, b"], "a comma in a name survives the address"


def test_data_of_one_class_with_other_measures_are_named_by_them(tmp_path: Path) -> None:
    write_run(tmp_path / "classes", {"global/acc": [0.2, 0.5]}, data="TensorData", data_options={"x": "one array"})
    write_run(tmp_path / "numbers", {"global/mse": [0.4, 0.3]}, data="TensorData", data_options={"x": "another"})
    names = {data.name for data in datasets_of(group_runs(find_runs([tmp_path])))}
    assert names == {"TensorData (accuracy)", "TensorData (MSE)"}
