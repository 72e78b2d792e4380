"""Tasks from one end to the other: regression and next tokens train, are measured, kept, resumed, shown and refused."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from rich.console import Console
from torch import Tensor, nn

from fedlit import FedAvg, FedBC, FederatedTrainer, Measure, NextToken, Regression, TensorData
from fedlit.cli.compare import conclude
from fedlit.cli.export import exported
from fedlit.data.partition_plot import draw_partition
from fedlit.errors import ConfigError
from fedlit.report import write_report
from fedlit.report.dashboard.content import content_of
from fedlit.results.folder import RunFolder
from fedlit.results.runs import find_runs
from fedlit.trainer.checkpoint import read_checkpoint
from fedlit.trainer.restore import Restored
from tests.conftest import Call
from tests.problems import kept_rows, largest_difference, weights_of

OWNERS = torch.arange(120) % 5
TOKENS = 7


class Bigram(nn.Module):
    """Scores of the next token at every place."""

    def __init__(self, tokens: int = TOKENS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 4)
        self.out = nn.Linear(4, tokens)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.embedding(x))
        return scores


def numbers(**options: Any) -> TensorData:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(120, 3, generator=draw, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + OWNERS / 2
    return TensorData(x, y, OWNERS, **{"test_fraction": 0.3, "val_fraction": 0.1, **options})


def texts() -> TensorData:
    text = torch.randint(TOKENS, (120, 6), generator=torch.Generator().manual_seed(0))
    following = torch.where(
        torch.rand(120, 6, generator=torch.Generator().manual_seed(1)) < 0.8, (text + 1) % TOKENS, 0
    )
    following[::7, 4:] = -100
    return TensorData(text, following, OWNERS, num_tokens=TOKENS, test_fraction=0.3, val_fraction=0.1)


def net_of(task: str) -> nn.Module:
    torch.manual_seed(3)
    return (nn.Linear(3, 1) if task == "regression" else Bigram()).double()


def fitted(task: str, algorithm: type = FedBC, net: nn.Module | None = None, **trainer: Any) -> FederatedTrainer:
    options = {"rounds": 3, "clients_per_round": 3, "engine": "sequential", "precision": "64-true"} | trainer
    found = FederatedTrainer(**options, initial_weights="net", enable_progress_bar=False)
    client = algorithm(net or net_of(task), task=task, lr=0.1, batch_size=4, local_epochs=1)
    found.fit(client, datamodule=numbers() if task == "regression" else texts())
    return found


TASKS = pytest.mark.parametrize("task", ["regression", "next_token"])


@pytest.mark.usefixtures("program")
@TASKS
def test_engines_agree_on_the_program_that_is_compiled(task: str) -> None:
    judge = fitted(task)
    fast = fitted(task, engine="vectorized", compiled=True)
    assert largest_difference(weights_of(judge), weights_of(fast)) < 1e-10
    assert largest_difference(kept_rows(judge), kept_rows(fast)) < 1e-10


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each task with its folder."""
    root = tmp_path_factory.mktemp("tasks")
    for task in ("regression", "next_token"):
        fitted(task, run=root / task)
    return {task: root / task for task in ("regression", "next_token")}


def predicted(trainer: FederatedTrainer, rows: Tensor) -> tuple[Tensor, Tensor]:
    data = trainer.loop.data
    x, y = data.rows(data.store, rows)
    with torch.no_grad():
        return trainer.loop.client.net(x), y


def test_metrics_of_a_regression_are_those_of_torchmetrics_over_users_and_samples() -> None:
    trainer = fitted("regression")
    final, users = trainer.summary["final"], trainer.users
    everyone = trainer.loop.data.everyone
    output, y = predicted(trainer, trainer.loop.data.global_test)
    functions = {
        "mse": torchmetrics.functional.mean_squared_error,
        "mae": torchmetrics.functional.mean_absolute_error,
        "r2": torchmetrics.functional.r2_score,
    }
    for name, judge in functions.items():
        assert final[f"global/{name}"] == pytest.approx(float(judge(output[:, 0], y)), rel=1e-6)
        own = [judge(*(part.flatten() for part in predicted(trainer, rows))) for rows in everyone.test]
        assert users[f"{name}_global"].tolist() == pytest.approx([float(value) for value in own], rel=1e-6)
        assert final[f"users/{name}_max"] == pytest.approx(max(map(float, own)), rel=1e-6)
    assert final["global/loss"] == pytest.approx(final["global/mse"], rel=1e-12)


