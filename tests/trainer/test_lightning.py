"""fedlit as a Lightning user meets it: ordinary callbacks and loggers, the hooks of a round, ordinary layers."""

import csv
import inspect
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ProgressBar,
    RichProgressBar,
    TQDMProgressBar,
)
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from fedlit import (
    Client,
    Cohort,
    Ditto,
    ExpAlpha,
    FedAvg,
    FedBC,
    FederatedDataModule,
    FederatedTrainer,
    FixedSampler,
    Phase,
    QFedAvg,
    ServerCallback,
    Softmax,
    Synthetic,
    TensorData,
    TrainedCohort,
    WeighedCohort,
)
from fedlit.client.cohort import Selection
from fedlit.data.partition.base import Parts
from fedlit.errors import ConfigError, FedlitError
from fedlit.results.records import read_metrics
from fedlit.server.sampling import Sampler
from fedlit.server.weights import QFFL
from fedlit.trainer.configuration_checks import REFUSED_TRAINER_ARGUMENTS

FEATURES, CLASSES = 8, 3


def tiny_data() -> Synthetic:
    return Synthetic(num_clients=4, num_features=FEATURES, num_classes=CLASSES, size_sigma=0.5, size_min=10)


def tiny_client() -> FedAvg:
    torch.manual_seed(0)
    return FedAvg(Softmax(FEATURES, CLASSES), local_epochs=2)


def fit(client: Client | None = None, data: FederatedDataModule | None = None, **options: Any) -> FederatedTrainer:
    """Three rounds of two of four clients, one after the other, without a bar, unless told otherwise."""
    usual: dict[str, Any] = {"rounds": 3, "clients_per_round": 2, "engine": "sequential", "enable_progress_bar": False}
    trainer = FederatedTrainer(**(usual | options))
    trainer.fit(client or tiny_client(), datamodule=data or tiny_data())
    return trainer


