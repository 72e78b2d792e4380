"""PowerLaw: sizes that grow by a constant factor, and a few classes each; the partition of FedBC.

FedBC: Federated Learning Beyond Consensus, appendix D.3, tables 4 and 5, after Stripelis & Ambite (2020), and the
paper's public code. The set's training and test part are merged: M = 70,000 (MNIST) or 60,000 (CIFAR-10).

    sizes     b = floor(M / Σ s^i),  n_i = floor(b s^i), i = 1 .. N; the rest goes to the clients from the largest
              down, each time ceil(rest / s)
    classes   clients from the smallest to the largest: shuffle the list of classes (as the client before left it),
              take min(ceil(n_i / C), room left, stock left) of each class in that order until full
    leftovers class by class to the clients from the largest down, each time ceil(rest / s), beyond n_i if need be

Client 0 is the largest. A client's rows are ordered by class, in the order in which it took the classes, and within a
class as in the data set. Leftovers can occur if C > 1 and few classes are left for the large clients (with seed 1 in
none of the paper's 30 cells); sizes then differ from n_i. Leftovers are handed out in turns until none remains.

The shuffles come from Python's generator and not from fedlit.keys, because with seed 1 that gives the paper's
partition: all 20 sizes of table 5, and 27 of the 30 rows of table 4 (for the other three see fedbc_table4.py).
"""

import math
import random
from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

import numpy as np

from fedlit.data.partition import fedbc_table4
from fedlit.data.partition.base import (
    Labels,
    Partition,
    Parts,
    RowNumbers,
    check_classes,
    check_enough,
    check_whole,
)
from fedlit.errors import DataError, require


class PowerLaw(Partition):
    """Sizes after a power law, a few classes per client. Defaults: a cell of FedBC's tables; data.seed 1 is theirs.

    Args:
        num_clients: N: number of clients
        classes_per_client: C: classes that a client takes in equal parts; more where these run out
        exponent: s: factor between a client's size and the next larger one's; 1.1 to 1.5 in FedBC
        as_printed: FedBC's partition with the class counts that table 4 prints, whatever data.seed is
    """

    def __init__(
        self,
        *,
        num_clients: int = 20,
        classes_per_client: int = 2,
        exponent: float = 1.4,
        as_printed: bool = False,
    ) -> None:
        check_whole(num_clients=num_clients, classes_per_client=classes_per_client)
        require(
            1 <= exponent < math.inf,
            f"data.partition.exponent is {exponent}. Set it to 1 (nearly equal sizes) or more, such as 1.4.",
        )
        if as_printed:
            fedbc_table4.check_cell(num_clients, classes_per_client, exponent)
        self.num_clients = num_clients
        self.classes_per_client = classes_per_client
        self.exponent = exponent
        self.as_printed = as_printed

    def assign(self, labels: Labels, seed: int) -> Parts:
        rows = labels.rows
        check_enough(rows, self.num_clients)
        stock = labels.by_class(rows)
        check_classes(self.classes_per_client, len(stock))
        amounts = [len(rows_of_class) for rows_of_class in stock]
        sizes = power_law_sizes(len(rows), self.num_clients, self.exponent)
        seed = fedbc_table4.SEED if self.as_printed else seed
        takes = draw_takes(sizes, amounts, self.classes_per_client, self.exponent, seed)
        if self.as_printed:
            for client, label, more in fedbc_table4.changes(amounts, self.classes_per_client, self.exponent):
                takes = changed(takes, client, label, more)
        return Parts(collect(takes, stock, self.num_clients))


class Take(NamedTuple):
    """A client takes the next rows of a class."""

    client: int
    label: int  # position among the classes that occur
    amount: int


def power_law_sizes(total: int, num_clients: int, exponent: float) -> list[int]:
    """n_i in ascending order; their sum is `total`."""
    with np.errstate(over="ignore"):  # inf samples are more than there are: refused below
        powers = np.power(float(exponent), np.arange(1, num_clients + 1))
    base = math.floor(total / powers.sum())
    if base < 1:
        raise DataError(
            f"A power law with exponent {exponent} over {num_clients} clients needs {powers.sum():.4g} samples or "
            f"more; the data set has {total}, so its smallest client would be empty. Lower data.partition.exponent or "
            "data.partition.num_clients."
        )
    sizes = [math.floor(base * power) for power in powers]
    for client, part in zip(cycle(reversed(range(num_clients))), handouts(total - sum(sizes), exponent), strict=False):
        sizes[client] += part
    return sizes


def handouts(rest: int, exponent: float) -> Iterator[int]:
    """Amounts of ceil(rest / s), until nothing is left."""
    while rest:
        part = math.ceil(rest / exponent)
        yield part
        rest -= part


def draw_takes(sizes: list[int], amounts: list[int], classes_per_client: int, exponent: float, seed: int) -> list[Take]:
    """All takes in their order; `sizes` ascend, and clients are numbered from the largest down."""
    left = list(amounts)
    classes = list(range(len(left)))
    shuffler = random.Random(seed)
    takes: list[list[Take]] = []
    for client, size in enumerate(sizes):
        shuffler.shuffle(classes)
        takes.append(fill(client, size, classes, left, math.ceil(size / classes_per_client)))
    filled = [sum(take.amount for take in of_client) for of_client in takes]
    by_size = sorted(range(len(sizes)), key=lambda client: filled[client], reverse=True)
    number = {client: position for position, client in enumerate(by_size)}
    first = [take._replace(client=number[take.client]) for of_client in takes for take in of_client]
    second = [
        Take(client, label, part)
        for label in classes
        for client, part in zip(cycle(range(len(sizes))), handouts(left[label], exponent), strict=False)
    ]
    return first + second


def fill(client: int, size: int, classes: list[int], left: list[int], most: int) -> list[Take]:
    """Take up to `most` of each class in turn until the client is full; `left` is reduced by it."""
    takes = []
    for label in classes:
        amount = min(most, size, left[label])
        if amount:
            takes.append(Take(client, label, amount))
            left[label] -= amount
            size -= amount
    return takes


def changed(takes: list[Take], client: int, label: int, more: int) -> list[Take]:
    """The client takes more (or fewer) of a class: where it takes that class already, else at the end."""
    old = next((take for take in takes if take[:2] == (client, label)), None)
    if old is None:
        return [*takes, Take(client, label, more)]
    return [take._replace(amount=take.amount + more) if take is old else take for take in takes]


def collect(takes: list[Take], stock: list[RowNumbers], num_clients: int) -> list[RowNumbers]:
    """The rows of each client: every take cuts the next rows off its class."""
    pieces: list[list[RowNumbers]] = [[] for _ in range(num_clients)]
    next_row = [0] * len(stock)
    for client, label, amount in takes:
        pieces[client].append(stock[label][next_row[label] : next_row[label] + amount])
        next_row[label] += amount
    return [np.concatenate(parts) for parts in pieces]
