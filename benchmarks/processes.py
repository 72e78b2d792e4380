"""Two processes against one: `python -m benchmarks.processes`. Client steps per second, in turns, in one command.

One process runs on one core, and on all of them, while the other ranks wait; then all ranks divide the same rounds.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np
from torch import Tensor, nn

from benchmarks.workloads import WORKLOADS
from fedlit.algorithms.fedavg import FedAvg
from fedlit.data.tensor import TensorData
from fedlit.models import CharLSTM, ResNet20
from fedlit.trainer.progress_bar import is_first_rank
from fedlit.trainer.trainer import FederatedTrainer


@dataclass(frozen=True)
class Work:
    """A net and batches that several processes are worth."""

    net: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_size: int
    classes: int = 10
    clients: int = 8
    rows: int = 256
    """Training samples of each client."""

    def data(self) -> TensorData:
        """Random samples; for letters they are whole numbers."""
        rng = np.random.default_rng(0)
        count = self.clients * self.rows
        x = rng.integers(self.classes, size=(count, *self.shape)).astype(np.float32)
        owners = np.repeat(np.arange(self.clients), self.rows)
        y = rng.integers(self.classes, size=count)
        return TensorData(x, y, owners, num_classes=self.classes, test_fraction=0.0, val_fraction=0.0)


class Letters(CharLSTM):
    """Takes its letters as the floating-point numbers that TensorData holds."""

    def forward(self, x: Tensor) -> Tensor:
        """As CharLSTM's."""
        return super().forward(x.long())


WORK = {
    "ResNet-20": Work(lambda: ResNet20(3, 10), (3, 32, 32), batch_size=32, rows=64),
    "CharLSTM": Work(lambda: Letters(80), (80,), batch_size=10, classes=80, rows=20),
    "W3": Work(WORKLOADS["W3"].net, (3, 32, 32), batch_size=64, rows=1024),
}


def steps_per_s(work: Work, rounds: int, devices: int = 1) -> float:
    """Client steps in a second of the rounds after the first, which warms up or compiles."""
    trainer = FederatedTrainer(
        rounds=rounds + 1,
        clients_per_round=work.clients,
        eval_every=rounds + 2,
        devices=devices,
        enable_progress_bar=False,
    )
    trainer.fit(FedAvg(work.net(), lr=0.01, batch_size=work.batch_size), datamodule=work.data())
    return median(row["train/steps"] / row["time/train_s"] for row in trainer.loop.history.rows[2:])


@contextmanager
def one_core() -> Iterator[None]:
    """This process on one core alone, so that nothing in it has two threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> None:
    """A line for each work and repetition, told by the first rank."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each entry")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions, in turns")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", action="append", choices=WORK, help="what to measure, repeatable; all unless given")
    args = parser.parse_args()
    for name in (args.work or [*WORK]) * args.repeats:
        work = WORK[name]
        alone = spread = 0.0
        if is_first_rank():
            with one_core():
                alone = steps_per_s(work, args.rounds)
            spread = steps_per_s(work, args.rounds)
        together = steps_per_s(work, args.rounds, args.processes)
        if is_first_rank():
            sys.stdout.write(
                f"{name}: one process on one core {alone:.1f} steps/s, on all cores {spread / alone:.2f} times that, "
                f"{args.processes} processes {together / alone:.2f} times\n"
            )


if __name__ == "__main__":
    main()
