"""ClassesPerClient: client u holds the labels u, u + 1, ... (modulo the number of classes); the MNIST of pFedMe.

pFedMe: Personalized Federated Learning with Moreau Envelopes, section 5.1: 70,000 images, 20 clients, 2 labels each,
sizes in [1165, 3834]. How they were drawn is not said, and the public generator gives other numbers.

    labels    client u holds (u + j) mod L, j = 0 .. C - 1; so each MNIST label is on 4 of 20 clients
    sizes     each label's samples are cut among its clients by a draw from Dir(α), α = 4
    range     all is drawn again until every size lies in the range (one draw in seven does)

Readings: the range is that of the training samples, three quarters of a client's: 2,625 on average, which is its
middle, where all samples would be 3,500. Options speak of all samples: 1,553 to 5,112 is 1,165 to 3,834 for training
with data.test_fraction 0.25. Not verified against the authors' file. With fewer than L - C + 1 clients, some labels
are on no client, and their samples are left out.
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedlit import keys
from fedlit.data.partition.base import Labels, Partition, Parts, check_classes, check_enough, check_whole, deal
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
    """

    def __init__(
        self,
        *,
        num_clients: int = 20,
        classes_per_client: int = 2,
        alpha: float = 4.0,
        size_min: int = 1553,
        size_max: int = 5112,
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

    def assign(self, labels: Labels, seed: int) -> Parts:
        rows = labels.rows
        check_enough(rows, self.num_clients)
        generator = keys.generator(seed, Purpose.DATA)
        stock = [generator.permutation(own) for own in labels.by_class(rows)]
        check_classes(self.classes_per_client, len(stock))
        return Parts(deal(stock, self._counts([len(own) for own in stock], generator)))

    def _counts(self, amounts: list[int], generator: Generator) -> NDArray[np.int64]:
        """(clients, classes), the first draw whose sizes all lie in the range."""
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
