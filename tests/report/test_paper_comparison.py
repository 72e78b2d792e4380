"""A paper's table beside our runs: the right number for the right runs, and words for all the rest."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fedlit
from fedlit import CIFAR10, FedBC, FederatedTrainer, PowerLaw, Softmax
from fedlit.data.files import Layout, Pictures, Published
from fedlit.errors import ConfigError
from fedlit.report import paper_comparison, paper_vocabulary, tables
from fedlit.report.domains import read_domains
from fedlit.report.figures import sweeps as figures_sweeps
from fedlit.report.grids import Grid
from fedlit.report.paper_comparison import against_grid
from fedlit.report.paper_tables import FOLDER, in_our_unit, read_table, shipped_tables
from fedlit.report.paper_vocabulary import names_of, reading_of
from fedlit.results.runs import Run, group_runs, read_run
from tests.report.folders import one_group, write_run

TABLE1 = "fedbc_table1_synthetic_global"
SYNTHETIC: dict[str, Any] = {"data_options": {"alpha": 0.5, "beta": 0.5}}


def beside(table: str, *runs: Path, last: int = 1) -> Grid:
    groups = group_runs([read_run(path) for path in runs])
    return against_grid("t", groups, read_table(table), read_domains(groups), last)


def numbers(grid: Grid) -> list[tuple[str, str, str, str]]:
    """(algorithm, paper, ours, difference) of each row."""
    return [(row[0].text, row[3].text, row[4].text, row[6].text) for row in grid.rows]


def epochs(path: Path, count: int, **options: Any) -> Path:
    return write_run(path, {"global/acc": [0.8]}, model={"local_epochs": count}, **{**SYNTHETIC, **options})


def test_the_papers_number_stands_beside_ours(tmp_path: Path) -> None:
    grid = beside(TABLE1, epochs(tmp_path / "a", 5), epochs(tmp_path / "b", 5, algorithm="QFedAvg"))
    assert numbers(grid) == [
        ("FedAvg", "83.42 ± 0.58", "80.00", "−3.42"),
        ("QFedAvg", "86.76 ± 0.15", "80.00", "−6.76"),
    ]
    assert "23 of the table's 25 numbers have no run here." in grid.notes
    assert "Read as: global_accuracy = global/acc." in grid.notes


def test_each_row_goes_to_the_runs_with_its_settings(tmp_path: Path) -> None:
    grid = beside(TABLE1, epochs(tmp_path / "a", 1), epochs(tmp_path / "b", 50))
    assert [(row[0].text, row[3].text) for row in grid.rows] == [
        ("FedAvg local_epochs=1", "83.61 ± 0.43"),
        ("FedAvg local_epochs=50", "82.94 ± 0.66"),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 7}, "FedAvg: no row fits. E: the runs have 7, the table 1, 5, 10, 25, 50."),
        ({"data_options": {"alpha": 1.0, "beta": 0.5}}, "dataset: the runs have synthetic(1.0,0.5), the table synthe"),
        ({"algorithm": "FedDyn"}, "The table has no row for FedDyn."),
        ({"trainer": {"weights": "uniform"}}, "FedAvg: not run with its algorithm's own weights, so not compared."),
        ({"trainer": {"server_optimizer": "FedAdam"}}, "The table has no row for FedAvg."),
    ],
    ids=["epochs", "data", "algorithm", "weights", "server optimiser"],
)
def test_what_does_not_fit_is_said_and_not_shown(tmp_path: Path, options: Mapping[str, Any], words: str) -> None:
    given = dict(options)
    grid = beside(TABLE1, epochs(tmp_path, given.pop("count", 5), **given))
    assert grid.rows == []
    assert any(words in note for note in grid.notes), grid.notes


def test_local_steps_are_not_epochs(tmp_path: Path) -> None:
    path = write_run(tmp_path, {"global/acc": [0.8]}, model={"local_epochs": 5, "local_steps": 5}, **SYNTHETIC)
    assert any("E: the runs have 5 steps" in note for note in beside(TABLE1, path).notes)


def test_classes_and_exponent_choose_the_row_of_fedbc(tmp_path: Path) -> None:
    partition = {"class_path": "fedlit.PowerLaw", "init_args": {"classes_per_client": 2, "exponent": 1.4}}
    path = write_run(
        tmp_path,
        {"personal/pooled_acc": [0.5]},
        algorithm="FedBC",
        model={"local_epochs": 5},
        data="CIFAR10",
        data_options={"partition": partition},
    )
    assert numbers(beside("fedbc_table3_cifar10_local_E5", path)) == [("FedBC", "53.83 ± 0.56", "50.00", "−3.83")]


def test_runs_of_different_lengths_are_marked(tmp_path: Path) -> None:
    short = epochs(tmp_path / "a", 5)
    long = write_run(
        tmp_path / "b", {"global/acc": [0.7, 0.8]}, algorithm="FedProx", model={"local_epochs": 5}, **SYNTHETIC
    )
    mark = "Runs of different lengths are compared, in rounds: FedAvg 1; FedProx 2."
    assert mark in beside(TABLE1, short, long).notes
    assert not any("different lengths" in note for note in beside(TABLE1, short).notes)


def test_a_table_of_best_rounds_says_that_ours_are_not(tmp_path: Path) -> None:
    trained = write_run(
        tmp_path,
        {"global/acc": [0.9, 0.8]},
        data="MNIST",
        model={"local_epochs": 1},
        data_options={"partition.classes_per_client": 1, "partition.exponent": 1.1},
    )
    notes = beside("fedbc_table7_mnist_global_E1", trained, last=2).notes
    assert any("best test round of each run; ours is the mean of the last 2 evaluated rounds" in note for note in notes)
    assert not any("best test round" in note for note in beside(TABLE1, epochs(tmp_path / "s", 5)).notes)


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR10 with 60 random pictures of 4x4 instead of its files."""
    x = np.random.default_rng(0).integers(256, size=(60, 3, 4, 4), dtype=np.uint8)
    pictures = Pictures.train_first(x, np.arange(60) % 10, 50)
    monkeypatch.setattr(CIFAR10, "published", Published(Layout("CIFAR10", "cifar10", ()), train_rows=50, test_rows=10))
    monkeypatch.setattr(CIFAR10, "read", lambda self, root: pictures)


