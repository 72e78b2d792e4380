"""Diversity: each client has training images of d labels, and is tested on all test images of these labels.

FedBCD: section 5, and its public code: 100 clients (10 servers with 10 each), d = 3 or 6, 600 (MNIST) or 500
(CIFAR-10) training images each.

    labels    each client draws d labels
    train     it draws its images among the training images with these labels, also those that others have drawn
    test      all of the set's own test images with these labels

So clients share images, and many images are on no client. With `disjoint`, a training image has at most one client.
"""

import numpy as np

from fedlit import keys
from fedlit.data.partition.base import Labels, Partition, Parts, RowNumbers, check_classes, check_whole
from fedlit.errors import DataError
from fedlit.keys import Purpose


class Diversity(Partition):
    """A few labels per client, training images drawn among them, tests with the same labels. Defaults: FedBCD's MNIST.

    Args:
        num_clients: N: number of clients
        classes_per_client: d, the diversity: labels of each client; 3 or 6 in FedBCD
        samples_per_client: training samples of each client; 600 for MNIST and 500 for CIFAR-10 in FedBCD
        disjoint: let no two clients have the same training sample
    """

    def __init__(
        self,
        *,
        num_clients: int = 100,
        classes_per_client: int = 3,
        samples_per_client: int = 600,
        disjoint: bool = False,
    ) -> None:
        check_whole(
            num_clients=num_clients, classes_per_client=classes_per_client, samples_per_client=samples_per_client
        )
        self.num_clients = num_clients
        self.classes_per_client = classes_per_client
        self.samples_per_client = samples_per_client
        self.disjoint = disjoint

    def assign(self, labels: Labels, seed: int) -> Parts:
        if not len(labels.official_test):
            raise DataError(
                "Diversity tests each client on the data set's own test samples, but this set has none. "
                "Use another data.partition, such as ClassesPerClient."
            )
        free = labels.official_train
        known = np.unique(labels.y[free])
        check_classes(self.classes_per_client, len(known))
        clients: list[RowNumbers] = []
        tests: list[RowNumbers] = []
        for client in range(self.num_clients):
            generator = keys.generator(seed, Purpose.DATA, client=client)
            chosen = generator.choice(known, self.classes_per_client, replace=False)
            train = self._draw(client, chosen, with_labels(labels, free, chosen), generator)
            clients.append(train)
            tests.append(with_labels(labels, labels.official_test, chosen))
            if self.disjoint:
                free = free[~np.isin(free, train)]
        return Parts(clients, tests)

    def _draw(self, client: int, chosen: RowNumbers, pool: RowNumbers, generator: np.random.Generator) -> RowNumbers:
        if len(pool) < self.samples_per_client:
            raise DataError(
                f"Client {client} draws {self.samples_per_client} training samples with labels "
                f"{', '.join(map(str, sorted(chosen)))}, but only {len(pool)} are left. Lower "
                "data.partition.samples_per_client or num_clients, or raise classes_per_client"
                f"{', or set disjoint to false' if self.disjoint else ''}."
            )
        return generator.choice(pool, self.samples_per_client, replace=False)


def with_labels(labels: Labels, rows: RowNumbers, chosen: RowNumbers) -> RowNumbers:
    """The rows that have one of these labels."""
    return rows[np.isin(labels.y[rows], chosen)]
