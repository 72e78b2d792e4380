"""Metrics of torchmetrics: which can be measures, equal to torchmetrics on each user's rows, shown, refused."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit import Classification, Client, FedAvg, FedBC, FederatedTrainer, Softmax, Synthetic, TensorData
from fedlit.cli.evaluate import measured
from fedlit.config.parts import parts_of
from fedlit.errors import ConfigError
from fedlit.metrics.from_torchmetrics import find_class
from fedlit.report import write_report
from fedlit.report.dashboard.content import content_of
from fedlit.results.runs import find_runs
from fedlit.trainer.restore import Restored
from tests.metrics.torchmetrics_table import PAGE, classes, page, takes_output_and_target
from tests.problems import CLASSES, FEATURES, kept_rows, run, tiny_net

TEN = [
    *("AUROC", "AveragePrecision", "F1Score", "CalibrationError", "MatthewsCorrCoef", "CohenKappa"),
    *("JaccardIndex", "Specificity", "HingeLoss", "ExactMatch"),
]
OWN = {name: name.lower() for name in TEN}


def test_the_page_has_every_class_that_takes_predictions_and_targets() -> None:
    """Found in the packages of the installed torchmetrics, and tried."""
    kinds = [find_class(f"torchmetrics.classification.{name}") for name in torchmetrics.classification.__all__]
    assert sum(map(takes_output_and_target, kinds)) > 90
    assert len(classes()) > 110
    if torchmetrics.__version__ == "1.9.0":
        assert PAGE.read_text() == page()
    assert page().count("| yes |") > 47


def skewed() -> TensorData:
    """Four users with labels at random; the last has one class alone, and the one before it has no test rows."""
    rng = np.random.default_rng(7)
    owner = torch.from_numpy(np.repeat(np.arange(4), (60, 40, 1, 40)))
    x = torch.from_numpy(rng.normal(size=(len(owner), FEATURES)))
    y = torch.from_numpy(rng.integers(CLASSES, size=len(owner)))
    y[owner == 3] = 1
    return TensorData(x, y, owner, num_classes=CLASSES, test_fraction=0.4)


def fitted(client: Client | None = None, **trainer: Any) -> FederatedTrainer:
    client = client or FedBC(tiny_net(), lr=0.1, batch_size=4, metrics=TEN)
    return run(client, skewed(), **({"rounds": 2} | trainer))


@pytest.fixture(scope="module")
def trained() -> FederatedTrainer:
    return fitted()


def judge(name: str, probabilities: Tensor, y: Tensor) -> float:
    """What torchmetrics says of these rows alone; NaN for a single class where it warns, and without rows."""
    metric = getattr(torchmetrics, name)(task="multiclass", num_classes=CLASSES)
    if len(y) == 0:
        return float("nan")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = float(metric(probabilities, y))
    return float("nan") if caught and len(y.unique()) == 1 else value


def predicted(
    trainer: FederatedTrainer, rows: Tensor, weights: dict[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    data = trainer.loop.data
    x, y = data.rows(data.store, rows)
    net = Softmax(FEATURES, CLASSES).double()
    net.load_state_dict(weights or trainer.loop.server.params)
    with torch.no_grad():
        return net(x).softmax(1), y


@pytest.mark.parametrize("name", TEN)
def test_each_users_value_is_torchmetrics_on_its_rows(name: str, trained: FederatedTrainer) -> None:
    tests, global_test = trained.loop.data.everyone.test, trained.loop.data.global_test
    own = [judge(name, *predicted(trained, rows)) for rows in tests]
    assert trained.users[f"{OWN[name]}_global"].tolist() == pytest.approx(own, abs=1e-6, nan_ok=True)
    final = trained.summary["final"]
    assert final[f"global/{OWN[name]}"] == pytest.approx(judge(name, *predicted(trained, global_test)), abs=1e-6)
    assert final[f"global/user_{OWN[name]}"] == pytest.approx(np.nanmean(own), abs=1e-6)


@pytest.mark.parametrize("name", TEN)
def test_users_own_models_are_measured_on_their_own_predictions(name: str) -> None:
    """Also pooled: all users' predictions together, each from its own model."""
    trainer = fitted(clients_per_round=4, rounds=1)
    rows, tests = kept_rows(trainer), trainer.loop.data.everyone.test
    weights = [{key: rows[f"local.{key}"][user] for key in trainer.loop.server.params} for user in range(4)]
    parts = [predicted(trainer, tests[user], weights[user]) for user in range(4)]
    own = [judge(name, *part) for part in parts]
    assert trainer.users[f"{OWN[name]}_local"].tolist() == pytest.approx(own, abs=1e-6, nan_ok=True)
    together = judge(name, *(torch.cat(part) for part in zip(*parts, strict=True)))
    assert trainer.summary["final"][f"local/pooled_{OWN[name]}"] == pytest.approx(together, abs=1e-6)


