"""What tests let several processes play. One start plays many runs, and every rank leaves what it found."""

import fedlit as fedlit  # isort: skip  # first: it lets Lightning be imported beside a CPU-only torch

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor, nn

from fedlit import Batch, Client, Ditto, FedAvg, FedBC, FederatedTrainer, Scaffold, ServerCallback, TensorData
from fedlit.client.cohort import WeighedCohort
from fedlit.client.net_parts import frozen
from fedlit.errors import FedlitError
from fedlit.experiments.conformance.entries import ENTRIES
from fedlit.experiments.conformance.problem import LOCAL, everything
from fedlit.experiments.conformance.problem import tiny_data as conformance_data
from fedlit.experiments.conformance.problem import tiny_net as conformance_net
from fedlit.models import ResNet20
from fedlit.server.cloud import Cloud
from tests.problems import TinyConv, tiny_data

Found = dict[str, Any]


class NormedConv(TinyConv):
    """With BatchNorm, whose statistics stay with each client in FedBN."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        pooled = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        logits: Tensor = self.head(pooled.flatten(1))
        return logits


def found(trainer: FederatedTrainer) -> Found:
    """All that a run has computed, without the times that it took."""
    rows = [{name: value for name, value in row.items() if "time/" not in name} for row in trainer.loop.history.rows]
    return {"all": {name: value.clone() for name, value in everything(trainer).items()}, "history": rows}


def fit(client: Client, data: TensorData, **options: Any) -> FederatedTrainer:
    """A short run in float64."""
    given: dict[str, Any] = {"rounds": 4, "clients_per_round": 3, "engine": "sequential"}
    trainer = FederatedTrainer(
        **(given | options), enable_progress_bar=False, precision="64-true", initial_weights="net"
    )
    trainer.fit(client, datamodule=data)
    return trainer


def conforming(name: str, **options: Any) -> Found:
    """An algorithm of the conformance suite."""
    entry = ENTRIES[name]
    return found(fit(entry.make(conformance_net(), **LOCAL), conformance_data(), **(entry.trainer | options)))


def batch_norm(**options: Any) -> Found:
    """FedBN: buffers, some of them integers, and tensors that stay with each client."""
    torch.manual_seed(3)
    client = FedAvg(NormedConv().double(), keep_local="norm", **LOCAL)
    return found(fit(client, tiny_data(shape=(1, 8, 8)), **options))


def frozen_base(make: Callable[..., Client], **options: Any) -> Found:
    """A frozen part with statistics, which only the first rank has as it should be: it sends them to the others."""
    torch.manual_seed(3 + 10 * rank_zero_only.rank)
    net = NormedConv().double()
    net.conv.requires_grad_(False)
    net.norm.requires_grad_(False)
    trainer = fit(make(net, **LOCAL), tiny_data(shape=(1, 8, 8)), **options)
    answer = found(trainer)
    answer["all"] |= {f"frozen {name}": value.clone() for name, value in frozen(net).items()}
    return answer


def many_rows(**options: Any) -> Found:
    """More rows than a chunk of the evaluation, so that chunks are divided; personal models that are adapted."""
    sizes = (400, 900, 1500, 2100)
    client = FedBC(conformance_net(), lr=0.05, batch_size=100, l2=0.01)
    extra = ("global/train_loss", "global/grad_norm2_uniform")
    return found(fit(client, tiny_data(sizes), finetune_lr=0.1, extra_metrics=extra, rounds=2, **options))


def fine_tuned(**options: Any) -> Found:
    """Two groups of users who are fine-tuned together, so that each rank has one."""
    client = FedBC(conformance_net(), lr=0.05, batch_size=500)
    tuning = {"finetune_lr": [0.1, 0.02], "finetune_epochs": 2}
    return found(fit(client, tiny_data((400, 900, 1500, 2100), val_fraction=0.1), rounds=2, **tuning, **options))


def newcomers(**options: Any) -> Found:
    """Two newcomers, each trained and measured by another rank, in every round; z's own rows are shared, too."""
    client = FedBC(conformance_net(), lr=0.05, batch_size=500, dual_init=0.1)
    data = tiny_data((400, 900, 1500, 2100), newcomers=0.5)
    return found(fit(client, data, newcomers_every=1, finetune_lr=0.1, **(options | {"clients_per_round": 2})))


def metrics(**options: Any) -> Found:
    """Metrics of torchmetrics, of z, of users' own models and pooled; each rank computes those of some users."""
    client = FedBC(conformance_net(), metrics=["AUROC", "F1Score", "CalibrationError"], **LOCAL)
    return found(fit(client, conformance_data(), finetune_lr=0.1, **options))


RUNS: dict[str, Callable[..., Found]] = {
    **{
        name: partial(conforming, name)
        for name in ("FedBC", "SCAFFOLD I", "pFedMe", "FedBCD", "FedBCD-I", "Exp-α", "FedAdam", "FedProx, stragglers")
    },
    "vectorized SCAFFOLD": partial(conforming, "SCAFFOLD I", engine="vectorized", compiled=False),
    "vectorized Ditto": partial(conforming, "Ditto, interleaved", engine="vectorized", compiled=False),
    "cloud": partial(conforming, "FedBC", cloud=Cloud(servers=2), clients_per_round=1),
    "two clients": partial(conforming, "FedBC", clients_per_round=2),
    "one client": partial(conforming, "FedBC", clients_per_round=1),
    "BatchNorm": batch_norm,
    "frozen FedBC": partial(frozen_base, FedBC),
    "frozen Ditto": partial(frozen_base, Ditto, engine="vectorized", compiled=False),
    "frozen, bias kept": partial(frozen_base, partial(Scaffold, keep_local="head.bias")),
    "many rows": many_rows,
    "fine-tuned": fine_tuned,
    "newcomers": newcomers,
    "metrics": metrics,
}


