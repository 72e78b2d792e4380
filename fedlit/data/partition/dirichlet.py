"""Dirichlet: each class is cut among all clients by a draw from Dir(α); the smaller α, the fewer classes per client.

Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution (2019), in the form that is common today
(Yurochkin et al. 2019): one draw per class over the clients.

The usual code draws again until every client has enough, which never ends for a small α or many clients. Here a client
that got too few samples is given more, one by one: each comes from the client that is the largest at that moment, from
its most frequent class. All other counts stay as drawn.
"""

import heapq

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedlit import keys
from fedlit.data.partition.base import Labels, Partition, Parts, check_enough, check_whole, deal
from fedlit.errors import require
from fedlit.keys import Purpose

_LARGEST_ALPHA = 1e6  # the shares of a class then differ by a thousandth; nobody needs less


class Dirichlet(Partition):
    """Each class cut among all clients by Dir(α). Every sample is handed out once.

    Args:
        alpha: α: 0.1 gives most clients a few classes, 100 gives all nearly the same mixture
        num_clients: N: number of clients
        min_samples: samples that every client has at least
    """

    def __init__(self, *, alpha: float = 0.5, num_clients: int = 20, min_samples: int = 1) -> None:
        check_alpha(alpha)
        check_whole(num_clients=num_clients, min_samples=min_samples)
        self.alpha = alpha
        self.num_clients = num_clients
        self.min_samples = min_samples

    def assign(self, labels: Labels, seed: int) -> Parts:
        rows = labels.rows
        check_enough(rows, self.num_clients, min_samples=self.min_samples)
        generator = keys.generator(seed, Purpose.DATA)
        stock = [generator.permutation(rows_of_class) for rows_of_class in labels.by_class(rows)]
        drawn = [cut(len(shuffled), self.num_clients, self.alpha, generator) for shuffled in stock]
        return Parts(deal(stock, raised(np.stack(drawn, axis=1), self.min_samples)))


def cut(n: int, parts: int, alpha: float, generator: Generator) -> NDArray[np.int64]:
    """(parts,): n samples cut by one draw from Dir(α), each end rounded to the nearest sample."""
    ends = np.rint(np.cumsum(generator.dirichlet(np.full(parts, alpha))) * n).astype(np.int64)
    ends[-1] = n
    return np.diff(ends, prepend=0)


def raised(counts: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """counts (clients, classes), changed so that every client has at least `least`; class totals stay."""
    counts = counts.copy()
    sizes = counts.sum(1)
    donors = [(-int(size), client) for client, size in enumerate(sizes) if size > least]
    heapq.heapify(donors)
    for client in np.flatnonzero(sizes < least):
        for _ in range(least - sizes[client]):
            size, donor = donors[0]
            label = counts[donor].argmax()
            counts[donor, label] -= 1
            counts[client, label] += 1
            heapq.heapreplace(donors, (size + 1, donor))
    return counts


def check_alpha(alpha: float) -> None:
    """Refuse an α for which there is no Dirichlet distribution."""
    require(
        0 < alpha <= _LARGEST_ALPHA,
        f"data.partition.alpha is {alpha}. Set it above 0 and to {_LARGEST_ALPHA:.0f} at most, such as 0.5.",
    )