def test_users_without_a_value_are_counted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"), warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(FedAvg(tiny_net(), lr=0.1, batch_size=4, metrics=["AUROC", "F1Score"]))
    told = [message for message in caplog.messages if message.startswith("AUROC")]
    assert len(told) == 1
    assert "has no value for 1 of 3 users, who count in no mean" in told[0]
    assert "all targets are of one class (No positive samples in targets" in told[0]
    assert not any(message.startswith("F1") for message in caplog.messages)


def test_other_measures_have_the_same_bits_beside_them() -> None:
    with_metrics, without = fitted(), fitted(FedBC(tiny_net(), lr=0.1, batch_size=4))
    for alone, beside in zip(without.loop.history.rows, with_metrics.loop.history.rows, strict=True):
        same = [name for name in alone if "time/" not in name and name != "comm/eval_mb"]  # their scores are sent too
        assert {name: beside[name] for name in same} == {name: alone[name] for name in same}


@pytest.mark.parametrize("compiled", [False, True])
def test_the_vectorized_engine_measures_the_same(compiled: bool, trained: FederatedTrainer) -> None:
    fast = fitted(engine="vectorized", compiled=compiled)
    for name in OWN.values():
        for metric in (f"global/{name}", f"personal/pooled_{name}", f"users/{name}_var"):
            assert fast.summary["final"][metric] == pytest.approx(trained.summary["final"][metric], abs=1e-6)


def test_an_object_counts_as_it_is_and_is_left_alone() -> None:
    metric = torchmetrics.F1Score(task="multiclass", num_classes=CLASSES, average="macro")
    found = fitted(FedAvg(tiny_net(), lr=0.1, metrics=[metric]))
    probabilities, y = predicted(found, found.loop.data.global_test)
    assert found.summary["final"]["global/f1score"] == pytest.approx(float(metric(probabilities, y)), abs=1e-6)
    assert metric._update_count == 1


def test_names_of_ones_own() -> None:
    weighted = {"class_path": "torchmetrics.AUROC", "init_args": {"average": "weighted"}}
    found = fitted(FedAvg(tiny_net(), lr=0.1, metrics={"macro": "AUROC", "weighted": weighted}))
    assert {"global/macro", "global/weighted"} <= set(found.summary["final"])


def test_two_classes_give_a_binary_metric_the_probability_of_the_second() -> None:
    x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0)).double()
    y, owner = (x[:, 0] + x[:, 1] > 0).long(), torch.arange(80) % 4
    binary = {"class_path": "AUROC", "init_args": {"task": "binary"}}
    torch.manual_seed(0)
    client = FedAvg(nn.Linear(3, 2).double(), lr=0.1, metrics=[binary, "BinaryF1Score"])
    trainer = run(client, TensorData(x, y, owner, test_fraction=0.5), rounds=1)
    rows = trainer.loop.data.global_test
    with torch.no_grad():
        second = client.net(x[rows]).softmax(1)[:, 1]
    final = trainer.summary["final"]
    judged = torchmetrics.functional.classification.binary_auroc(second, y[rows])
    assert final["global/auroc"] == pytest.approx(float(judged), abs=1e-6)
    judged = torchmetrics.functional.classification.binary_f1_score(second, y[rows])
    assert final["global/f1score"] == pytest.approx(float(judged), abs=1e-6)


def test_several_targets_are_averaged() -> None:
    x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0)).double()
    y, owner = torch.stack([x[:, 0], x[:, 1] * 2], 1), torch.arange(80) % 4
    torch.manual_seed(0)
    client = FedAvg(nn.Linear(3, 2).double(), task="regression", lr=0.01, metrics=["PearsonCorrCoef", "R2Score"])
    trainer = run(client, TensorData(x, y, owner, test_fraction=0.5), rounds=1)
    rows = trainer.loop.data.global_test
    with torch.no_grad():
        output = client.net(x[rows])
    judged = torchmetrics.functional.pearson_corrcoef(output, y[rows]).mean()
    assert trainer.summary["final"]["global/pearsoncorrcoef"] == pytest.approx(float(judged), abs=1e-6)
    assert trainer.summary["final"]["global/r2score"] == pytest.approx(trainer.summary["final"]["global/r2"], abs=1e-6)


