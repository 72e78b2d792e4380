"""Lightning's protected names, each with its shape: a new Lightning fails here first.

`tests/test_private_names.py` lists who uses them.
"""

import inspect
import sys
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.strategies import DDPStrategy, launchers
from pytorch_lightning.strategies.launchers import subprocess_script
from pytorch_lightning.trainer import call
from pytorch_lightning.utilities.exceptions import SIGTERMException

from fedlit import FedAvg, FederatedTrainer, Softmax
from tests.problems import run, tiny_net

OVERRIDDEN = {
    "advance",
    "done",
    "load_state_dict",
    "on_advance_end",
    "on_advance_start",
    "on_run_start",
    "reset",
    "setup_data",
    "state_dict",
    "teardown",
}
"""What FederatedLoop replaces of Lightning's fit loop."""


def stock_trainer(**options: Any) -> Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", devices=1, max_epochs=1, enable_model_summary=False, **(quiet | options))


@pytest.fixture
def stock() -> Trainer:
    """A trainer of Lightning's own that holds a module, as in the middle of a run."""
    trainer = stock_trainer()
    trainer.strategy._lightning_module = LightningModule()
    return trainer


# ---- what is replaced ------------------------------------------------------------------------------------------------


def test_launchers_have_the_members_that_the_strategy_uses() -> None:
    assert hasattr(launchers, "_MultiProcessingLauncher")
    assert hasattr(launchers, "_SubprocessScriptLauncher")
    assert subprocess_script._basic_subprocess_cmd()[0] == sys.executable  # type: ignore[attr-defined]  # not exported
    assert hasattr(DDPStrategy, "_configure_launcher")


def test_loop_replaces_exactly_the_members_of_the_list() -> None:
    """A new attribute of Lightning's loop with the name of one of ours would be replaced without notice."""
    ours = FederatedTrainer(enable_progress_bar=False).loop
    theirs = _FitLoop(stock_trainer(), max_epochs=1)
    replaced = set(vars(type(ours))) | set(vars(ours)) - set(vars(theirs))
    assert {name for name in replaced & set(dir(theirs)) if not name.startswith("__")} == OVERRIDDEN


# ---- their shapes ----------------------------------------------------------------------------------------------------


def test_fit_loop_is_made_from_a_trainer_and_a_number_of_epochs() -> None:
    assert list(inspect.signature(_FitLoop.__init__).parameters) == ["self", "trainer", "min_epochs", "max_epochs"]


def test_fit_loop_runs_its_members_in_this_order(stock: Trainer) -> None:
    order = []

    class Recording(_FitLoop):
        done = property(lambda self: order.count("advance") == 2)

    def record(name: str) -> None:
        setattr(Recording, name, lambda self: order.append(name))

    for name in ("setup_data", "reset", "on_run_start", "on_advance_start", "advance", "on_advance_end", "on_run_end"):
        record(name)
    Recording(stock, max_epochs=2).run()
    once = ["on_advance_start", "advance", "on_advance_end"]
    assert order == ["setup_data", "reset", "on_run_start", *once, *once, "on_run_end"]


def test_callback_hooks_are_called_with_trainer_module_and_arguments(stock: Trainer) -> None:
    class Recording(Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            self.args = args

    callback = Recording()
    stock.callbacks = [callback]
    call._call_callback_hooks(stock, "on_train_batch_start", None, 0)
    assert callback.args == (stock, stock.lightning_module, None, 0)


def test_module_hooks_are_called_by_name(stock: Trainer) -> None:
    stock.lightning_module.on_train_epoch_start = lambda: "called"  # type: ignore[method-assign]
    assert call._call_lightning_module_hook(stock, "on_train_epoch_start") == "called"


def test_callbacks_read_the_metrics_of_the_logger_connector(stock: Trainer) -> None:
    stock._logger_connector._callback_metrics.update({"val/acc": torch.tensor(0.5)})
    assert stock.callback_metrics == {"val/acc": torch.tensor(0.5)}


def test_logger_connector_gives_loggers_the_step_it_is_told() -> None:
    logged = []
    logger = DummyLogger()
    logger.log_metrics = lambda metrics, step: logged.append((metrics, step))  # type: ignore[method-assign]
    stock_trainer(logger=logger)._logger_connector.log_metrics({"a": 1.0}, step=7)
    assert logged == [({"a": 1.0}, 7)]


def test_batches_that_stepped_is_a_counter_that_starts_at_zero(stock: Trainer) -> None:
    assert stock.fit_loop.epoch_loop._batches_that_stepped == 0


def test_global_step_of_manual_optimisation_is_the_completed_steps(stock: Trainer) -> None:
    stock.lightning_module.automatic_optimization = False
    stock.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed += 3
    assert stock.global_step == 3


@pytest.mark.parametrize("counter", ["ready", "started", "processed", "completed"])
def test_epoch_progress_counts(stock: Trainer, counter: str) -> None:
    progress = stock.fit_loop.epoch_progress
    getattr(progress, f"increment_{counter}")()
    assert (getattr(progress.total, counter), getattr(progress.current, counter)) == (1, 1)


def test_current_epoch_is_the_completed_epochs(stock: Trainer) -> None:
    stock.fit_loop.epoch_progress.current.completed = 4
    assert stock.current_epoch == 4


@pytest.mark.parametrize("stage", ["training", "validating"])
def test_stage_can_be_set(stock: Trainer, stage: str) -> None:
    setattr(stock, stage, True)
    assert getattr(stock, stage) is True


def test_sigterm_is_noted_by_the_trainer_and_raised_at_an_epochs_end(stock: Trainer) -> None:
    assert stock.received_sigterm is False
    assert "raise SIGTERMException" in inspect.getsource(_FitLoop.on_advance_end)
    assert issubclass(SIGTERMException, SystemExit)


# ---- what they give us -----------------------------------------------------------------------------------------------


def test_all_of_lightnings_counters_count_rounds() -> None:
    trainer = run(FedAvg(tiny_net()), rounds=3)
    progress = trainer.loop.epoch_progress
    counted = {trainer.current_epoch, trainer.global_step, trainer.loop.epoch_loop._batches_that_stepped}
    counted |= {getattr(progress.total, name) for name in ("ready", "started", "processed", "completed")}
    assert counted == {trainer.loop.rounds_done} == {3}


def test_trainer_uses_the_federated_loop_for_fitting() -> None:
    trainer = FederatedTrainer(enable_progress_bar=False)
    assert trainer.fit_loop is trainer.loop


def test_client_is_optimised_by_hand() -> None:
    assert FedAvg(Softmax(2, 2)).automatic_optimization is False
