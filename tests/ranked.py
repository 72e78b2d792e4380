"""What tests let several processes play: `python -m tests.ranked GAME RANKS FOLDER`.

Starting them costs seconds, so one start plays many runs. Every rank leaves what it found in the folder.
"""

import fedlit as fedlit  # isort: skip  # first: it lets Lightning be imported beside a CPU-only torch

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor, nn

from fedlit import Client, FedAvg, FedBC, FederatedTrainer, TensorData
from fedlit.conformance.entries import ENTRIES
from fedlit.conformance.problem import LOCAL, everything
from fedlit.conformance.problem import tiny_data as conformance_data
from fedlit.conformance.problem import tiny_net as conformance_net
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


def many_rows(**options: Any) -> Found:
    """More rows than a chunk of the evaluation, so that chunks are divided; personal models that are adapted."""
    sizes = (400, 900, 1500, 2100)
    client = FedBC(conformance_net(), lr=0.05, batch_size=100, l2=0.01)
    extra = ("global/train_loss", "global/grad_norm2_uniform")
    return found(fit(client, tiny_data(sizes), finetune_lr=0.1, extra_metrics=extra, rounds=2, **options))


RUNS: dict[str, Callable[..., Found]] = {
    **{
        name: partial(conforming, name)
        for name in ("FedBC", "SCAFFOLD I", "pFedMe", "FedBCD", "FedBCD-I", "Exp-α", "FedAdam", "FedProx, stragglers")
    },
    "vectorized SCAFFOLD": partial(conforming, "SCAFFOLD I", engine="vectorized", compiled=False),
    "vectorized Ditto": partial(conforming, "Ditto, interleaved", engine="vectorized", compiled=False),
    "BatchNorm": batch_norm,
    "many rows": many_rows,
}


def play_runs(ranks: int, folder: Path) -> Found:
    """Each run once."""
    return {name: play(devices=ranks) for name, play in RUNS.items()}


GAMES: dict[str, Callable[[int, Path], Found]] = {"runs": play_runs}


def main() -> None:
    """Play, and leave what was found under this rank's number."""
    game, ranks, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    result = GAMES[game](ranks, folder)
    torch.save(result, folder / f"{game}-{rank_zero_only.rank}-of-{ranks}.pt")


if __name__ == "__main__":
    main()