def test_metrics_of_next_tokens_are_those_of_torchmetrics_over_users_and_samples() -> None:
    trainer = fitted("next_token")
    final, everyone = trainer.summary["final"], trainer.loop.data.everyone
    judge = torchmetrics.functional.text.perplexity
    pooled = judge(*predicted(trainer, trainer.loop.data.global_test), ignore_index=-100)
    own = [float(judge(*predicted(trainer, rows), ignore_index=-100)) for rows in everyone.test]
    assert final["global/ppl"] == pytest.approx(float(pooled), rel=1e-6)
    assert trainer.users["ppl_global"].tolist() == pytest.approx(own, rel=1e-6)
    assert 0 <= final["global/acc"] <= 1


def test_users_own_models_are_measured_alike() -> None:
    """With everybody in the last round, x_i on own test, from the kept rows."""
    trainer = fitted("regression", clients_per_round=5, rounds=1)
    data, rows = trainer.loop.data, kept_rows(trainer)
    errors = []
    for user, own in enumerate(data.everyone.test):
        x, y = data.rows(data.store, own)
        output = x @ rows["local.weight"][user].T + rows["local.bias"][user]
        errors.append(float((output[:, 0] - y).square().mean()))
    assert trainer.users["mse_local"].tolist() == pytest.approx(errors, rel=1e-10)
    assert trainer.summary["final"]["local/mse"] == pytest.approx(np.mean(errors), rel=1e-10)


def test_the_best_model_of_a_regression_has_the_smallest_validation_error() -> None:
    trainer = fitted("regression")
    assert trainer.summary["best"]["val/mse"] == np.nanmin(trainer.history["val/mse"])
    assert (trainer.loop.best.value, "rounds_to/0.40" in trainer.summary) == (
        np.nanmin(trainer.history["val/mse"]),
        False,
    )


@TASKS
def test_a_stopped_run_goes_on_to_the_same_bits(task: str, tmp_path: Path, folders: dict[str, Path]) -> None:
    fitted(task, run=tmp_path / "run", rounds=2)
    resumed = fitted(task, run=tmp_path / "run", rounds=3, resume=True)
    whole = read_checkpoint(RunFolder(folders[task]).last)
    assert whole is not None
    for name, value in weights_of(resumed).items():
        assert torch.equal(value, whole["state_dict"][f"net.{name}"])


@TASKS
def test_a_run_is_exported(task: str, folders: dict[str, Path]) -> None:
    assert set(exported(Restored.of(folders[task]))) == {"global.pt", "best.pt", "personal.pt"}


@TASKS
def test_the_partition_of_a_run_is_drawn(task: str, folders: dict[str, Path], tmp_path: Path) -> None:
    draw_partition(json.loads(RunFolder(folders[task]).partition.read_text()), tmp_path / "partition.png")
    assert (tmp_path / "partition.png").stat().st_size > 1000


@pytest.mark.usefixtures("figures_are_not_drawn")
@pytest.mark.parametrize(
    ("task", "columns", "figures"),
    [
        (
            "regression",
            ["global/mse", "users/mse_max", "global/mae", "global/r2"],
            ["mse", "mae", "r2", "user_ranks_mse"],
        ),
        ("next_token", ["global/acc", "users/acc_min", "global/ppl"], ["accuracy", "ppl", "user_ranks"]),
    ],
)
def test_a_report_shows_the_measures_of_a_task(
    task: str, columns: list[str], figures: list[str], folders: dict[str, Path], tmp_path: Path
) -> None:
    write_report(find_runs([folders[task]]), tmp_path)
    drawn = {path.stem for path in tmp_path.rglob("*.png")}
    table = json.loads(next(tmp_path.rglob("*.json")).read_text()) if list(tmp_path.rglob("*.json")) else {}
    page = next(tmp_path.rglob("*.html")).read_text()
    assert set(figures) <= drawn
    assert all(name in page or name in json.dumps(table) for name in columns)
    assert "accuracy" not in page.lower() or task == "next_token"


def test_a_dashboard_knows_what_each_run_is_judged_by(folders: dict[str, Path]) -> None:
    index = content_of(find_runs(list(folders.values()))).index
    assert [measure["name"] for measure in index["measures"]] == ["mse", "acc"]
    judged = {run["name"]: run["users"]["measure"]["label"] for run in index["runs"]}
    assert judged == {"regression": "MSE", "next_token": "accuracy"}
    assert index["states"]["ppl_global"] == "perplexity under z"
    order = [metric["name"] for metric in index["metrics"]]
    assert order.index("global/mse") < order.index("users/mse_var") < order.index("comm/up_mb")


def is_near(output: Tensor, y: Tensor) -> Tensor:
    return (output.reshape(y.shape) - y).abs() < 1


class Within(Regression):
    """One measure more."""

    measures = (*Regression.measures, Measure("near", "share within 1", is_near, unit="share"))