@pytest.mark.usefixtures("small_cifar")
def test_a_run_with_finetune_lr_has_the_row_of_fedbc_and_that_of_fedbc_finetune(tmp_path: Path) -> None:
    trainer = FederatedTrainer(
        rounds=1, clients_per_round=2, engine="sequential", finetune_lr=0.5, run=tmp_path, enable_progress_bar=False
    )
    data = CIFAR10(partition=PowerLaw(num_clients=3, classes_per_client=2, exponent=1.4))
    trainer.fit(FedBC(Softmax(48, 10), lr=0.1, local_epochs=5), datamodule=data)
    final = trainer.summary["final"]
    shown = [f"{100 * final[name]:.2f}" for name in ("personal/pooled_acc", "finetuned/pooled_acc")]
    grid = beside("fedbc_table3_cifar10_local_E5", tmp_path)
    assert [row[:3] for row in numbers(grid)] == [
        ("FedBC", "53.83 ± 0.56", shown[0]),
        ("FedBC", "56.83 ± 0.34", shown[1]),
    ]
    assert any("fine-tuning rate 0.5; fine-tuning on train" in note for note in grid.notes)


@pytest.mark.parametrize(
    "module", [paper_vocabulary, paper_comparison, tables, figures_sweeps], ids=lambda module: module.__name__
)
def test_every_setting_that_reports_read_is_an_option_that_a_run_has(module: ModuleType) -> None:
    read = set(re.findall(r'"((?:model|data|trainer)(?:\.[a-z_]+)+)"', inspect.getsource(module)))
    public = [getattr(fedlit, name) for name in fedlit.__all__]
    classes = [base for kind in public if isinstance(kind, type) for base in kind.__mro__]
    options = {name for kind in classes for name in inspect.signature(kind.__init__).parameters}
    trainers = set(inspect.signature(FederatedTrainer.__init__).parameters)
    written = {"data.partition_hash"}  # what a run from Python adds
    for name in read - written:
        owner, *parts = name.split(".")
        assert set(parts[:1]) <= (trainers if owner == "trainer" else options - trainers | {"seed"}), name
        assert set(parts) <= options, name


