"""Lightning's protected names that fedlit relies on, each with its shape: a new Lightning fails here first."""

import argparse
import ast
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint, ProgressBar
from pytorch_lightning.cli import LightningCLI
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.loops import fit_loop
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.strategies import DDPStrategy, launchers
from pytorch_lightning.strategies.launchers import subprocess_script
from pytorch_lightning.trainer import call
from pytorch_lightning.utilities.exceptions import SIGTERMException

import fedlit
from fedlit import FedAvg, FederatedTrainer, Softmax
from tests.problems import run, tiny_net

ROOT = Path(fedlit.__file__).parent
LAUNCHING = ROOT / "processes" / "strategy.py"
OTHERS = [path for path in ROOT.rglob("*.py") if path not in (ROOT / "loop.py", LAUNCHING)]
LIGHTNING = {
    "_FitLoop",
    "_batches_that_stepped",
    "_call_callback_hooks",
    "_call_lightning_module_hook",
    "_callback_metrics",
    "_logger_connector",
}
"""Every protected name of Lightning that loop.py uses."""
LAUNCHERS = {"_MultiProcessingLauncher", "_SubprocessScriptLauncher", "_basic_subprocess_cmd"}
"""Every protected name of Lightning that processes/strategy.py uses; that it replaces `_configure_launcher` is the
strategy's own way to choose one."""
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


def is_protected(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def protected_names(path: Path) -> set[str]:
    """Protected names that a file imports from Lightning, or reads from any object without defining them itself."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    imports = [
        f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    imports += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    words = {word for name in imports if "lightning" in name.split(".")[0] for word in name.split(".")}
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store) and is_self(node.value)}
    read = {node.attr for node in attributes} - own
    return {name for name in words | read if is_protected(name)}


def lightnings_own_names() -> set[str]:
    """Protected names of Lightning's modules and of its objects at work, without those of torch and argparse."""
    trainer = stock_trainer()
    loops = [trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_loop.val_loop]
    connectors = [value for name, value in vars(trainer).items() if name.endswith("_connector")]
    kinds = [Callback, Checkpoint, ModelCheckpoint, EarlyStopping, ProgressBar, LightningCLI, LightningDataModule]
    things = [trainer, *loops, *connectors, *kinds, LightningModule(), call, fit_loop]
    others = {name for thing in (torch.nn.Module(), argparse.ArgumentParser()) for name in dir(thing)}
    return {name for thing in things for name in dir(thing) if is_protected(name)} - others


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def stock_trainer(**options: Any) -> Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", devices=1, max_epochs=1, enable_model_summary=False, **(quiet | options))


@pytest.fixture
def stock() -> Trainer:
    """A trainer of Lightning's own that holds a module, as in the middle of a run."""
    trainer = stock_trainer()
    trainer.strategy._lightning_module = LightningModule()
    return trainer


# ---- who uses them ---------------------------------------------------------------------------------------------------


def test_loop_uses_exactly_the_names_of_the_list() -> None:
    assert protected_names(ROOT / "loop.py") == LIGHTNING


def test_strategy_uses_exactly_the_names_of_its_list() -> None:
    assert protected_names(LAUNCHING) == LAUNCHERS
    assert all(hasattr(launchers, name) for name in LAUNCHERS if name.endswith("Launcher"))
    assert subprocess_script._basic_subprocess_cmd()[0] == sys.executable  # type: ignore[attr-defined]  # not exported
    assert hasattr(DDPStrategy, "_configure_launcher")


def test_no_other_file_uses_a_protected_name_of_lightning() -> None:
    theirs = lightnings_own_names()
    found = {str(path.relative_to(ROOT)): protected_names(path) & theirs for path in OTHERS}
    assert {path: names for path, names in found.items() if names} == {}


def test_names_of_the_list_are_known_as_lightnings_own() -> None:
    assert lightnings_own_names() >= LIGHTNING


def test_scan_sees_imports_and_attributes_but_not_what_a_file_defines_itself(tmp_path: Path) -> None:
    source = "from lightning import _A\nimport lightning._b\ndef _f(): self._g = trainer._c\nself._g, x._f, x.__d__"
    (tmp_path / "file.py").write_text(source)
    assert protected_names(tmp_path / "file.py") == {"_A", "_b", "_c"}


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
