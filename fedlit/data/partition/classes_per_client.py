"""ClassesPerClient: client u holds the labels u, u + 1, ... (modulo the number of classes); the MNIST of pFedMe.

pFedMe: Personalized Federated Learning with Moreau Envelopes, section 5.1: 70,000 images, 20 clients, 2 labels each,
sizes in [1165, 3834]. The paper does not say how they were drawn.

    labels    client u holds (u + j) mod L, j = 0 .. C - 1; so each MNIST label is on 4 of 20 clients
    sizes     each label's samples are cut among its clients by a draw from Dir(α), α = 4
    range     everything is drawn again until all sizes are in the range (one draw in seven)

The range is that of the training samples, three quarters of a client's. Options speak of all samples: 1,553 to 5,112 is
1,165 to 3,834 for training with data.test_fraction 0.25. With fewer than L - C + 1 clients, some labels are on no
client, and their samples are left out.

`as_published` is what the authors' generator did when the paper was written (data/Mnist/generate_niid_20users.py,
May 2020). With data.seed 1 its smallest and largest client have 1,165 and 3,834 training samples, as the paper prints.
It always takes a label's first samples, for every client of that label. So clients train on what others are tested on,
and accuracies are too high. Use it to compare with the paper's table, and the default otherwise.

    pieces    a label's n samples are cut among its c clients: c - 1 times a piece of randint(n / (c + 1), n / 2) of
              what is left, then the rest
    sizes     client u has the pieces C u, C u + 1, ... of the list of all first pieces by label, all second ones, ...
    samples   the first ones of its label, as many as its piece; all but the label's first client skip the very first
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedlit import keys
from fedlit.data.partition.base import (
    Labels,
    Partition,
    Parts,
    RowNumbers,
    check_classes,
    check_enough,
    check_whole,
    deal,
)
from fedlit.data.partition.dirichlet import check_alpha, cut
from fedlit.errors import DataError, require
from fedlit.keys import Purpose

_MOST_DRAWS = 1000


class ClassesPerClient(Partition):
    """A fixed number of neighbouring labels per client, and sizes in a range. Defaults: the MNIST of pFedMe.

    Args:
        num_clients: N: number of clients
        classes_per_client: C: labels of each client
        alpha: α of the Dirichlet draw that cuts each label's samples among its clients; the larger, the more equal
        size_min: fewest samples of a client, tests included
        size_max: most samples of a client, tests included
        as_published: the clients of the pFedMe authors' generator (with data.seed 1). They share their samples, so that
            some are tested on what others train on; the range and alpha are not used
    """

    def __init__(
        self,
        *,
        num_clients: int = 20,
        classes_per_client: int = 2,
        alpha: float = 4.0,
        size_min: int = 1553,
        size_max: int = 5112,
        as_published: bool = False,
    ) -> None:
        check_whole(num_clients=num_clients, classes_per_client=classes_per_client, size_min=size_min)
        check_alpha(alpha)
        require(
            size_max >= size_min,
            f"data.partition.size_max is {size_max}, below size_min {size_min}. Set it to {size_min} or more.",
        )
        self.num_clients = num_clients
        self.classes_per_client = classes_per_client
        self.alpha = alpha
        self.size_min = size_min
        self.size_max = size_max
        self.as_published = as_published

    def assign(self, labels: Labels, seed: int) -> Parts:
        rows = labels.rows
        check_enough(rows, self.num_clients)
        by_class = labels.by_class(rows)
        check_classes(self.classes_per_client, len(by_class))
        if self.as_published:
            return Parts(self._published(by_class, np.random.RandomState(seed)))
        generator = keys.generator(seed, Purpose.DATA)
        stock = [generator.permutation(rows_of_class) for rows_of_class in by_class]
        return Parts(deal(stock, self._counts([len(rows_of_class) for rows_of_class in stock], generator)))

    def _counts(self, amounts: list[int], generator: Generator) -> NDArray[np.int64]:
        """(clients, classes): the first draw in which all sizes are in the range."""
        for _ in range(_MOST_DRAWS):
            counts = self._draw(amounts, generator)
            sizes = counts.sum(1)
            if self.size_min <= sizes.min() and sizes.max() <= self.size_max:
                return counts
        raise DataError(
            f"None of {_MOST_DRAWS} draws gave {self.num_clients} clients with {self.size_min} to {self.size_max} "
            f"samples each; the last one had {sizes.min()} to {sizes.max()}, {sizes.mean():.0f} on average. Widen "
            "data.partition.size_min and size_max around that, change num_clients, or raise alpha for more equal sizes."
        )

    def _draw(self, amounts: list[int], generator: Generator) -> NDArray[np.int64]:
        counts = np.zeros((self.num_clients, len(amounts)), dtype=np.int64)
        clients = np.arange(self.num_clients)
        for label, amount in enumerate(amounts):
            holders = clients[(label - clients) % len(amounts) < self.classes_per_client]
            if len(holders):
                counts[holders, label] = cut(amount, len(holders), self.alpha, generator)
        return counts

    # ---- as published ----------------------------------------------------------------------------------------------

    def _published(self, stock: list[RowNumbers], draw: np.random.RandomState) -> list[RowNumbers]:
        """The rows of each client: the first ones of its labels."""
        if self.num_clients % len(stock):
            raise DataError(
                f"data.partition.as_published needs every label on as many clients, but {self.num_clients} clients are "
                f"not a multiple of {len(stock)} classes. Change data.partition.num_clients."
            )
        holders = self.num_clients * self.classes_per_client // len(stock)
        pieces = np.array([_pieces(len(rows), holders, draw) for rows in stock]).T
        seen = [0] * len(stock)
        clients = []
        for client, sizes in enumerate(pieces.reshape(self.num_clients, self.classes_per_client)):
            labels = [(client + j) % len(stock) for j in range(self.classes_per_client)]
            clients.append(
                np.concatenate([stock[label][seen[label] : n] for label, n in zip(labels, sizes, strict=True)])
            )
            for label in labels:
                seen[label] = 1
        return clients


def _pieces(amount: int, count: int, draw: np.random.RandomState) -> list[int]:
    """`count` whole numbers with the sum `amount`, by the authors' rule."""
    pieces = []
    for _ in range(count - 1):
        least, most = amount // (count + 1), amount // 2
        if least < 2:  # a client may skip the first sample of its piece
            raise DataError(
                "data.partition.as_published cuts a label's samples by the authors' rule, and one has too few of them "
                f"for {count} clients. Use more data, or lower data.partition.num_clients."
            )
        pieces.append(int(draw.randint(least, most)))
        amount -= pieces[-1]
    return [*pieces, amount]
