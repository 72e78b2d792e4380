"""The work that is measured: networks with generated data. What is learned from them does not matter here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from benchmarks import handwritten
from fedlit.algorithms.fedavg import FedAvg
from fedlit.algorithms.perfedavg import PerFedAvg
from fedlit.algorithms.pfedme import PFedMe
from fedlit.client.base import Client
from fedlit.data.tensor import TensorData
from fedlit.models import MLP, LeNet, ResNet20, Softmax


@dataclass(frozen=True)
class Workload:
    """One algorithm and network on clients of fixed sizes, and the same by hand."""

    name: str
    title: str
    net: Callable[[], nn.Module]
    sample_shape: tuple[int, ...]
    sizes: tuple[int, ...]
    """Training samples of each client."""
    batch_size: int
    local_epochs: int
    clients_per_round: int = 10
    num_classes: int = 10
    lr: float = 0.01
    algorithm: type[Client] = FedAvg
    by_hand: Callable[..., handwritten.LocalTraining] = handwritten.sgd
    options: dict[str, Any] = field(default_factory=dict)
    """Of the algorithm, by the same names in `by_hand`."""
    with_extras: bool = False
    """Whether FedBC and a whole `fit` are measured too."""
    with_one_worker: bool = True
    """Whether the vectorized engine is measured with one worker too, beside all cores."""
    servers: int = 1
    """Above 1, what is measured is the same cohort as that of one server, and of so many on a clock."""

    def data(self, *, tested: bool = False) -> TensorData:
        """Random samples, all of them for training; `tested` adds a tenth of the rows for testing."""
        # n + n // 9 rows, of which TensorData keeps floor(0.1 rows) for testing, leave n for training.
        rows = np.array([size + size // 9 if tested else size for size in self.sizes])
        rng = np.random.default_rng(0)
        return TensorData(
            rng.standard_normal((rows.sum(), *self.sample_shape), dtype=np.float32),
            rng.integers(self.num_classes, size=rows.sum()),
            np.repeat(np.arange(len(rows)), rows),
            num_classes=self.num_classes,
            test_fraction=0.1 if tested else 0.0,
            val_fraction=0.0,
        )

    @property
    def local(self) -> dict[str, Any]:
        """What every client takes."""
        return {"lr": self.lr, "batch_size": self.batch_size, "local_epochs": self.local_epochs}

    def client(self, algorithm: type[Client] | None = None) -> Client:
        """The workload's algorithm, or another one, with this workload's network and local options."""
        if algorithm is None:
            return self.algorithm(self.net(), **self.local, **self.options)
        return algorithm(self.net(), **self.local)

    def local_training(self) -> handwritten.LocalTraining:
        """The client by hand."""
        return self.by_hand(**self.local, **self.options)


def log_normal_sizes(clients: int) -> tuple[int, ...]:
    """Log-normal (4, 1) plus 50: many small clients and a few large ones, the same in every run."""
    return tuple(int(size) + 50 for size in np.random.default_rng(0).lognormal(4, 1, clients))


def second_order(**given: Any) -> Workload:
    """A client that solves something inside its step, on a small network."""
    return Workload(
        net=lambda: MLP(60, (20,), 10),
        sample_shape=(60,),
        sizes=log_normal_sizes(100),
        batch_size=10,
        local_epochs=5,
        **given,
    )


def mnist_cnn() -> nn.Module:
    """The small network of many MNIST examples: 1-10-20 filters of 5x5, pools, one hidden layer."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="W1",
            title="softmax regression 60-10, 100 clients of log-normal sizes, 10 a round, E = 5, batch 10",
            net=lambda: Softmax(60, 10),
            sample_shape=(60,),
            sizes=log_normal_sizes(100),
            batch_size=10,
            local_epochs=5,
            with_extras=True,
        ),
        Workload(
            name="W2",
            title="MLP 784-128-10, 20 clients of 2,400, 10 a round, E = 1, batch 32",
            net=lambda: MLP(784, (128,), 10),
            sample_shape=(784,),
            sizes=(2400,) * 20,
            batch_size=32,
            local_epochs=1,
        ),
        Workload(
            name="W3",
            title="LeNet 3x32x32, 20 clients of 2,048, 10 a round, E = 1, batch 64",
            net=lambda: LeNet(3, 10),
            sample_shape=(3, 32, 32),
            sizes=(2048,) * 20,
            batch_size=64,
            local_epochs=1,
        ),
        second_order(
            name="W4",
            title="exact Per-FedAvg (independent batches), MLP 60-20-10, clients of W1, E = 5, batch 10",
            algorithm=PerFedAvg,
            by_hand=handwritten.perfedavg,
            options={"adapt_lr": 0.01},
        ),
        second_order(
            name="W5",
            title="pFedMe with K = 5, MLP 60-20-10, clients of W1, E = 5, batch 10",
            algorithm=PFedMe,
            by_hand=handwritten.pfedme,
            options={"prox": 15.0, "personal_lr": 0.05, "inner_steps": 5},
        ),
        Workload(
            name="W6",
            title="W1's network and local work, 1,000 clients, all in every round: one server beside 100 with 10 each",
            net=lambda: Softmax(60, 10),
            sample_shape=(60,),
            sizes=log_normal_sizes(1000),
            batch_size=10,
            local_epochs=5,
            clients_per_round=1000,
            servers=100,
        ),
        Workload(
            name="W7",
            title="MNIST CNN 1-10-20 k5, 1x28x28, 20 clients of 2,400, 10 a round, E = 1, batch 32",
            net=mnist_cnn,
            sample_shape=(1, 28, 28),
            sizes=(2400,) * 20,
            batch_size=32,
            local_epochs=1,
        ),
        Workload(
            name="W8",
            title="MLP 784-200-10 with dropout 0.5, 20 clients of 2,400, 10 a round, E = 1, batch 32",
            net=lambda: MLP(784, (200,), 10, dropout=0.5),
            sample_shape=(784,),
            sizes=(2400,) * 20,
            batch_size=32,
            local_epochs=1,
        ),
        Workload(
            name="W9",
            title="ResNet-20 with BatchNorm, 3x32x32, 20 clients of 250, 4 a round, E = 1, batch 32",
            net=ResNet20,
            sample_shape=(3, 32, 32),
            sizes=(250,) * 20,
            batch_size=32,
            local_epochs=1,
            clients_per_round=4,
        ),
    )
}
