"""Ranks: the processes that share a run. Usually there is one, which does everything; `engines/processes/` has others.

Who does what is a pure function of the costs, so every rank knows it without asking. What comes back is put together in
the order of the work, on every rank, and all that follows runs alike everywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    """Processes of the run."""
    here = 1
    """Processes of the run on this machine, which share its cores."""

    def __init__(self) -> None:
        self.profile: Profile = nullcontext
        """Times what is done under a name."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def split_work(
        self, costs: Sequence[float], compute: Callable[[list[int]], Params], lengths: Sequence[int] | None = None
    ) -> Params:
        """Let every rank compute its part of the items; returns the rows of all, in the items' order.

        Args:
            costs: of each item, to be shared out evenly.
            compute: numbers of items, ascending -> their stacked rows.
            lengths: rows that each item gives; one unless given.
        """
        return compute(list(range(len(costs))))

    def broadcast(self, value: T) -> T:
        """What the first rank gives, as with `all_gather`."""
        return value

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors with the first rank's, in place."""

    def any_rank(self, claims: Sequence[bool]) -> list[bool]:
        """Of each claim whether it holds on any rank."""
        return list(claims)

    def all_gather(self, value: T) -> list[T]:
        """What every rank gives, in their order: plain data, whose tuples may come back as lists and paths as texts."""
        return [value]

    def heartbeat(self) -> None:
        """A sign of progress, after every step. Raises where another rank has failed: nothing is waited for in vain."""

    @contextmanager
    def without_timeout(self) -> Iterator[None]:
        """No progress is expected meanwhile: compiling takes as long as it takes."""
        yield


def divide(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """The items of each rank, ascending."""
    return [sorted(share) for share in longest_first(costs, ranks, by_count=True)]


def longest_first(costs: Sequence[float], shares: int, *, by_count: bool = False) -> list[list[int]]:
    """The items of each share as they are given out: the most expensive first, to the share that has least.

    Args:
        costs: of each item.
        shares: how many there are.
        by_count: of shares that have as much, the one with the fewest items is next; else, and then, the lowest one.
    """
    given: list[list[int]] = [[] for _ in range(shares)]
    loads = [0.0] * shares
    for item in sorted(range(len(costs)), key=lambda item: (-costs[item], item)):
        share = min(range(shares), key=lambda own: (loads[own], len(given[own]) if by_count else 0, own))
        given[share].append(item)
        loads[share] += costs[item]
    return given
