"""The hand-written loop in a process a core: what a researcher writes next, before taking any framework.

Every process has the data and a network. A round's clients are divided by their steps; each process leaves the weighted
sum of its clients' models in memory that all share, and the first one adds the sums.
"""

from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.multiprocessing
from serve import Work, end_with_parent
from torch import Tensor
from torch_net import Net, laid_out, train


class Peer:
    """The first process, which trains too."""

    version = f"hand-written loop in a process a core, torch {torch.__version__}"
    threads = 1

    def __init__(self, work: Work) -> None:
        torch.set_num_threads(1)
        self.work, self.processes = work, min(work.cores, len(work.cohorts[0]))
        self.data = laid_out(torch.from_numpy(work.x)), torch.from_numpy(work.y)
        self.net = Net(work.layers, work.weights)
        self.received = shared(flat(self.net))
        self.sums = shared(torch.zeros(self.processes, len(self.received)))
        self.others = [self.fork(rank) for rank in range(1, self.processes)]

    def fork(self, rank: int) -> Connection:
        """Another process, which shares the data and waits for its clients of a round."""
        context = torch.multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        context.Process(target=self.serve, args=(rank, theirs), daemon=True).start()
        return ours

    def serve(self, rank: int, first: Connection) -> None:
        """What another process does until it is ended."""
        end_with_parent()
        while True:
            self.add_up(rank, first.recv())
            first.send(None)

    def start(self, weights: Sequence[np.ndarray]) -> None:
        """The first weights again."""
        self.received.copy_(flat(Net(self.work.layers, weights)))

    def round(self, cohort: Sequence[int]) -> int:
        """One round, divided among the processes."""
        shares = self.divided(cohort)
        for other, share in zip(self.others, shares[1:], strict=True):
            other.send(share)
        self.add_up(0, shares[0])
        for other in self.others:
            other.recv()
        torch.div(self.sums.sum(0), sum(len(self.work.clients[k]) for k in cohort), out=self.received)
        return sum(self.work.steps_of(k) for k in cohort)

    def divided(self, cohort: Sequence[int]) -> list[list[int]]:
        """Large clients first, each to the process that has the fewest steps."""
        shares: list[list[int]] = [[] for _ in range(self.processes)]
        for client in sorted(cohort, key=self.work.steps_of, reverse=True):
            min(shares, key=lambda share: sum(self.work.steps_of(k) for k in share)).append(client)
        return shares

    def add_up(self, rank: int, clients: Sequence[int]) -> None:
        """Train these clients; the sum of their models, each counted by its rows."""
        total = self.sums[rank].zero_()
        for client in clients:
            load(self.net, self.received)
            rows = torch.from_numpy(self.work.clients[client])
            train(self.net, self.work, self.data, rows)
            total.add_(flat(self.net), alpha=len(rows))

    def weights(self) -> list[np.ndarray]:
        """The server's."""
        load(self.net, self.received)
        return [p.detach().numpy() for p in self.net.parameters()]


def shared(values: Tensor) -> Tensor:
    """In memory that processes forked from this one see too."""
    values.share_memory_()  # type: ignore[no-untyped-call]  # torch's is untyped
    return values


def flat(net: Net) -> Tensor:
    """All weights in a row, a copy."""
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def load(net: Net, row: Tensor) -> None:
    """Weights that were in a row."""
    with torch.no_grad():
        for p, values in zip(net.parameters(), torch.split(row, [p.numel() for p in net.parameters()]), strict=True):
            p.copy_(values.view_as(p))
