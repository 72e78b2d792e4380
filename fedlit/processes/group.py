"""RankGroup: several processes as `Ranks`: work is divided, its rows are gathered on all of them in its order."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fedlit.errors import RankError
from fedlit.params import Params
from fedlit.processes.hub import KNOWN_S, Hub, Link
from fedlit.ranks import Ranks, divide
from fedlit.rowlayout import RowLayout

T = TypeVar("T")
_latest: "RankGroup | None" = None


def another_tells() -> bool:
    """Whether an error is told to the user by another process of the run."""
    return _latest is not None and not _latest.is_first and not _latest.first_is_lost


class RankGroup(Ranks):
    """The processes of a run, joined.

    Args:
        link: to the hub.
        hub: on the first rank.
        here: ranks on this machine.
    """

    def __init__(self, link: Link, hub: Hub | None, here: int) -> None:
        super().__init__()
        global _latest
        _latest = self
        self.link, self.hub = link, hub
        self.rank, self.size, self.here = link.rank, len(link.members), here

    # ---- work --------------------------------------------------------------------------------------------------------

    def divided(
        self, costs: Sequence[float], compute: Callable[[list[int]], Params], lengths: Sequence[int] | None = None
    ) -> Params:
        """Each rank its part; a rank without any only receives."""
        if not costs:
            return compute([])
        shares = divide(costs, self.size)
        mine = shares[self.rank]
        with self.link.demanding(True):
            rows = compute(mine) if mine else {}
        counts = [1] * len(costs) if lengths is None else list(lengths)
        return self._gathered(rows, shares, counts)

    def _gathered(self, rows: Params, shares: list[list[int]], counts: list[int]) -> Params:
        """Every rank's rows, in the items' order."""
        layout = RowLayout.agreed(self.words(RowLayout.of(rows)))
        with self.profile("communicate"):
            sizes = [sum(counts[item] for item in share) for share in shares]
            whole = torch.empty(sum(sizes), layout.width, dtype=torch.uint8)
            parts = torch.split(whole, sizes)
            layout.write(rows, parts[self.rank])
            self._exchange(parts)
            return layout.read(whole.index_select(0, rows_in_order(shares, counts)))

    def _exchange(self, parts: Sequence[Tensor]) -> None:
        """Each rank sends its part to all others."""
        try:
            sent = [dist.broadcast(part, rank, async_op=True) for rank, part in enumerate(parts) if part.numel()]
            for work in sent:
                work.wait()
        except RuntimeError:  # gloo's word for a rank that is gone does not say which
            self.link.check_soon()
            raise

    # ---- agreement ---------------------------------------------------------------------------------------------------

    def words(self, word: T) -> list[T]:
        """A meeting of all ranks."""
        self.link.check()
        with self.profile("wait"):
            return [pickle.loads(said) for said in self.link.meet(pickle.dumps(word))]

    def same(self, value: T) -> T:
        """The first rank's; others need not have one."""
        return self.words(value if self.is_first else None)[0]  # type: ignore[return-value]  # the first one's is a T

    def either(self, claims: Sequence[bool]) -> list[bool]:
        """Of each claim whether it holds on any rank."""
        return [any(said) for said in zip(*self.words(list(claims)), strict=True)]

    def same_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors with the first rank's, in place."""
        self.words(None)
        for value in tensors.values():
            held = value.detach().contiguous()
            dist.broadcast(held, 0)
            value.detach().copy_(held)

    def sent(self, value: T | None) -> T:
        """What the first rank gives, however large: it travels as tensors do."""
        self.words(None)
        held: list[T | None] = [value if self.is_first else None]
        dist.broadcast_object_list(held, 0)
        assert held[0] is not None
        return held[0]

    def pulse(self) -> None:
        """A sign of progress; what another rank has raised is raised here too."""
        self.link.progress += 1
        self.link.check()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """It is enough to be alive."""
        with self.link.demanding(False):
            yield

    # ---- the end -----------------------------------------------------------------------------------------------------

    @contextmanager
    def taking_leave(self) -> Iterator[None]:
        """A run: all ranks come to its end, or all end with the error of the one that failed."""
        try:
            yield
            self.words(None)
        except BaseException as error:
            self.leave(error)
            raise
        self.leave()

    def leave(self, error: BaseException | None = None) -> None:
        """Say goodbye; the first rank stays until the others have heard it."""
        self.link.leave(error)
        if self.hub is not None:
            self.hub.join(KNOWN_S)

    @property
    def first_is_lost(self) -> bool:
        """Whether the rank that talks to the user cannot."""
        return self.link.ended is not None and self.link.ended[0] == 0 and isinstance(self.link.ended[1], RankError)


def rows_in_order(shares: list[list[int]], counts: list[int]) -> Tensor:
    """Where each row of the items, in their order, lies among the ranks' rows one below the other."""
    starts, start = {}, 0
    for item in (item for share in shares for item in share):
        starts[item] = start
        start += counts[item]
    return torch.cat([torch.arange(starts[item], starts[item] + counts[item]) for item in range(len(counts))])
