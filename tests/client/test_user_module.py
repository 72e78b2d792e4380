"""A LightningModule that exists is a client: same z as its net, logs, local optimiser, refusals."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from fedlit import Client, Ditto, FedAvg, FedBC, FedProx, PFedMe, Scaffold
from fedlit.cli.evaluate import measured
from fedlit.config.fit_cli import FitCLI
from fedlit.config.parts import parts_of
from fedlit.errors import ConfigError, FedlitError
from fedlit.recorded import TRAINED_AS
from fedlit.trainer.plain_values import describe_net
from fedlit.trainer.restore import Restored
from tests.problems import CLASSES, FEATURES, kept_rows, run, tiny_data, weights_of


class LitClassifier(LightningModule):
    """As Lightning's own documentation writes one."""

    def __init__(self, hidden: int = 8, lr: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
        self.train_acc = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        self.test_acc = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_loss", loss)
        self.log("train_acc", self.train_acc, on_step=True, on_epoch=False)
        return loss

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.test_acc(self(x), y)
        self.log("test_acc", self.test_acc)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


class Silent(LitClassifier):
    """Logs nothing, so that its step can be traced."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)


def lit(kind: type[LitClassifier] = LitClassifier, **options: Any) -> LitClassifier:
    torch.manual_seed(3)
    return kind(**options).double()


def net() -> nn.Module:
    return lit().model


LOCAL: dict[str, Any] = {"batch_size": 4, "local_epochs": 2}
ALGORITHMS: list[Callable[..., Client]] = [FedAvg, FedBC, PFedMe, FedProx, Scaffold, Ditto]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_z_has_the_bits_of_the_same_net_given_as_net(algorithm: Callable[..., Client]) -> None:
    as_module = run(algorithm(module=lit(), **LOCAL))
    as_net = run(algorithm(net(), lr=0.05, **LOCAL))
    for name, value in weights_of(as_net).items():
        assert torch.equal(weights_of(as_module)[f"model.{name}"], value)
    for name, value in kept_rows(as_net).items():
        group, dot, rest = name.partition(".")
        assert torch.equal(kept_rows(as_module)[f"{group}.model.{rest}" if dot else name], value)
    assert as_module.summary["final"]["global/acc"] == as_net.summary["final"]["global/acc"]


def test_what_a_step_logs_is_in_the_history_under_its_own_name() -> None:
    trainer = run(FedBC(module=lit(), **LOCAL))
    row = trainer.loop.history.rows[-1]
    assert {"train_loss", "train_acc"} <= set(trainer.loop.history.columns)
    assert 0 <= row["train_acc"] <= 1
    assert "train_acc" not in trainer.loop.history.rows[0]


def test_the_mean_over_all_steps_of_a_round_is_logged() -> None:
    """One client of one batch and one step: the loss of the batch at z."""
    trainer = run(FedAvg(module=lit(), batch_size=100, local_epochs=1), tiny_data((40,)), clients_per_round=1, rounds=1)
    row = trainer.loop.history.rows[-1]
    assert row["train_loss"] == pytest.approx(row["train/loss"], rel=1e-12)


def test_a_module_is_left_as_it_was() -> None:
    module = lit()
    before = set(vars(module))
    run(FedAvg(module=module, **LOCAL), rounds=1)
    assert "log" not in vars(module)
    assert set(vars(module)) == {*before, "_trainer", TRAINED_AS}
    assert module.train_acc._update_count == 0


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_that_can_be_traced_runs_in_the_vectorized_engine(compiled: bool) -> None:
    judge = run(FedBC(module=lit(Silent), **LOCAL))
    fast = run(FedBC(module=lit(Silent), **LOCAL), engine="vectorized", compiled=compiled)
    assert fast.loop.choice.engine == "vectorized"
    for name, value in weights_of(judge).items():
        assert float((weights_of(fast)[name] - value).abs().max()) < 1e-10


def test_auto_says_why_it_takes_the_sequential_engine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        run(FedAvg(module=lit(), **LOCAL), engine="auto", rounds=1)
    assert any("engine: sequential" in message for message in caplog.messages)


class Measured(Silent):
    """With a loss that is logged as a number, and a metric of torchmetrics in both steps."""

    def __init__(self) -> None:
        super().__init__()
        self.val_f1 = torchmetrics.F1Score(task="multiclass", num_classes=CLASSES, average="macro")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.val_f1(logits, y)
        self.log_dict({"val_f1": self.val_f1, "val_loss": F.cross_entropy(logits, y)})


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_what_its_steps_measure_is_measured_per_user_and_pooled(engine: str) -> None:
    """Equal to the same numbers from fedlit's own measures, for every model."""
    metrics = {"f1": {"class_path": "F1Score", "init_args": {"average": "macro"}}}
    options = {"clients_per_round": 4, "engine": engine, "compiled": None if engine == "sequential" else False}
    trainer = run(FedBC(module=lit(Measured), metrics=metrics, **LOCAL), **options)
    final, users = trainer.summary["final"], trainer.users
    for group in ("global/{}", "local/{}", "personal/pooled_{}", "users/{}_min"):
        assert final[group.format("testacc")] == pytest.approx(final[group.format("acc")], abs=1e-6)
        assert final[group.format("valf1")] == pytest.approx(final[group.format("f1")], abs=1e-6)
    assert users["valf1_personal"].tolist() == pytest.approx(users["f1_personal"].tolist(), abs=1e-6)
    assert final["global/valloss"] == pytest.approx(final["global/loss"], abs=1e-6)


class Around(Silent):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("test_acc", (self.model(x).argmax(1) == y).double().mean())


def test_a_step_around_forward_is_not_measured_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        trainer = run(FedAvg(module=lit(Around), **LOCAL), rounds=1)
    assert any("Around.test_step does not get its predictions from self(x)" in message for message in caplog.messages)
    assert "global/testacc" not in trainer.loop.history.columns


def test_a_stopped_run_of_a_module_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def played(folder: str, rounds: int, **options: Any) -> Any:
        return run(FedBC(module=lit(Measured), **LOCAL), run=tmp_path / folder, rounds=rounds, **options)

    whole, _ = played("whole", 4), played("stopped", 2)
    resumed = played("stopped", 4, resume=True)
    for name, value in weights_of(whole).items():
        assert torch.equal(weights_of(resumed)[name], value)
    assert resumed.loop.history.rows[-1]["global/valf1"] == whole.loop.history.rows[-1]["global/valf1"]
    with pytest.raises(FedlitError, match="other settings"):
        run(FedBC(module=lit(Measured), lr=0.2, **LOCAL), run=tmp_path / "stopped", rounds=5, resume=True)


def test_hyperparameters_of_a_module_are_settings_of_the_run() -> None:
    described = [describe_net(LitClassifier(lr=lr), "model.net")["init_args"] for lr in (0.1, 0.2)]
    assert described == [{"hidden": 8, "lr": 0.1}, {"hidden": 8, "lr": 0.2}]


CONFIG = """
seed_everything: 0
trainer: {rounds: 1, clients_per_round: 2, engine: sequential, enable_progress_bar: false, logger: false}
model:
  class_path: FedBC
  init_args:
    module: {class_path: tests.client.test_user_module.OfSynthetic, init_args: {rate: 0.02}}
data: {class_path: Synthetic, init_args: {num_clients: 4}}
"""


class OfSynthetic(LightningModule):
    """For a config."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.layer = nn.Linear(60, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x)
        return logits

    def training_step(self, batch: Any) -> Tensor:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("own_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=self.rate)], []


def test_a_config_names_a_module(tmp_path: Path) -> None:
    config = tmp_path / "module.yaml"
    config.write_text(CONFIG)
    cli = FitCLI(["--config", str(config), "--run", str(tmp_path / "run")])
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    assert cli.model.lr == 0.02
    assert "own_loss" in cli.trainer.loop.history.rows[-1]
    restored = Restored.of(tmp_path / "run")
    values = measured(restored, parts_of(restored), users=True)
    assert values["global/acc"] == cli.trainer.loop.history.rows[-1]["global/acc"]


class WithAdam(Silent):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.002, betas=(0.8, 0.99), weight_decay=0.1)


def test_the_local_optimiser_is_that_of_configure_optimizers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        client = FedAvg(module=lit(WithAdam), **LOCAL)
    assert (client.optimizer, client.lr, client.betas, client.weight_decay) == ("adamw", 0.002, (0.8, 0.99), 0.1)
    assert "local optimiser: adamw (lr 0.002" in caplog.messages[-1]
    given = FedAvg(net(), optimizer="adamw", lr=0.002, betas=(0.8, 0.99), weight_decay=0.1, **LOCAL)
    as_module, as_net = run(client), run(given)
    for name, value in weights_of(as_net).items():
        assert torch.equal(weights_of(as_module)[f"model.{name}"], value)


def test_an_lr_of_the_algorithm_wins_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        client = FedAvg(module=lit(WithAdam), lr=0.3, **LOCAL)
    assert (client.optimizer, client.lr) == ("sgd", 0.3)
    assert caplog.messages[-1] == "local optimiser: lr 0.3; WithAdam.configure_optimizers is not read"


class ReadsEpoch(LitClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) / (1 + self.current_epoch)


class ReturnsNothing(LitClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        return None


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ReadsEpoch, "ReadsEpoch reads the trainer in a step (self.trainer.current_epoch"),
        (ReturnsNothing, "ReturnsNothing.training_step returned a NoneType"),
    ],
)
def test_a_step_that_cannot_be_a_client_is_refused_before_a_run(kind: type[LitClassifier], told: str) -> None:
    with pytest.raises(FedlitError) as refused:
        run(FedAvg(module=lit(kind), **LOCAL))
    assert told in str(refused.value)


class Manual(LitClassifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Two(LitClassifier):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.2)]


class Scheduled(LitClassifier):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


class Other(LitClassifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.RMSprop(self.parameters())


class Nesterov(LitClassifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True)


class Part(LitClassifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model[2].parameters(), lr=0.1)


class ByGroups(LitClassifier):
    def configure_optimizers(self) -> Any:
        groups = [{"params": self.model[0].parameters()}, {"params": self.model[2].parameters(), "lr": 0.2}]
        return torch.optim.SGD(groups, lr=0.1)


class Asks(LitClassifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1 / self.trainer.estimated_stepping_batches)


class Backward(LitClassifier):
    def on_after_backward(self) -> None:
        pass


class NoForward(LightningModule):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return torch.zeros(())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Manual, "Manual) optimises by hand"),
        (Two, "Two.configure_optimizers makes 2 optimisers, but a client has one"),
        (Scheduled, "has a schedule of the rate"),
        (Other, "makes RMSprop, but local steps are SGD's, Adam's or AdamW's"),
        (Nesterov, "sets nesterov of SGD"),
        (Part, "has other parameters than those that are trained"),
        (ByGroups, "has 2 groups of parameters"),
        (Asks, "Asks reads the trainer in a step (self.trainer.estimated_stepping_batches"),
        (Backward, "Backward) overrides on_after_backward"),
        (NoForward, "needs training_step, the loss of a client, and forward"),
        (lambda: nn.Linear(2, 2), "has to be a LightningModule"),
    ],
)
def test_a_module_that_cannot_be_a_client_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FedBC(module=make())
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_lr_of_the_algorithm_spares_a_module_the_refusal_of_its_optimisers() -> None:
    assert FedAvg(module=Scheduled(), lr=0.2).lr == 0.2


def test_net_or_module() -> None:
    with pytest.raises(ConfigError, match=r"neither model\.net nor model\.module"):
        FedBC()
    with pytest.raises(ConfigError, match=r"both model\.net and model\.module"):
        FedBC(net(), module=lit())


def test_a_copy_steps_with_its_own_module() -> None:
    client = FedAvg(module=lit(), **LOCAL)
    other = copy.deepcopy(client)
    assert other.user_module is not None
    assert other.user_module.module is other.net
    assert other.net is not client.net
