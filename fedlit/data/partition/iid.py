"""IID: all clients' samples have the same distribution; sizes differ by one at most."""

import numpy as np

from fedlit import keys
from fedlit.data.partition.base import Labels, Partition, Parts, check_enough, check_whole
from fedlit.keys import Purpose


class IID(Partition):
    """Shuffle all samples and cut them in equal parts. Every sample is handed out once.

    Args:
        num_clients: N: number of clients
    """

    def __init__(self, *, num_clients: int = 20) -> None:
        check_whole(num_clients=num_clients)
        self.num_clients = num_clients

    def assign(self, labels: Labels, seed: int) -> Parts:
        rows = labels.rows
        check_enough(rows, self.num_clients)
        return Parts(np.array_split(keys.generator(seed, Purpose.DATA).permutation(rows), self.num_clients))
