"""Federated averaging as a good researcher writes it by hand in plain PyTorch: what the engines are compared with.

No data loader, the whole data set in memory, each epoch shuffled by one gather and cut into views. It knows nothing of
fedlit's clients and engines.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def fedavg_round(
    net: nn.Module, x: Tensor, y: Tensor, cohort: Sequence[Tensor], *, lr: float, batch_size: int, local_epochs: int
) -> int:
    """One round: moves `net` to the average of the clients' models and returns the local steps that were taken.

    Args:
        net: the server's model.
        x: samples of all clients (rows, ...).
        y: their labels (rows,).
        cohort: row numbers of each client that trains.
        lr: learning rate of the local steps.
        batch_size: rows of a mini-batch.
        local_epochs: passes over a client's rows.
    """
    received = {name: value.clone() for name, value in net.state_dict().items()}
    models, steps = [], 0
    for rows in cohort:
        net.load_state_dict(received)
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        for _ in range(local_epochs):
            shuffled = rows[torch.randperm(len(rows))]
            batches = zip(torch.split(x[shuffled], batch_size), torch.split(y[shuffled], batch_size), strict=True)
            for inputs, labels in batches:
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]  # torch's is untyped
                optimizer.step()
                steps += 1
        models.append({name: value.clone() for name, value in net.state_dict().items()})
    sizes = [len(rows) for rows in cohort]
    net.load_state_dict({name: weighted_average([model[name] for model in models], sizes) for name in received})
    return steps


def weighted_average(values: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The mean of the clients' tensors, each counted by its samples."""
    weights = torch.tensor(sizes, dtype=values[0].dtype) / sum(sizes)
    mean: Tensor = torch.tensordot(weights, torch.stack(list(values)), dims=1)
    return mean