def test_both_models_of_pfedme_are_compared(tmp_path: Path) -> None:
    net = {"class_path": "fedlit.Softmax", "init_args": {}}
    path = write_run(
        tmp_path,
        {"global/acc": [0.9], "personal/pooled_acc": [0.95]},
        algorithm="PFedMe",
        model={"net": net, "prox": 15.0, "lr": 0.01},
        data="MNIST",
    )
    assert [row[1:] for row in numbers(beside("pfedme_table1", path))] == [
        ("94.18 ± 0.06", "90.00", "−4.18"),
        ("95.62 ± 0.04", "95.00", "−0.62"),
    ]


def expalpha(path: Path, *, rounds: int = 400, metrics: tuple[str, ...] = ("val/acc", "global/acc")) -> Run:
    weights = {"class_path": "fedlit.ExpAlpha", "init_args": {"alpha": 0.2}}
    values = {name: [None] * (rounds - 1) + [0.6] for name in metrics}
    corruption = {"class_path": "fedlit.Imbalance", "init_args": {"ratios": [1.0, 0.1]}}
    return read_run(
        write_run(
            path,
            values,
            model={"local_steps": 20},
            trainer={"weights": weights},
            data="CIFAR10",
            data_options={"corruption": corruption},
            summary={"rounds_to/0.40": 40, "halftime/acc": 0.5},
        )
    )


def test_expalpha_has_rounds_validation_and_test(tmp_path: Path) -> None:
    grid = beside("expalpha_table10_imbalance_std", expalpha(tmp_path).path)
    assert [row[1:3] for row in numbers(grid)] == [
        ("38.00 ± 3.00", "40.00"),
        ("58.24 ± 0.36", "50.00"),
        ("67.19 ± 0.14", "60.00"),
        ("66.86 ± 0.34", "60.00"),
    ]


def test_validation_numbers_are_not_compared_with_test_numbers(tmp_path: Path) -> None:
    grid = beside("expalpha_table10_imbalance_std", expalpha(tmp_path, metrics=("global/acc",)).path)
    assert len(grid.rows) == 1
    assert "FedAvg: acc40_rounds is of validation data, which the runs do not have." in grid.notes
    assert "FedAvg: val/acc was not measured; the table has it as val_accuracy_final." in grid.notes


def test_a_shorter_run_is_not_the_papers(tmp_path: Path) -> None:
    grid = beside("expalpha_table10_imbalance_std", expalpha(tmp_path, rounds=100).path)
    compared = [row[1].text for row in grid.rows]
    assert compared == ["rounds to 40 %"]  # which has no t


def domain_run(path: Path, names: list[str]) -> Path:
    accuracies = [0.7] * len(names)
    clients = {"client": range(len(names)), "group": names, "acc_global": accuracies, "acc_personal": accuracies}
    rounds = {"x": [None] * 399 + [1.0]}
    return write_run(path, rounds, data="Digits", model={"local_steps": 16}, clients=clients)


def test_domains_are_compared_one_by_one_and_in_the_mean(tmp_path: Path) -> None:
    path = domain_run(tmp_path, ["mnist", "svhn", "usps", "synthdigits", "mnistm"])
    grid = beside("expalpha_table3_domain_shift", path)
    assert [(row[1].text, row[3].text, row[4].text) for row in grid.rows] == [
        ("mnist [%]", "95.64", "70.00"),
        ("svhn [%]", "61.33", "70.00"),
        ("usps [%]", "95.38", "70.00"),
        ("synthdigits [%]", "81.82", "70.00"),
        ("mnistm [%]", "75.26", "70.00"),
        ("mean of domains [%]", "81.89", "70.00"),
    ]


def test_a_mean_over_other_domains_is_not_compared(tmp_path: Path) -> None:
    grid = beside("expalpha_table3_domain_shift", domain_run(tmp_path, ["mnistm", "usps"]))
    assert [row[1].text for row in grid.rows] == ["usps [%]", "mnistm [%]"]
    assert any(note.startswith("FedAvg: the mean over domains is not compared") for note in grid.notes)


def test_a_number_over_all_digits_is_not_compared_with_one_over_some(tmp_path: Path) -> None:
    path = write_run(tmp_path, {"val/acc": [0.8]}, data="Digits", data_options={"domains": ["mnist", "usps"]})
    grid = beside("expalpha_table13_alpha_domain", path)
    assert grid.rows == []
    assert any("dataset: the runs have digits of mnist, usps alone" in note for note in grid.notes)


# a user's own table


def own_table(folder: Path, text: str) -> str:
    (folder / "own.csv").write_text(text)
    return str(folder / "own.csv")


