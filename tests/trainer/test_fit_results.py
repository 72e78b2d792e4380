"""What a trainer has after `fit`, and what Lightning's other verbs do: through real runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from fedlit import FedAvg, FedBC, FederatedTrainer, PerFedAvg, Softmax, Synthetic
from fedlit.cli.main import main
from fedlit.errors import ConfigError
from fedlit.results.runs import read_run
from fedlit.trainer.fit_results import Columns


def data(seed: int = 1) -> Synthetic:
    return Synthetic(num_clients=6, seed=seed)


def fitted(client: Any = None, **options: Any) -> FederatedTrainer:
    trainer = FederatedTrainer(rounds=2, clients_per_round=3, engine="sequential", enable_progress_bar=False, **options)
    trainer.fit(client or FedBC(Softmax(60, 10)), datamodule=data())
    return trainer


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> FederatedTrainer:
    return fitted(run=tmp_path_factory.mktemp("runs") / "one")


def test_summary_prints_as_the_table_and_is_a_dict(trainer: FederatedTrainer) -> None:
    printed = str(trainer.summary)
    assert "global accuracy" in printed
    assert f"{100 * trainer.summary['final']['global/acc']:.2f} %" in printed
    assert json.loads(json.dumps(trainer.summary))["rounds"] == 2


def test_history_has_the_columns_of_the_metrics_file(trainer: FederatedTrainer) -> None:
    assert trainer.folder is not None
    run = read_run(trainer.folder.path)
    assert trainer.history["round"].tolist() == run.rounds
    assert trainer.history["global/acc"].tolist() == run.series("global/acc")[1]
    assert np.isnan(trainer.history["train/loss"][0])  # nobody has trained before round 1


def test_users_are_the_records_of_the_last_evaluated_round(trainer: FederatedTrainer) -> None:
    assert trainer.folder is not None
    table = read_run(trainer.folder.path).clients.to_pydict()
    last = [acc for acc, round in zip(table["acc_personal"], table["round"], strict=True) if round == 2]
    assert trainer.users["acc_personal"].tolist() == last


def test_unknown_column_is_named_with_the_nearest(trainer: FederatedTrainer) -> None:
    with pytest.raises(KeyError, match="'global/ac' was not measured. Did you mean 'global/acc'?"):
        trainer.history["global/ac"]


def test_columns_become_a_frame_where_pandas_is_installed() -> None:
    columns = Columns({"round": [0, 1]})
    if "pandas" in sys.modules or subprocess.run([sys.executable, "-c", "import pandas"]).returncode == 0:
        assert columns.to_pandas()["round"].tolist() == [0, 1]
    else:
        with pytest.raises(ConfigError, match="pip install pandas"):
            columns.to_pandas()


@pytest.mark.parametrize("client", [FedBC(Softmax(60, 10)), PerFedAvg(Softmax(60, 10), adapt_lr=0.1)])
def test_personal_model_scores_what_the_records_say(client: Any) -> None:
    trainer = fitted(client)
    own = trainer.loop.data
    for user in range(own.num_clients):
        x, y = own.rows(own.store, own.everyone.test[user])
        hits = (trainer.personal_model(user)(x).argmax(1) == y).double()
        assert float(hits.mean()) == pytest.approx(trainer.users["acc_personal"][user])


def test_personal_model_is_a_copy(trainer: FederatedTrainer) -> None:
    net = trainer.personal_model(0)
    with torch.no_grad():
        next(net.parameters()).zero_()
    assert next(trainer.personal_model(0).parameters()).abs().sum() > 0


def test_personal_model_of_nobody_is_refused(trainer: FederatedTrainer) -> None:
    with pytest.raises(ConfigError, match="there are 6 clients, counted from 0"):
        trainer.personal_model(6)


@pytest.mark.parametrize("name", ["summary", "history", "users"])
def test_nothing_is_there_before_fit(name: str) -> None:
    with pytest.raises(ConfigError, match=f"trainer.{name} is empty before fit"):
        getattr(FederatedTrainer(rounds=1), name)


def test_test_and_validate_measure_the_net_as_it_is(trainer: FederatedTrainer) -> None:
    final = trainer.summary["final"]
    assert trainer.test()[0]["global/acc"] == final["global/acc"]
    assert trainer.validate()[0] == {name: final[name] for name in ("val/acc", "val/loss")}


def test_test_takes_another_client_and_other_data() -> None:
    fresh = FederatedTrainer(rounds=1, enable_progress_bar=False)
    found = fresh.test(FedAvg(Softmax(60, 10)), data(seed=2))[0]
    assert 0 <= found["global/acc"] <= 1
    with pytest.raises(ConfigError, match="give both, or call fit first"):
        fresh.test()


def test_predict_says_what_to_call(trainer: FederatedTrainer) -> None:
    with pytest.raises(ConfigError, match=r"trainer.personal_model\(3\)\(x\)"):
        trainer.predict()


def test_lightnings_trainer_is_told_which_one_to_use() -> None:
    plain = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", max_epochs=1)
    with pytest.raises(ConfigError, match="Use fedlit's: fedlit.FederatedTrainer"):
        plain.fit(FedBC(Softmax(60, 10)), data())


def test_client_of_a_checkpoint_has_its_model(trainer: FederatedTrainer) -> None:
    assert trainer.folder is not None
    loaded = FedBC.load_from_checkpoint(trainer.folder.last, net=Softmax(60, 10))
    assert torch.equal(next(loaded.net.parameters()), next(trainer.loop.client.net.parameters()))
    with pytest.raises(ConfigError, match="needs the net"):
        FedBC.load_from_checkpoint(trainer.folder.last)


# ---- fedlit evaluate -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pfedme"
    options = ["--data.num_clients", "6", "--trainer.clients_per_round", "3", "--trainer.engine", "sequential"]
    fit = ["fit", "--config", "synthetic_pfedme.yaml", "--trainer.rounds", "2", *options, "--run", str(folder)]
    with pytest.raises(SystemExit) as ended:
        main(fit)
    assert ended.value.code == 0
    return folder


def evaluate(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_evaluate_finds_the_numbers_of_the_run(run: Path, tmp_path: Path) -> None:
    assert evaluate(run, "--json", tmp_path / "found.json") == 0
    found, final = json.loads((tmp_path / "found.json").read_text()), read_run(run).summary["final"]
    assert found == {name: pytest.approx(final[name]) for name in found}
    assert {"global/acc", "local/acc", "personal/acc", "users/acc_min"} <= set(found)


def test_evaluate_on_other_data_measures_the_global_model_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(run, "--data.seed", 7, "--json", tmp_path / "found.json") == 0
    assert "personal/acc" not in json.loads((tmp_path / "found.json").read_text())
    assert "These are not the users of the run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [(["--data.sede", "7"], "Did you mean 'data.seed'?"), (["--data.num_classes", "20"], "20 classes")],
)
def test_evaluate_refuses_what_fit_would(
    run: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(run, *more) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_evaluate_of_a_run_from_python_finds_its_numbers(trainer: FederatedTrainer, tmp_path: Path) -> None:
    assert trainer.folder is not None
    assert evaluate(trainer.folder.path, "--json", tmp_path / "found.json") == 0
    found, final = json.loads((tmp_path / "found.json").read_text()), trainer.summary["final"]
    assert found == {name: pytest.approx(final[name]) for name in found}
    assert {"global/acc", "local/acc"} <= set(found)


def test_evaluate_of_a_run_from_python_takes_other_data(
    trainer: FederatedTrainer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trainer.folder is not None
    assert evaluate(trainer.folder.path, "--data.seed", 7) == 0
    assert "These are not the users of the run" in capsys.readouterr().out


class OwnNet(torch.nn.Linear):
    """A class that a command can import, of a net whose arguments nobody has written down."""


def of_the_script(kind: type) -> type:
    """As if the script itself had defined it."""
    return type(kind.__name__, (kind,), {"__module__": "__main__"})


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (of_the_script(OwnNet)(60, 10), "its model.net is __main__.OwnNet, a class of the script itself"),
        (OwnNet(60, 10), "its parts cannot be built from config.yaml"),
    ],
    ids=["of the script", "arguments unknown"],
)
def test_evaluate_of_parts_that_only_python_can_build_says_what_to_do(
    net: torch.nn.Module, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(FedBC(net), run=tmp_path / "run")
    assert evaluate(tmp_path / "run") == 2
    words = " ".join(capsys.readouterr().err.split())
    assert said in words
    assert "resume=True" in words
    resumed = fitted(FedBC(net), run=tmp_path / "run", resume=True)
    assert resumed.test()[0]["global/acc"] == resumed.summary["final"]["global/acc"]
    assert resumed.personal_model(0)(torch.zeros(1, 60)).shape == (1, 10)


def test_evaluate_refuses_a_net_that_is_built_but_is_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = TwoLayers()
    net.activation = torch.nn.Tanh()
    fitted(FedBC(net), run=tmp_path / "run")
    assert evaluate(tmp_path / "run") == 2
    assert "it differs in net.behaviour, net.structure" in " ".join(capsys.readouterr().err.split())


class TwoLayers(torch.nn.Module):
    """A net whose activation is not among its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(60, 8), torch.nn.Linear(8, 10)
        self.activation: torch.nn.Module = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.second(self.activation(self.first(x)))
        return logits
