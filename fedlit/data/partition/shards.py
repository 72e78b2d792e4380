"""Shards: sort by label, cut into equal shards, deal some to each client; the non-IID MNIST of FedAvg's paper.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (2017), section 3: 100
clients with 2 shards of 300 images each, so that most clients have two labels.
"""

import numpy as np

from fedlit import keys
from fedlit.data.partition.base import Labels, Partition, Parts, check_enough, check_whole
from fedlit.keys import Purpose


class Shards(Partition):
    """Shards of samples sorted by label, dealt at random. Every sample is handed out once.

    Args:
        num_clients: N: number of clients
        shards_per_client: shards of each client, and so roughly its number of labels at most
    """

    def __init__(self, *, num_clients: int = 100, shards_per_client: int = 2) -> None:
        check_whole(num_clients=num_clients, shards_per_client=shards_per_client)
        self.num_clients = num_clients
        self.shards_per_client = shards_per_client

    def assign(self, labels: Labels, seed: int) -> Parts:
        rows = labels.rows
        check_enough(rows, self.num_clients, shards_per_client=self.shards_per_client)
        shards = np.array_split(np.concatenate(labels.by_class(rows)), self.num_clients * self.shards_per_client)
        dealt = keys.generator(seed, Purpose.DATA).permutation(len(shards)).reshape(self.num_clients, -1)
        return Parts([np.concatenate([shards[shard] for shard in hand]) for hand in dealt])
