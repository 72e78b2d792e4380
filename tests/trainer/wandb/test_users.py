"""W&B from Python: the users' records reach the W&B run among the loggers, and no other logger."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedlit import FedBC, FederatedTrainer, Softmax, Synthetic, TensorData
from fedlit.trainer.wandb import WandbRun, WandbUsers
from fedlit.trainer.wandb.users import rows_of
from tests.trainer.wandb.offline import Offline, offline_runs


def fit(data: Any = None, **options: Any) -> FederatedTrainer:
    """Three rounds of two of four clients."""
    trainer = FederatedTrainer(
        rounds=3, clients_per_round=2, engine="sequential", enable_progress_bar=False, callbacks=WandbUsers(), **options
    )
    made = Synthetic(num_clients=4, num_features=8, num_classes=3, size_sigma=0.5, size_min=10)
    trainer.fit(FedBC(Softmax(8, 3), lr=0.1), datamodule=data or made)
    return trainer


def finished(run: WandbRun, folder: Path) -> Offline:
    run.finish(0)
    wandb.teardown()
    (found,) = offline_runs(folder)
    return found


def test_users_reach_wandb_and_no_other_logger(workplace: Path) -> None:
    run, table, board = WandbRun(offline=True, save_dir="."), CSVLogger("csv"), TensorBoardLogger("board")
    trainer = fit(logger=[table, run, board])
    offline = finished(run, workplace)
    assert len(offline.table("users/table")["data"]) == 4
    assert len(offline.logged("users/acc_hist")) == 4
    with Path(table.log_dir, "metrics.csv").open(newline="") as file:
        assert set(next(csv.reader(file))) == {*trainer.loop.history.columns, "step"}
    tags = EventAccumulator(board.log_dir).Reload().Tags()
    assert set(tags["scalars"]) == set(trainer.loop.history.columns)
    assert (tags["images"], tags["histograms"]) == ([], [])


def test_without_a_wandb_run_no_wandb_run_is_started(workplace: Path) -> None:
    fit(logger=CSVLogger("csv"))
    assert wandb.run is None
    assert offline_runs(workplace) == []


def test_a_run_without_the_users_own_tests_has_a_table_and_no_histogram(workplace: Path) -> None:
    torch.manual_seed(0)
    data = TensorData(torch.randn(40, 8), torch.randint(3, (40,)), torch.arange(40) % 4, test_fraction=0.0)
    run = WandbRun(offline=True, save_dir=".")
    fit(data, logger=run)
    offline = finished(run, workplace)
    assert offline.logged("users/acc_hist") == []
    assert [row[6] for row in offline.table("users/table")["data"]] == [None] * 4


def test_what_is_not_a_number_is_an_empty_cell() -> None:
    records = {"client": [0, 1], "group": ["", "b"], "dual": torch.tensor([torch.nan, 0.5]).numpy()}
    assert rows_of(records) == [[0, "", None], [1, "b", 0.5]]


@pytest.mark.parametrize(("config", "expected"), [(None, {"lr": 0.1}), ({"model.lr": 0.1}, {"model.lr": 0.1})])
def test_saved_hyperparameters_are_logged_unless_the_config_is_given(
    workplace: Path, config: dict[str, float] | None, expected: dict[str, float]
) -> None:
    run = WandbRun(offline=True, save_dir=".", config=config)
    run.log_hyperparams({"lr": 0.1})
    assert dict(run.experiment.config) == expected
    run.finish(0)


def test_the_first_error_of_wandb_is_told_and_nothing_more_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    run, sent = WandbRun(experiment=wandb.init(mode="disabled")), []

    def fails(own: Any) -> None:
        sent.append("tried")
        raise OSError(28, "No space left on device")

    run.attempt(fails)
    run.attempt(fails)
    assert sent == ["tried"]
    (line,) = [message for message in caplog.messages if "W&B" in message]
    assert "No space left on device" in line
    run.finish(0)