def z_of(trainer: FederatedTrainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.loop.client.net.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """To the last bit."""
    return all(torch.equal(a[name], b[name]) for name in a)


def column(logger: CSVLogger, name: str) -> dict[int, float]:
    """step -> value of one metric, from the file that Lightning's logger wrote."""
    with Path(logger.log_dir, "metrics.csv").open(newline="") as file:
        return {int(row["step"]): float(row[name]) for row in csv.DictReader(file) if row[name]}


# ---- loggers ---------------------------------------------------------------------------------------------------------


def test_csv_logger_gets_the_round_as_step(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    trainer = fit(logger=logger)
    rounds, losses = trainer.loop.history.series("train/loss")
    assert rounds == [1, 2, 3]
    assert column(logger, "train/loss") == pytest.approx(dict(zip(rounds, losses, strict=True)))


def test_loggers_get_the_initial_model_as_step_zero_and_evaluations_only_when_due(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fit(logger=logger, eval_every=2)
    assert list(column(logger, "global/acc")) == [0, 2, 3]


def test_tensorboard_logger_gets_the_round_as_step(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    trainer = fit(logger=logger, eval_every=2)
    events = EventAccumulator(logger.log_dir).Reload().Scalars("global/acc")
    rounds, accuracies = trainer.loop.history.series("global/acc")
    assert [event.step for event in events] == rounds == [0, 2, 3]
    assert [event.value for event in events] == pytest.approx(accuracies, rel=1e-6)


def test_wandb_logger_gets_the_round_as_step(workplace: Path) -> None:
    logger = WandbLogger(offline=True, save_dir=workplace, project="fedlit")
    trainer = fit(logger=logger)
    summary = dict(logger.experiment.summary)
    logger.experiment.finish()
    assert summary["trainer/global_step"] == 3
    assert summary["global/acc"] == pytest.approx(trainer.summary["final"]["global/acc"])


def test_wandb_logger_writes_its_run_offline(workplace: Path) -> None:
    logger = WandbLogger(offline=True, save_dir=workplace, project="fedlit")
    fit(logger=logger, rounds=1)
    logger.experiment.finish()
    assert list(workplace.glob("wandb/offline-run-*/*.wandb"))


def test_value_that_a_client_logs_at_a_rounds_end_has_that_round_as_step(tmp_path: Path) -> None:
    class Logging(FedAvg):
        def on_train_epoch_end(self) -> None:
            self.log("mine", float(self.trainer.current_epoch + 1))

    logger = CSVLogger(tmp_path)
    fit(Logging(Softmax(FEATURES, CLASSES)), logger=logger)
    assert column(logger, "mine") == {1: 1.0, 2: 2.0, 3: 3.0}


def test_learning_rate_monitor_sees_the_servers_rate_in_every_round(tmp_path: Path) -> None:
    monitor = LearningRateMonitor(logging_interval="epoch")
    fit(callbacks=monitor, logger=CSVLogger(tmp_path))
    assert monitor.lrs == {"lr-SGD": [1.0, 1.0, 1.0]}


# ---- callbacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eval_every", [1, 2])
def test_model_checkpoint_keeps_the_model_of_the_best_validated_round(tmp_path: Path, eval_every: int) -> None:
    keeper = ModelCheckpoint(tmp_path, monitor="val/acc", mode="max")
    trainer = fit(callbacks=keeper, rounds=6, eval_every=eval_every)
    saved = torch.load(keeper.best_model_path, weights_only=True)
    best = trainer.loop.best
    assert (saved["loops"]["fit_loop"]["rounds"], float(keeper.best_model_score)) == (best.round, best.value)
    assert same(best.model, {name.removeprefix("net."): value for name, value in saved["state_dict"].items()})


class SharedWeights(nn.Sequential):
    """Two layers have the same matrix, which the server's model holds once and a state dict twice."""

    def __init__(self, features: int, classes: int) -> None:
        first, second = (nn.Linear(features, features, bias=False) for _ in range(2))
        second.weight = first.weight
        super().__init__(first, second, nn.Linear(features, classes))


def test_best_model_keeps_weights_that_layers_share_as_they_were() -> None:
    trainer = fit(FedAvg(SharedWeights(FEATURES, CLASSES), local_epochs=2), rounds=6)
    best = trainer.loop.best
    assert best.round != trainer.loop.rounds_done
    assert torch.equal(best.model["0.weight"], best.model["1.weight"])


@pytest.mark.parametrize(("eval_every", "kept"), [(1, [1, 2, 3]), (2, [2, 3])])
def test_model_checkpoint_can_keep_every_evaluated_round(tmp_path: Path, eval_every: int, kept: list[int]) -> None:
    fit(callbacks=ModelCheckpoint(tmp_path, monitor="val/acc", save_top_k=-1), eval_every=eval_every)
    rounds = [torch.load(path, weights_only=True)["loops"]["fit_loop"]["rounds"] for path in tmp_path.rglob("*.ckpt")]
    assert sorted(rounds) == kept


def test_callbacks_without_a_folder_of_their_own_write_below_the_default_one(tmp_path: Path) -> None:
    fit(callbacks=ModelCheckpoint(), default_root_dir=tmp_path / "mine", logger=False)
    assert [path.parent for path in tmp_path.rglob("*.ckpt")] == [tmp_path / "mine" / "checkpoints"]


@pytest.mark.parametrize(
    "hook",
    [
        *("on_cohort_start", "on_cohort_trained", "on_pseudo_gradient", "on_server_step_end", "on_users_measured"),
        "on_round_metrics",
    ],
)
def test_checkpoint_asked_for_in_any_hook_holds_the_row_of_its_last_round(tmp_path: Path, hook: str) -> None:
    def save(self: ServerCallback, trainer: Trainer, *args: Any) -> None:
        trainer.save_checkpoint(tmp_path / "any.ckpt")

    fit(callbacks=type("Saving", (ServerCallback,), {hook: save})())
    saved = torch.load(tmp_path / "any.ckpt", weights_only=True)["loops"]["fit_loop"]
    assert saved["history"]["rounds"] == list(range(saved["rounds"] + 1))


def test_checkpoint_asked_for_when_a_round_fails_holds_the_last_complete_round(tmp_path: Path) -> None:
    class Failing(ServerCallback):
        def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
            assert cohort.round < 2, "out of order"

    keeper = ModelCheckpoint(tmp_path, filename="failed", save_on_exception=True, save_top_k=0)
    with pytest.raises(AssertionError, match="out of order"):
        fit(callbacks=[Failing(), keeper])
    assert torch.load(tmp_path / "failed.ckpt", weights_only=True)["loops"]["fit_loop"]["rounds"] == 2


@pytest.mark.parametrize(("eval_every", "stopped_after"), [(1, 3), (2, 6)])
def test_early_stopping_counts_evaluations_and_not_rounds(eval_every: int, stopped_after: int) -> None:
    """An improvement of 1 is out of reach: the first evaluation is the best, and two more are waited for."""
    stopper = EarlyStopping("val/acc", mode="max", min_delta=1.0, patience=2)
    trainer = fit(callbacks=stopper, rounds=20, eval_every=eval_every)
    assert (trainer.loop.rounds_done, stopper.wait_count) == (stopped_after, 2)


def test_run_that_early_stopping_ended_is_finished() -> None:
    trainer = fit(callbacks=EarlyStopping("val/acc", mode="max", min_delta=1.0, patience=1), rounds=20)
    assert trainer.summary["finished"] is True


@pytest.mark.parametrize("bar", [RichProgressBar, TQDMProgressBar])
def test_lightnings_own_progress_bar_replaces_fedlits(bar: type[ProgressBar]) -> None:
    trainer = fit(callbacks=bar(), enable_progress_bar=True)
    bars = [type(callback) for callback in trainer.callbacks if isinstance(callback, ProgressBar)]
    assert (bars, trainer.loop.rounds_done) == ([bar], 3)


def test_fedlits_progress_bar_counts_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    fit(enable_progress_bar=True)
    assert "round 3/3" in capsys.readouterr().out


def test_max_time_ends_the_run_at_a_rounds_end() -> None:
    class Ended(Callback):
        rounds = 0

        def on_train_epoch_end(self, *args: Any) -> None:
            self.rounds += 1

    ended = Ended()
    trainer = fit(callbacks=ended, rounds=1000, max_time={"milliseconds": 1})
    assert (trainer.loop.rounds_done, trainer.loop.history.rounds, ended.rounds) == (1, [0, 1], 1)


def test_last_round_is_evaluated_when_max_time_ends_the_run() -> None:
    trainer = fit(rounds=1000, eval_every=500, max_time={"milliseconds": 1})
    assert "global/acc" in trainer.loop.history.rows[-1]


def test_every_argument_of_lightnings_trainer_is_taken_or_refused_with_a_reason() -> None:
    theirs, ours = (set(inspect.signature(kind.__init__).parameters) for kind in (Trainer, FederatedTrainer))
    assert theirs - ours - set(REFUSED_TRAINER_ARGUMENTS) == set()


# ---- the hooks of a round --------------------------------------------------------------------------------------------


def recording(name: str, calls: list[str]) -> ServerCallback:
    """A callback that overrides every hook of Lightning's and fedlit's and writes each call down."""

    def record(hook: str) -> Any:
        return lambda self, *args, **kwargs: calls.append(f"{name}{hook}")

    hooks = [hook for hook in dir(ServerCallback) if hook.startswith("on_")] + ["setup", "teardown"]
    return type("Recording", (ServerCallback,), {hook: record(hook) for hook in hooks})()


def test_hooks_of_two_rounds_with_one_evaluation_come_in_this_order() -> None:
    calls: list[str] = []

    class TwoPhases(Ditto):
        def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
            calls.append(f"on_phase_end of {phase.name}")

    fit(TwoPhases(Softmax(FEATURES, CLASSES)), callbacks=recording("", calls), rounds=2, eval_every=2)
    assert calls == [
        "setup",
        "on_fit_start",
        "on_train_start",
        "on_users_measured",  # the initial model
        "on_round_metrics",
        "on_train_epoch_start",
        "on_train_batch_start",
        "on_cohort_start",
        "on_phase_end of personal",  # the client's own
        "on_phase_end of local",
        "on_cohort_trained",
        "on_pseudo_gradient",
        "on_before_optimizer_step",
        "on_server_step_end",
        "on_round_metrics",
        "on_train_batch_end",
        "on_train_epoch_end",
        "on_train_epoch_start",
        "on_train_batch_start",
        "on_cohort_start",
        "on_phase_end of personal",  # the client's own
        "on_phase_end of local",
        "on_cohort_trained",
        "on_pseudo_gradient",
        "on_before_optimizer_step",
        "on_server_step_end",
        "on_users_measured",
        "on_round_metrics",
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_train_batch_end",
        "on_train_epoch_end",
        "on_train_end",
        "on_fit_end",
        "teardown",
    ]


def test_server_callbacks_are_called_hook_by_hook_in_the_order_given() -> None:
    calls: list[str] = []
    fit(callbacks=[recording("a.", calls), recording("b.", calls)], rounds=1)
    start = calls.index("a.on_cohort_start")
    assert calls[start : start + 6] == [
        "a.on_cohort_start",
        "b.on_cohort_start",
        "a.on_cohort_trained",
        "b.on_cohort_trained",
        "a.on_pseudo_gradient",
        "b.on_pseudo_gradient",
    ]


class Watching(ServerCallback):
    """Keeps what it saw when local training was done and when the server had moved."""

    decides = False

    def __init__(self) -> None:
        self.trained: list[dict[int, Tensor]] = []
        self.steps: list[dict[int, int]] = []
        self.state: list[dict[str, Tensor]] = []
        self.moved: list[tuple[Cohort, dict[str, Tensor]]] = []
        self.initial: dict[str, Tensor] = {}

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        self.initial = self.initial or {name: value.clone() for name, value in self.server.model.items()}

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        flat = torch.cat([value.flatten(1) for value in cohort.params.values()], 1)
        self.trained.append(dict(zip(cohort.clients, flat, strict=True)))
        self.steps.append(dict(zip(cohort.clients, cohort.steps.tolist(), strict=True)))
        self.state.append(dict(cohort.state))

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        self.moved.append((cohort, {name: value.clone() for name, value in self.server.model.items()}))


def test_users_callback_comes_after_the_algorithms_own() -> None:
    watching = Watching()
    fit(FedBC(Softmax(FEATURES, CLASSES), dual_lr=0.1), callbacks=watching, rounds=1)
    assert watching.state[0]["dual"].min() > 0


def test_users_callback_can_change_the_step_of_the_server() -> None:
    class Still(ServerCallback):
        def on_pseudo_gradient(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
            for gradient in cohort.pseudo_gradient.values():
                gradient.zero_()

    watching = Watching()
    trainer = fit(callbacks=[Still(), watching])
    assert same(z_of(trainer), watching.initial)


def test_users_callback_takes_over_the_role_of_the_dual_ascent(caplog: pytest.LogCaptureFixture) -> None:
    class Constant(ServerCallback):
        role = "dual"

        def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
            cohort.state["dual"] = torch.full_like(cohort.state["dual"], 0.25)

    with caplog.at_level(logging.INFO, "fedlit"):
        trainer = fit(FedBC(Softmax(FEATURES, CLASSES), dual_lr=0.1), callbacks=Constant())
    assert trainer.loop.history.series("dual/mean")[1] == [0.25] * 3
    assert len([line for line in caplog.messages if "takes the role 'dual'" in line]) == 1


class RoundEvaluator(ServerCallback):
    metrics = ("mine/round",)

    def on_round_metrics(
        self, trainer: Trainer, client: Client, cohort: WeighedCohort | None, metrics: dict[str, float]
    ) -> None:
        metrics["mine/round"] = -1.0 if cohort is None else float(cohort.round)


def test_metrics_of_a_callback_become_a_column_of_the_run_folder(tmp_path: Path) -> None:
    fit(callbacks=RoundEvaluator(), run=tmp_path / "run")
    assert [row["mine/round"] for row in read_metrics(tmp_path / "run" / "metrics.csv")] == [-1, 0, 1, 2]


def test_metrics_of_a_callback_reach_loggers_and_callbacks(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    trainer = fit(callbacks=RoundEvaluator(), logger=logger)
    assert column(logger, "mine/round") == {0: -1, 1: 0, 2: 1, 3: 2}
    assert float(trainer.callback_metrics["mine/round"]) == 2


@pytest.mark.parametrize("folder", ["run", None], ids=["with run folder", "without run folder"])
def test_metric_that_no_callback_declared_is_refused_by_name(workplace: Path, folder: str | None) -> None:
    class Undeclared(RoundEvaluator):
        metrics = ()

    with pytest.raises(FedlitError, match="mine/round"):
        fit(callbacks=Undeclared(), run=folder)


@pytest.mark.parametrize(
    ("hook", "field"),
    [
        ("on_cohort_start", "params"),
        ("on_cohort_start", "losses"),
        ("on_cohort_trained", "weights"),
        ("on_cohort_trained", "pseudo_gradient"),
    ],
)
def test_field_of_the_cohort_that_a_hook_reads_too_early_says_so(hook: str, field: str) -> None:
    hasty = type("Hasty", (ServerCallback,), {hook: lambda self, trainer, client, cohort: getattr(cohort, field)})
    with pytest.raises(AttributeError, match=f"cohort.{field} is read too early"):
        fit(callbacks=hasty())


@pytest.mark.parametrize(
    "speak", [lambda client: client.log("a", 1.0), lambda client: client.log_dict({"a": 1.0})], ids=["log", "log_dict"]
)
def test_logging_inside_a_local_step_is_refused_with_the_reason(speak: Callable[[Client], None]) -> None:
    class Chatty(FedAvg):
        def training_step(self, batch, batch_idx):
            speak(self)
            return self.task_loss(batch)

    with pytest.raises(ConfigError, match="inside a local step. A step is traced once and run for many clients"):
        fit(Chatty(Softmax(FEATURES, CLASSES)))


# ---- five lines ------------------------------------------------------------------------------------------------------

FIVE_LINES = """
from fedlit import FederatedTrainer, FedBC, Synthetic, Softmax
trainer = FederatedTrainer(rounds=2, clients_per_round=2)
trainer.fit(FedBC(net=Softmax(60, 10), lr=0.01), datamodule=Synthetic(alpha=0.5, beta=0.5))
print(trainer.summary)
"""


@pytest.fixture(scope="module")
def five_lines(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What a user sees who runs the five lines of the documentation (with 2 rounds of 2 clients) as a script."""
    folder = tmp_path_factory.mktemp("script")
    return subprocess.run(
        [sys.executable, "-c", FIVE_LINES], capture_output=True, text=True, check=True, timeout=300, cwd=folder
    )


def test_five_lines_end_with_the_summary(five_lines: subprocess.CompletedProcess[str]) -> None:
    assert "after 2 rounds" in five_lines.stdout
    assert "global accuracy" in five_lines.stdout


def test_five_lines_print_one_line_about_the_engine_with_its_reason(
    five_lines: subprocess.CompletedProcess[str],
) -> None:
    said = (five_lines.stdout + five_lines.stderr).splitlines()
    assert len([line for line in said if line.startswith("engine: ") and "(" in line]) == 1


@pytest.mark.parametrize("chatter", ["GPU", "TPU", "Tip", "Warning", "stopped:"])
def test_five_lines_print_none_of_lightnings_chatter(
    five_lines: subprocess.CompletedProcess[str], chatter: str
) -> None:
    assert chatter not in five_lines.stdout + five_lines.stderr


def test_summary_says_what_the_run_came_to_and_what_it_ran_on() -> None:
    summary = fit().summary
    engine = {"engine", "lanes", "workers", "compiled", "why"}
    results = {"rounds", "finished", "final", "best", "rounds_to/0.40", "halftime/acc"}
    run = {"algorithm", "data", "seed", "seconds", "personal", "partition_hash", "versions", "git_commit"}
    assert set(summary) >= engine | results | run


def test_best_values_of_the_summary_are_those_of_the_best_validated_round() -> None:
    trainer = fit(rounds=5)
    rounds, accuracies = trainer.loop.history.series("val/acc")
    assert trainer.summary["best"]["round"] == rounds[int(np.argmax(accuracies))]
    assert trainer.summary["best"]["val/acc"] == max(accuracies)


def test_run_without_validation_data_has_no_best_round() -> None:
    data = Synthetic(num_clients=4, num_features=FEATURES, num_classes=CLASSES, size_sigma=0.5, val_fraction=0)
    assert "best" not in fit(data=data).summary


def test_double_precision_reaches_every_tensor_of_a_round() -> None:
    watching = Watching()
    trainer = fit(FedBC(Softmax(FEATURES, CLASSES)), callbacks=watching, precision="64-true", rounds=1)
    cohort, z = watching.moved[0]
    held = [*z.values(), *cohort.params.values(), *cohort.received.values(), *cohort.state.values(), cohort.losses]
    held += [*cohort.pseudo_gradient.values(), *trainer.loop.states.state_dict()["rows"].values()]
    assert {value.dtype for value in held} == {torch.float64}


def test_single_precision_is_what_holds_unless_told() -> None:
    assert {value.dtype for value in z_of(fit(rounds=1)).values()} == {torch.float32}


# ---- options that must not change what is trained --------------------------------------------------------------------


def test_training_from_the_own_model_does_not_depend_on_local_models_being_measured() -> None:
    with_metrics, without = (
        z_of(fit(FedBC(from_seed(1), start_from="local", dual_lr=0.1), store_local_models=stored, rounds=6))
        for stored in (True, False)
    )
    assert same(with_metrics, without)


def test_evaluating_less_often_changes_no_weight() -> None:
    assert same(z_of(fit(eval_every=1, rounds=5)), z_of(fit(eval_every=5, rounds=5)))


def test_sampler_all_takes_everyone_whatever_clients_per_round_says() -> None:
    watching = Watching()
    fit(sampler="all", clients_per_round=10, callbacks=watching, rounds=1)
    assert list(watching.steps[0]) == [0, 1, 2, 3]


class WithAnEmptyClient(FederatedDataModule):
    """Client 0 has no samples at all."""

    def build(self) -> tuple[dict[str, Tensor], Parts]:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(40, FEATURES)).astype(np.float32), rng.integers(CLASSES, size=40)
        clients = [np.arange(0), np.arange(20), np.arange(20, 40)]
        return {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, Parts(clients)


def test_round_of_clients_without_data_leaves_the_model_as_it_is() -> None:
    watching = Watching()
    trainer = fit(data=WithAnEmptyClient(allow_empty=True), sampler=FixedSampler([0]), callbacks=watching)
    assert same(z_of(trainer), watching.initial)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_round_of_clients_without_data_has_no_shares_of_samples() -> None:
    trainer = fit(data=WithAnEmptyClient(allow_empty=True), sampler=FixedSampler([0]))
    row = trainer.loop.history.rows[1]
    assert row["min_user/weight"] == 1
    assert "min_user/size_share" not in row


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 2.0])
def test_an_empty_client_counts_nothing_in_qfedavg(q: float) -> None:
    def trained(*clients: int) -> dict[str, Tensor]:
        data = WithAnEmptyClient(allow_empty=True)
        return z_of(fit(QFedAvg(from_seed(1), q=q), data=data, sampler=FixedSampler(list(clients))))

    assert same(trained(0, 1, 2), trained(1, 2))


@pytest.mark.parametrize("weighting", [QFFL(q=2.0), ExpAlpha()], ids=["q-FFL", "Exp-α"])
def test_a_round_of_empty_clients_alone_leaves_the_model_as_it_is_whatever_weighs(weighting: Any) -> None:
    watching, data = Watching(), WithAnEmptyClient(allow_empty=True)
    trainer = fit(data=data, sampler=FixedSampler([0]), callbacks=watching, weights=weighting)
    assert same(z_of(trainer), watching.initial)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def from_seed(seed: int, *layers: nn.Module) -> nn.Module:
    """A net with weights that depend on the seed alone; the layers stand before the last one."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), *layers, nn.Linear(8, CLASSES))


class InThisOrder(Sampler):
    """The same clients in every round, trained in the order given."""

    def __init__(self, *clients: int) -> None:
        self.clients = list(clients)

    def select(self, seed: int, round: int, sizes: np.ndarray, count: int) -> Selection:
        return Selection(train=self.clients, report=self.clients)


DRAWING = {
    "alpha dropout": [nn.AlphaDropout(0.5)],
    "rrelu": [nn.RReLU()],
    "beside dropout": [nn.Dropout(0.5), nn.RReLU()],
}


@pytest.mark.parametrize("layers", DRAWING.values(), ids=list(DRAWING))
def test_net_that_draws_by_itself_is_trained_one_by_one_with_a_printed_reason(
    layers: list[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        trainer = fit(FedAvg(from_seed(0, *layers)), engine="vectorized", compiled=False)
    (line,) = [line for line in caplog.messages if line.startswith("engine:")]
    assert trainer.summary["engine"] == "sequential"
    assert "draws" in line


def test_dropout_acts_in_training() -> None:
    nets = (from_seed(0, nn.Dropout(0.5)), from_seed(0, nn.Dropout(0.0)))
    assert not same(*(z_of(fit(FedAvg(net))) for net in nets))


def test_dropout_draws_the_same_masks_in_a_repeated_run() -> None:
    first = z_of(fit(FedAvg(from_seed(0, nn.Dropout(0.5)))))
    torch.manual_seed(99)
    torch.rand(7)
    assert same(first, z_of(fit(FedAvg(from_seed(0, nn.Dropout(0.5))))))


@pytest.mark.parametrize(("rate", "differs"), [(0.5, True), (0.0, False)], ids=["dropout", "no dropout"])
def test_dropout_draws_other_masks_with_another_seed(rate: float, differs: bool) -> None:
    """Whole batches and one client: without dropout the seed decides nothing but the order of a sum."""
    one, other = (
        z_of(
            fit(
                FedAvg(from_seed(0, nn.Dropout(rate)), batch_size=1000),
                seed=seed,
                sampler=FixedSampler([1]),
                initial_weights="net",
            )
        )
        for seed in (0, 1)
    )
    assert (float((one["0.weight"] - other["0.weight"]).abs().max()) > 1e-4) is differs


def test_dropout_masks_do_not_depend_on_the_order_in_which_clients_are_trained() -> None:
    trained = []
    for order in ([0, 1, 2], [2, 0, 1]):
        watching = Watching()
        net = from_seed(0, nn.Dropout(0.5))
        fit(FedAvg(net), callbacks=watching, sampler=InThisOrder(*order), clients_per_round=3, rounds=1)
        trained.append(watching.trained[0])
    assert all(torch.equal(trained[0][client], trained[1][client]) for client in range(3))


def test_training_leaves_the_global_stream_of_torch_alone() -> None:
    class Noting(ServerCallback):
        def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
            self.before = torch.random.get_rng_state()

        def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
            self.untouched = torch.equal(self.before, torch.random.get_rng_state())

    noting = Noting()
    fit(FedAvg(from_seed(0, nn.Dropout(0.5))), callbacks=noting)
    assert noting.untouched


# ---- BatchNorm -------------------------------------------------------------------------------------------------------


def normed() -> nn.Module:
    return from_seed(0, nn.BatchNorm1d(8))


def clients_of(*sizes: int) -> TensorData:
    """Clients with exactly these numbers of training samples."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(sum(sizes), FEATURES)).astype(np.float32)
    client = np.repeat(np.arange(len(sizes)), sizes)
    return TensorData(x, rng.integers(CLASSES, size=len(x)), client, test_fraction=0, val_fraction=0)


@pytest.mark.parametrize(
    ("compiled", "why"), [(None, "compiling would not pay"), (False, "the buffer '.*running_mean'")]
)
def test_short_run_with_batchnorm_is_trained_one_by_one_with_a_printed_reason(
    caplog: pytest.LogCaptureFixture, compiled: bool | None, why: str
) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        trainer = fit(FedAvg(normed()), engine="auto", compiled=compiled)
    (line,) = [line for line in caplog.messages if line.startswith("engine:")]
    assert trainer.summary["engine"] == "sequential"
    assert re.search(why, line)


@pytest.mark.parametrize("statistic", ["2.running_mean", "2.running_var"])
def test_running_statistics_are_averaged_with_the_weights(statistic: str) -> None:
    watching = Watching()
    fit(FedAvg(normed()), callbacks=watching, precision="64-true")
    for cohort, z in watching.moved:
        expected = np.einsum("i,ij->j", cohort.weights.numpy(), cohort.buffers[statistic].numpy())
        np.testing.assert_allclose(z[statistic].numpy(), expected, rtol=1e-12, atol=1e-14)


def test_running_statistics_move_in_training() -> None:
    assert z_of(fit(FedAvg(normed())))["2.running_mean"].any()


def test_running_statistics_of_a_client_do_not_depend_on_who_was_trained_before_it() -> None:
    found = []
    for order in ([0, 1, 2], [2, 0, 1]):
        watching = Watching()
        fit(FedAvg(normed()), callbacks=watching, sampler=InThisOrder(*order), clients_per_round=3, rounds=1)
        cohort, _ = watching.moved[0]
        found.append(dict(zip(cohort.clients, cohort.buffers["2.running_mean"], strict=True)))
    assert all(torch.equal(found[0][client], found[1][client]) for client in range(3))


def test_count_of_batches_is_the_largest_of_the_clients() -> None:
    watching = Watching()
    fit(FedAvg(normed(), batch_size=4, local_epochs=1), clients_of(8, 20), callbacks=watching)
    assert [int(z["2.num_batches_tracked"]) for _, z in watching.moved] == [5, 10, 15]


def test_first_round_starts_from_untouched_running_statistics() -> None:
    watching = Watching()
    fit(FedAvg(normed()), callbacks=watching)
    assert same(watching.initial, normed().state_dict())


def test_ragged_batch_of_one_row_is_skipped_by_batchnorm() -> None:
    watching = Watching()
    fit(FedAvg(normed(), batch_size=4, local_epochs=3), clients_of(9, 8), callbacks=watching, rounds=1)
    assert watching.steps[0] == {0: 6, 1: 6}


def test_ragged_batch_of_one_row_is_trained_on_without_batchnorm() -> None:
    watching = Watching()
    fit(FedAvg(from_seed(0), batch_size=4, local_epochs=3), clients_of(9, 8), callbacks=watching, rounds=1)
    assert watching.steps[0] == {0: 9, 1: 6}


def test_client_with_a_single_row_does_not_train_a_net_with_batchnorm() -> None:
    watching = Watching()
    fit(FedAvg(normed(), batch_size=4), clients_of(1, 8), callbacks=watching, rounds=1)
    cohort, _ = watching.moved[0]
    assert torch.equal(cohort.params["0.weight"][0], watching.initial["0.weight"])


def test_batches_of_one_row_are_refused_for_a_net_with_batchnorm() -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        fit(FedAvg(normed(), batch_size=1))


def test_user_is_evaluated_with_running_statistics_and_not_with_its_own_batch() -> None:
    trainer = fit(FedAvg(normed()))
    data, net = trainer.loop.data, trainer.loop.client.net
    x, y = data.rows(data.store, data.global_test)
    with torch.no_grad():
        hits = [int(net.eval()(row[None]).argmax()) == int(label) for row, label in zip(x, y, strict=True)]
    assert trainer.summary["final"]["global/acc"] == pytest.approx(np.mean(hits))