def test_a_new_measure_is_said_once_and_is_everywhere(tmp_path: Path) -> None:
    trainer = FederatedTrainer(
        rounds=1, clients_per_round=3, enable_progress_bar=False, run=tmp_path, engine="sequential"
    )
    trainer.fit(FedAvg(nn.Linear(3, 1), task=Within()), datamodule=numbers())
    output, y = predicted(trainer, trainer.loop.data.global_test)
    assert trainer.summary["final"]["global/near"] == pytest.approx(float(is_near(output, y).double().mean()))
    assert {"near_global", "near_local", "near_personal"} <= set(trainer.users)
    (run,) = find_runs([tmp_path])
    assert [measure.label for measure in run.measures] == ["MSE", "MAE", "R²", "share within 1"]
    assert json.loads((tmp_path / "summary.json").read_text())["measures"]["near"]["unit"] == "share"


def wrong(task: str, data: TensorData, net: nn.Module) -> None:
    trainer = FederatedTrainer(rounds=1, clients_per_round=2, enable_progress_bar=False)
    trainer.fit(FedAvg(net, task=task), datamodule=data)


LABELLED = TensorData(torch.randn(120, 3), OWNERS, OWNERS)


@pytest.mark.parametrize(
    ("task", "data", "net", "message"),
    [
        ("classification", numbers(), nn.Linear(3, 5), r"y of TensorData is float64.*Set model\.task to 'regression'"),
        ("regression", LABELLED, nn.Linear(3, 1), r"y of TensorData is int64.*y\.float\(\)"),
        (
            "regression",
            numbers(),
            nn.Linear(3, 2),
            r"\(Linear\) gives outputs of shape \(2,\).*Give the net 1 output\.",
        ),
        ("classification", texts(), Bigram(), r"shape \(6,\) in each row.*model\.task to 'next_token'"),
        ("next_token", numbers(), nn.Linear(3, 5), r"is float64, but model\.task is 'next_token'"),
        (
            "next_token",
            texts(),
            nn.Sequential(Bigram(), nn.Flatten()),
            r"each of 7 tokens at every place: \(6, at least 7\)",
        ),
        ("next_token", texts(), Bigram(5), r"Token ids go from 0 to 6: give the net's embedding at least 7 entries"),
        ("regresion", numbers(), nn.Linear(3, 1), r"model\.task is 'regresion'\. Did you mean 'regression'"),
    ],
)
def test_a_task_that_does_not_fit_is_refused_with_the_fix(
    task: str, data: TensorData, net: nn.Module, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong(task, data, net)


def test_shakespeares_form_one_next_token_per_row_is_a_next_token_task_too() -> None:
    text = torch.randint(TOKENS, (60, 5))
    data = TensorData(text, text[:, 0], OWNERS[:60], num_classes=TOKENS)
    trainer = FederatedTrainer(rounds=1, clients_per_round=2, enable_progress_bar=False, engine="sequential")
    net = nn.Sequential(nn.Embedding(TOKENS, 4), nn.Flatten(), nn.Linear(20, TOKENS))
    trainer.fit(FedAvg(net, task=NextToken()), datamodule=data)
    assert trainer.summary["final"]["global/ppl"] > 1


OWN = """
import torch
import fedlit


class Prices(fedlit.TensorData):
    def __init__(self, *, seed: int = 0) -> None:
        x, owner = torch.randn(80, 3, generator=torch.Generator().manual_seed(0)), torch.arange(80) % 4
        super().__init__(x, x.sum(1) + owner, owner, seed=seed)
"""


@pytest.mark.usefixtures("figures_are_not_drawn")
def test_the_command_line_compares_shows_exports_and_evaluates_a_regression(
    call: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "own_prices.py").write_text(OWN)
    net = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 3, "out_features": 1}}
    config = {
        "trainer": {"rounds": 2, "clients_per_round": 2, "engine": "sequential", "enable_progress_bar": False},
        "model": {"class_path": "FedAvg", "init_args": {"net": net, "task": "regression", "lr": 0.05}},
        "data": {"class_path": "own_prices.Prices"},
    }
    (workplace / "prices.yaml").write_text(json.dumps(config))
    monkeypatch.syspath_prepend(workplace)
    assert call("fit --config ./prices.yaml --run run --wandb disabled").code == 0
    evaluated = call("evaluate run --json now.json")
    assert evaluated.code == 0
    assert "global MSE" in evaluated.out
    final = json.loads(Path("run/summary.json").read_text())["final"]
    now = json.loads(Path("now.json").read_text())
    assert {name: now[name] for name in now if name in final} == pytest.approx(
        {name: final[name] for name in now}, rel=1e-5
    )
    assert call("export run").code == 0
    assert call("data --config ./prices.yaml").code == 0
    conclude({"prices": find_runs([workplace / "run"])}, workplace / "all", Console(file=io.StringIO()))
    assert Path("all/dashboard.html").stat().st_size > 10_000
    assert Path("all/report/index.html").exists() or list(Path("all/report").rglob("*.html"))