class AskedOnOneRank(Callback):
    """SIGTERM comes to the last rank alone, in round 2."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From the second round on."""
        if trainer.current_epoch == 1 and trainer.global_rank == trainer.world_size - 1:
            signal.raise_signal(signal.SIGTERM)


class IllOnOneRank(FedBC):
    """A step fails on the last rank alone, in round 2."""

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> Any:
        """Steps of the first round are counted."""
        if self.trained_before and rank_zero_only.rank > 0:
            raise ZeroDivisionError("this rank is ill")
        return super().training_step(batch, batch_idx)

    trained_before = False


class FallsIll(ServerCallback):
    """Not in the first round."""

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """From now on."""
        client.trained_before = True  # type: ignore[assignment]


def stopped(ranks: int) -> Found:
    """One rank is asked to stop: all do, after the same round."""
    client = FedBC(conformance_net(), **LOCAL)
    trainer = fit(client, conformance_data(), devices=ranks, rounds=9, callbacks=[AskedOnOneRank()])
    return {"rounds": trainer.loop.rounds_done, "interrupted": trainer.interrupted}


def failed(ranks: int) -> Found:
    """One rank fails: all end with its error, in the state of the last finished round."""
    options: dict[str, Any] = {"devices": ranks, "rounds": 4, "clients_per_round": 3, "engine": "sequential"}
    trainer = FederatedTrainer(
        **options, callbacks=[FallsIll()], enable_progress_bar=False, precision="64-true", initial_weights="net"
    )
    try:
        trainer.fit(IllOnOneRank(conformance_net(), **LOCAL), datamodule=conformance_data())
    except ZeroDivisionError as error:
        told = [str(error), *error.__notes__]
    return {"told": "\n".join(told), "rounds": trainer.loop.rounds_done, **found(trainer)}


def refused(**options: Any) -> str:
    """What a run says that cannot begin."""
    try:
        fit(FedBC(conformance_net(), **LOCAL), conformance_data(), **options)
    except FedlitError as error:
        return str(error)
    return "it began"


def watched(ranks: int, folder: Path) -> Found:
    """Lightning's callbacks, which agree over its strategy, and a time limit, which each rank has its own clock for."""
    saving = ModelCheckpoint(folder / "saved", monitor="global/acc", save_top_k=2, save_on_exception=True)
    stopping = EarlyStopping("global/loss", patience=1, min_delta=10.0)
    client = FedBC(conformance_net(), **LOCAL)
    trainer = fit(
        client, conformance_data(), devices=ranks, rounds=9, callbacks=[saving, stopping], max_time="00:01:00:00"
    )
    return {"rounds": trainer.loop.rounds_done, "saved": len(list((folder / "saved").iterdir()))}


def continued(ranks: int, folder: Path, rounds: int, states: str = "memory") -> Found:
    """So many rounds of the run in the folder."""
    client = Scaffold(conformance_net(), option="I", **LOCAL)
    run = folder / states / f"run-of-{rank_zero_only.rank}"  # the first rank's: other machines need not see it
    return found(fit(client, conformance_data(), devices=ranks, rounds=rounds, run=run, resume=True, states=states))


def play_in_two(ranks: int, folder: Path) -> Found:
    """Every run, and what can happen to several processes."""
    games = {name: play(devices=ranks) for name, play in RUNS.items()}
    return games | {
        "stopped": stopped(ranks),
        "failed": failed(ranks),
        "unlike": refused(devices=ranks, divergence_factor=100.0 + rank_zero_only.rank),
        "watched": watched(ranks, folder),
        "continued": continued(ranks, folder, rounds=2),
        "continued on disk": continued(ranks, folder, rounds=2, states="disk"),
        "taken": refused(devices=ranks, run=folder / "memory" / "run-of-0"),
        "profiled": conforming("FedBC", devices=ranks, profiler="simple"),
    }


def play_in_three(ranks: int, folder: Path) -> Found:
    """Every run; another one goes on."""
    games = {name: play(devices=ranks) for name, play in RUNS.items()}
    on_disk = continued(ranks, folder, rounds=6, states="disk")
    return games | {"continued": continued(ranks, folder, rounds=6), "continued on disk": on_disk}


def play_resnet(ranks: int, folder: Path) -> Found:
    """FedBN with ResNet-20 on pictures of 8x8."""
    torch.manual_seed(3)
    client = FedAvg(ResNet20(3, 3).double(), keep_local="norm", lr=0.1, batch_size=4, local_epochs=1)
    return found(fit(client, tiny_data(shape=(3, 8, 8)), devices=ranks, rounds=2))


GAMES: dict[str, Callable[[int, Path], Found]] = {
    "two": play_in_two,
    "three": play_in_three,
    "resnet": play_resnet,
}


def play(game: str, ranks: int, rank: int, folder: Path, environment: dict[str, str], said: Path) -> None:
    """One rank of a game, in a process of its own with the environment that torchrun gives it."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
    os.environ.clear()
    os.environ.update(
        environment | {name: str(value) for name, value in places.items()} | {"TORCHELASTIC_RUN_ID": "none"}
    )
    with said.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    rank_zero_only.rank = rank  # read from the environment when it was imported, before the fork
    torch.set_num_threads(1)
    torch.save(GAMES[game](ranks, folder), folder / f"{game}-{rank}-of-{ranks}.pt")
