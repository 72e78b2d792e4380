"""Federated rounds as a good researcher writes them by hand in plain PyTorch: what the engines are compared with.

No data loader, the whole data set in memory, each epoch shuffled by one gather and cut into views. It knows nothing of
fedlit's clients and engines.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

Data = tuple[Tensor, Tensor]
"""Samples and labels, of all clients or of a mini-batch."""
LocalTraining = Callable[[nn.Module, Data, Tensor], int]
"""Trains the network in place on these rows of the data; returns the steps that were taken."""


def federated_round(
    net: nn.Module, data: Data, cohort: Sequence[Tensor], train: LocalTraining, *, by_size: bool
) -> int:
    """One round: moves `net` to the average of the clients' models and returns the local steps that were taken.

    Args:
        net: the server's model.
        data: samples and labels of all clients.
        cohort: row numbers of each client that trains.
        train: what a client does.
        by_size: whether a client counts by its samples; else all count the same.
    """
    received = {name: value.clone() for name, value in net.state_dict().items()}
    models, steps = [], 0
    for rows in cohort:
        net.load_state_dict(received)
        steps += train(net, data, rows)
        models.append({name: value.clone() for name, value in net.state_dict().items()})
    counts = [len(rows) if by_size else 1 for rows in cohort]
    net.load_state_dict({name: weighted_average([model[name] for model in models], counts) for name in received})
    return steps


def sgd(*, lr: float, batch_size: int, local_epochs: int) -> LocalTraining:
    """FedAvg's client."""

    def train(net: nn.Module, data: Data, rows: Tensor) -> int:
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        steps = 0
        for x, y in epochs(data, rows, batch_size, local_epochs):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]  # torch's is untyped
            optimizer.step()
            steps += 1
        return steps

    return train


def perfedavg(*, lr: float, batch_size: int, local_epochs: int, adapt_lr: float) -> LocalTraining:
    """Exact Per-FedAvg's client: three independent batches a step, the Hessian by a second differentiation."""

    def train(net: nn.Module, data: Data, rows: Tensor) -> int:
        params: dict[str, Tensor] = dict(net.named_parameters())
        streams = [epochs(data, rows, batch_size, local_epochs) for _ in range(3)]
        steps = 0
        for first, second, third in zip(*streams, strict=True):
            slopes = gradient(net, params, first)
            moved = (p - adapt_lr * g for p, g in zip(params.values(), slopes, strict=True))
            ahead = {name: value.detach().requires_grad_() for name, value in zip(params, moved, strict=True)}
            u = gradient(net, ahead, second)
            slopes = gradient(net, params, third, create_graph=True)
            curved = torch.autograd.grad(slopes, list(params.values()), grad_outputs=u)
            with torch.no_grad():
                for p, outer, hessian_u in zip(params.values(), u, curved, strict=True):
                    p.sub_(outer - adapt_lr * hessian_u, alpha=lr)
            steps += 1
        return steps

    return train


def pfedme(
    *, lr: float, batch_size: int, local_epochs: int, prox: float, personal_lr: float, inner_steps: int
) -> LocalTraining:
    """pFedMe's client: `inner_steps` on one batch bring theta near the prox of w, then w moves towards theta."""

    def train(net: nn.Module, data: Data, rows: Tensor) -> int:
        theta = list(net.parameters())  # the network holds theta while training, and w at the end
        w = [p.detach().clone() for p in theta]
        steps = 0
        for x, y in epochs(data, rows, batch_size, local_epochs):
            for _ in range(inner_steps):
                slopes = torch.autograd.grad(F.cross_entropy(net(x), y), theta)
                with torch.no_grad():
                    for p, slope, anchor in zip(theta, slopes, w, strict=True):
                        p.sub_(slope + prox * (p - anchor), alpha=personal_lr)
            with torch.no_grad():
                for p, anchor in zip(theta, w, strict=True):
                    anchor.sub_(anchor - p, alpha=lr * prox)
            steps += 1
        with torch.no_grad():
            for p, anchor in zip(theta, w, strict=True):
                p.copy_(anchor)
        return steps

    return train


def gradient(net: nn.Module, params: dict[str, Tensor], batch: Data, create_graph: bool = False) -> Sequence[Tensor]:
    """Of the mean cross-entropy on a batch, with respect to these parameters."""
    x, y = batch
    loss = F.cross_entropy(functional_call(net, params, (x,)), y)
    return torch.autograd.grad(loss, list(params.values()), create_graph=create_graph)


def epochs(data: Data, rows: Tensor, batch_size: int, count: int) -> Iterator[Data]:
    """Mini-batches of `count` passes over a client's rows, each shuffled anew."""
    x, y = data
    for _ in range(count):
        shuffled = rows[torch.randperm(len(rows))]
        yield from zip(torch.split(x[shuffled], batch_size), torch.split(y[shuffled], batch_size), strict=True)


def weighted_average(values: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """The mean of the clients' tensors, each counted so many times."""
    weights = torch.tensor(counts, dtype=values[0].dtype) / sum(counts)
    mean: Tensor = torch.tensordot(weights, torch.stack(list(values)).to(weights.dtype), dims=1)  # BatchNorm counts
    return mean