class Own(Metric):
    """The share of rows that are right, as a metric of a user's own."""

    higher_is_better = True

    def __init__(self) -> None:
        super().__init__()
        self.add_state("hits", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("rows", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.hits += (preds.argmax(1) == target).sum()
        self.rows += len(target)

    def compute(self) -> Tensor:
        return self.hits / self.rows


def test_a_metric_of_ones_own_class() -> None:
    final = fitted(FedAvg(tiny_net(), lr=0.1, metrics=[Own()])).summary["final"]
    assert final["global/own"] == pytest.approx(final["global/acc"], abs=1e-6)


class Raw(Classification):
    """A task whose predictions are the outputs as they are."""

    name = "raw"
    predicts = "own"

    def predicted(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return output, y


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (["F1Scor"], "no metric 'F1Scor'. Did you mean 'F1Score'"),
        (
            ["torchmetrics.classification.AUROCC"],
            "torchmetrics.classification has no metric 'AUROCC'. Did you mean 'AUROC'",
        ),
        (["my.own.Thing"], "my.own.Thing cannot be imported (No module named 'my')"),
        (["torch.nn.Linear"], "torch.nn has no metric 'Linear'"),
        ([{"class_path": "F1Score", "init_args": {"averge": "macro"}}], "Unexpected keyword arguments: `averge`"),
        ([{"class_path": "F1Score", "init_args": {"average": "most"}}], "model.metrics: F1Score cannot be built with"),
        ([{"class_path": "F1Score", "int_args": {}}], "has the entry {'class_path'"),
        (["AUROC", "AUROC"], "two measures of the name 'auroc'"),
        ({"acc": "AUROC"}, "two measures of the name 'acc'"),
        ({"loss": "AUROC"}, "a name of letters and digits that no other metric has"),
        (["ROC"], "ROC is not a score"),
        ("AUROC", "Give a list, such as [F1Score, AUROC]"),
        ([3], "has the entry 3"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_paragraph(metrics: Any, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FedAvg(tiny_net(), metrics=metrics)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("metrics", "task", "told"),
    [
        (["MeanSquaredError"], None, "cannot take what it gets here: probabilities of shape"),
        (["LogAUC"], None, "LogAUC gives 3 numbers, not one"),
        ([torchmetrics.AUROC(task="multiclass", num_classes=7)], None, "cannot take what it gets here"),
        (["MulticlassAUROC"], Raw(), "needs probabilities, but of this task it gets the net's outputs as they are"),
    ],
)
def test_what_cannot_be_computed_is_refused_before_a_run(metrics: Any, task: Any, told: str, tmp_path: Path) -> None:
    client = FedAvg(tiny_net(), metrics=metrics, task=task)
    with pytest.raises(ConfigError) as refused:
        run(client, skewed(), run=tmp_path / "run")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds with metrics of both directions."""
    place = tmp_path_factory.mktemp("metrics") / "run"
    shown(place, 3)
    return place


def shown(folder: Path, rounds: int, **options: Any) -> FederatedTrainer:
    client = FedBC(tiny_net(), lr=0.1, batch_size=4, metrics=["F1Score", "CalibrationError"])
    return fitted(client, rounds=rounds, run=folder, finetune_lr=0.1, **options)


@pytest.mark.usefixtures("figures_are_not_drawn")
def test_report_and_dashboard_show_them_with_direction_and_unit(folder: Path, tmp_path: Path) -> None:
    runs = find_runs([folder])
    write_report(runs, tmp_path)
    drawn = {path.stem for path in tmp_path.rglob("*.png")}
    assert {"f1score", "calibrationerror", "user_ranks_f1score"} & drawn
    metrics = {metric["name"]: metric for metric in content_of(runs).index["metrics"]}
    assert (metrics["global/f1score"]["best"], metrics["global/f1score"]["unit"]) == ("max", "share")
    assert metrics["users/calibrationerror_p90"]["best"] == "min"
    assert "finetuned/pooled_f1score" in metrics
    words = json.loads((folder / "summary.json").read_text())["measures"]
    assert words["calibrationerror"] == {"label": "calibration error", "unit": "share", "best": "min"}


def test_a_stopped_run_goes_on_to_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    shown(tmp_path / "run", 2)
    resumed = shown(tmp_path / "run", 3, resume=True)
    whole = find_runs([folder])[0].rows[-1]
    assert {name: value for name, value in resumed.loop.history.rows[-1].items() if "time/" not in name} == {
        name: value for name, value in whole.items() if "time/" not in name
    }


def test_a_run_is_measured_again_with_its_metrics(tmp_path: Path) -> None:
    client = FedAvg(Softmax(), metrics=["F1Score", {"class_path": "AUROC", "init_args": {"average": "weighted"}}])
    FederatedTrainer(rounds=1, run=tmp_path, clients_per_round=2, engine="sequential", enable_progress_bar=False).fit(
        client, datamodule=Synthetic(num_clients=4)
    )
    restored = Restored.of(tmp_path)
    values = measured(restored, parts_of(restored), users=True)
    row = find_runs([tmp_path])[0].rows[-1]
    assert [values[f"global/{name}"] for name in ("f1score", "auroc")] == [row["global/f1score"], row["global/auroc"]]
