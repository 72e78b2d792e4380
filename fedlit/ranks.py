"""Ranks: the processes that share a run. Here is the usual case of one process; `engines/processes/` has the others.

The division of work is a pure function of the costs, so every rank computes it without asking. Every rank gets all
results, in the order of the work, and everything after that runs alike on all ranks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from heapq import heapreplace
from typing import TypeVar

from torch import Tensor

from fedlit.params import Params

T = TypeVar("T")
Profile = Callable[[str], AbstractContextManager[object]]


class Ranks:
    """One process: nothing is split, and there is nobody to agree with."""

    rank = 0
    """The number of this process."""
    size = 1
    """Number of processes of the run."""
    here = 1
    """Number of processes of the run on this machine, which share its cores."""

    def __init__(self) -> None:
        self.profile: Profile = nullcontext
        """Measures the time of a block, under a name."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and prints messages."""
        return self.rank == 0

    def split_work(
        self, costs: Sequence[float], compute: Callable[[list[int]], Params], lengths: Sequence[int] | None = None
    ) -> Params:
        """Compute every item on one of the ranks; returns the rows of all items, in their order.

        Args:
            costs: of each item; ranks get about equal sums.
            compute: numbers of items, ascending -> their stacked rows.
            lengths: number of rows of each item; one unless given.
        """
        return compute(list(range(len(costs))))

    def broadcast(self, value: T) -> T:
        """The first rank's value, on every rank; plain data, as for `all_gather`."""
        return value

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors with the first rank's, in place."""

    def any_rank(self, claims: Sequence[bool]) -> list[bool]:
        """For each claim, whether it is true on at least one rank."""
        return list(claims)

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, in order. Give plain data: tuples may come back as lists, and paths as texts."""
        return [value]

    def heartbeat(self) -> None:
        """Report progress, after every step. Raises an error if another rank has failed."""

    @contextmanager
    def without_timeout(self) -> Iterator[None]:
        """No heartbeat is expected inside the block: compiling may take long."""
        yield


def divide(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """The items of each rank, ascending. Each item, the most expensive first, goes to the rank with the lowest load."""
    return [sorted(share) for share in longest_first(costs, ranks, by_count=True)]


def longest_first(costs: Sequence[float], shares: int, *, by_count: bool = False) -> list[list[int]]:
    """The items of each share in the order in which they are assigned: the most expensive first, to the lowest load.

    Args:
        costs: of each item.
        shares: how many there are.
        by_count: among equal loads, the share with the fewest items is next; else, and then, the lowest number.
    """
    items: list[list[int]] = [[] for _ in range(shares)]
    heap = [(0.0, 0, share) for share in range(shares)]
    for item in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        load, count, share = heap[0]
        items[share].append(item)
        heapreplace(heap, (load + costs[item], count + by_count, share))
    return items