def test_a_users_own_table_names_groups_metrics_and_settings(tmp_path: Path) -> None:
    table = own_table(
        tmp_path, "algorithm,metric,model.mu,mean,std\nFedProx,global/acc,0.1,70,1\nFedProx,global/acc,0.5,60,\n"
    )
    runs = [
        write_run(tmp_path / "a", {"global/acc": [0.8]}, algorithm="FedProx", model={"mu": 0.1}),
        write_run(tmp_path / "b", {"global/acc": [0.8]}, algorithm="FedProx", model={"mu": 0.5}),
    ]
    assert numbers(beside(table, *runs)) == [
        ("FedProx mu=0.1", "70.00 ± 1.00", "80.00", "+10.00"),
        ("FedProx mu=0.5", "60.00", "80.00", "+20.00"),
    ]


def test_rows_that_fit_alike_are_named_and_none_is_chosen(tmp_path: Path) -> None:
    table = own_table(tmp_path, "algorithm,metric,source,mean\nFedAvg,global/acc,here,70\nFedAvg,global/acc,there,71\n")
    grid = beside(table, write_run(tmp_path / "a", {"global/acc": [0.8]}))
    assert grid.rows == []
    assert grid.notes[0] == "FedAvg: lines 2, 3 fit alike as global/acc; none is compared."
    assert "Columns that were not compared: source." in grid.notes


def test_a_word_without_a_metric_is_said(tmp_path: Path) -> None:
    grid = beside(
        own_table(tmp_path, "algorithm,metric,mean\nFedAvg,beauty,70\n"), write_run(tmp_path / "a", {"x": [1]})
    )
    assert "FedAvg: fedlit has no metric for 'beauty'." in grid.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm,metric,mean\nFedAvg,global/acc,0.83\n", "no accuracy in it is above 1.*by 100"),
        ("algorithm,metric,mean\nFedAvg,global/acc,high\n", r"own\.csv, line 2: mean and std must be numbers"),
        ("algorithm,metric,mean\nFedAvg\n", r"own\.csv, line 2"),
        ("algorithm,mean\nFedAvg,1\n", "no column metric"),
        ("algorithm,metric,mean\n", "no row below its header"),
        ("", "line 1"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        beside(own_table(tmp_path, text), write_run(tmp_path / "a", {"global/acc": [0.8]}))


def test_an_unknown_table_is_refused_with_all_names() -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{TABLE1}'.*pfedme_table1"):
        read_table("fedbc_table1")


# the tables that ship


@pytest.mark.parametrize("name", shipped_tables())
def test_every_shipped_table_is_understood_to_its_last_column(name: str) -> None:
    table = read_table(name)
    reading = reading_of(table)
    known = {"algorithm", "backbone", "metric", "evaluated", "domain", *reading.columns}
    assert {column for row in table.rows for column in row.fields} <= known
    words = {row.fields.get("evaluated") or row.fields["metric"] for row in table.rows}
    assert words <= set(reading.metrics)


def test_sixteen_tables_ship() -> None:
    assert len(shipped_tables()) == 16
    assert FOLDER.is_relative_to(Path(fedlit.__file__).parent)


@pytest.mark.parametrize(("name", "value"), [("global/acc", 0.5), ("users/acc_var", 0.005), ("rounds_to/0.40", 50.0)])
def test_one_rule_turns_percent_into_our_unit(name: str, value: float) -> None:
    assert in_our_unit(name, 50.0) == value


@pytest.mark.parametrize(
    ("algorithm", "model", "trainer", "name"),
    [
        ("QFedAvg", {}, {}, "q-FedAvg"),
        ("PerFedAvg", {}, {}, "Per-FedAvg"),
        ("PerFedBC", {}, {}, "Per-FedBC"),
        ("FedBC", {}, {"finetune_lr": 0.1}, "FedBC-FineTune"),
        ("FedAvg", {"keep_local": "norm"}, {}, "FedBN"),
        ("FedAvg", {}, {"server_optimizer": "FedAvgM"}, "FedAvgM"),
    ],
)
def test_papers_names_of_our_algorithms(
    tmp_path: Path, algorithm: str, model: dict[str, Any], trainer: dict[str, Any], name: str
) -> None:
    run = read_run(write_run(tmp_path, {"x": [1]}, algorithm=algorithm, model=model, trainer=trainer))
    assert name in names_of(one_group([run]))
