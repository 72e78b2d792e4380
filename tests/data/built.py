"""What tests of the data sets share: questions to a data module that has been set up, and one round of training."""

from typing import Any

import numpy as np
from torch import nn

from fedlit import FedAvg, FederatedTrainer
from fedlit.data.base import FederatedDataModule


def sizes(data: FederatedDataModule) -> dict[str, tuple[int, int, int]]:
    """group -> (train, val, test) of its one client."""
    everyone = data.everyone
    parts = zip(everyone.train, everyone.val, everyone.test, strict=True)
    return dict(zip(data.groups, [(len(train), len(val), len(test)) for train, val, test in parts], strict=True))


def rows_of(data: FederatedDataModule, client: int) -> np.ndarray:
    """All row numbers of a client in ascending order, those in two parts twice."""
    everyone = data.everyone
    return np.sort(np.concatenate([part[client].numpy() for part in (everyone.train, everyone.val, everyone.test)]))


def has_disjoint_parts(data: FederatedDataModule) -> bool:
    """Whether no row is in two parts, of whichever clients."""
    rows = np.concatenate([rows_of(data, client) for client in range(data.num_clients)])
    return len(np.unique(rows)) == len(rows)


def fit(data: FederatedDataModule, net: nn.Module, **options: Any) -> FederatedTrainer:
    """One round of FedAvg with two clients, one after the other."""
    trainer = FederatedTrainer(rounds=1, clients_per_round=2, engine="sequential", enable_progress_bar=False, **options)
    trainer.fit(FedAvg(net, lr=0.01, batch_size=10, local_epochs=1), datamodule=data)
    return trainer
