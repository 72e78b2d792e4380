"""RankGroup: several processes as `Ranks`. Work is split among them, and all of them get all rows, in order."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedlit.client.row_layout import RowLayout, archive, bytes_as_tensor, read_archive
from fedlit.engines.processes.children import set_death_signal
from fedlit.engines.processes.connections import Connections
from fedlit.engines.processes.monitor import Monitor
from fedlit.params import Params
from fedlit.ranks import Ranks, divide

T = TypeVar("T")
_latest: "RankGroup | None" = None


def another_rank_reports() -> bool:
    """Whether another process of the run reports an error to the user."""
    return _latest is not None and _latest.rank != _latest.reporting_rank


class RankGroup(Ranks):
    """The processes of a run, joined.

    Args:
        monitor: watches the other ranks.
        connections: to the other ranks.
        here: number of ranks on this machine.
    """

    def __init__(self, monitor: Monitor, connections: Connections, here: int) -> None:
        super().__init__()
        global _latest
        _latest = self
        self.monitor, self.connections = monitor, connections
        self.rank, self.size, self.here = monitor.rank, len(monitor.members), here

    @property
    def reporting_rank(self) -> int:
        """The first rank that is not lost."""
        ending = self.monitor.ending
        return 1 if ending is not None and ending.is_lost and ending.rank == 0 else 0

    # ---- work --------------------------------------------------------------------------------------------------------

    def split_work(
        self, costs: Sequence[float], compute: Callable[[list[int]], Params], lengths: Sequence[int] | None = None
    ) -> Params:
        """Compute this rank's part; a rank without items only receives."""
        if not costs:
            return compute([])
        shares = divide(costs, self.size)
        mine = shares[self.rank]
        with self.monitor.working(True):
            rows = compute(mine) if mine else {}
        counts = [1] * len(costs) if lengths is None else list(lengths)
        return self._gathered(rows, shares, counts)

    def _gathered(self, rows: Params, shares: list[list[int]], counts: list[int]) -> Params:
        """The rows of all ranks, in the items' order."""
        layouts = self.all_gather(RowLayout.of(rows).to_json())
        layout = RowLayout.agreed([RowLayout.from_json(layout) for layout in layouts])
        with self.profile("communicate"):
            sizes = [sum(counts[item] for item in share) for share in shares]
            whole = torch.empty(sum(sizes), layout.width, dtype=torch.uint8)
            parts = torch.split(whole, sizes)
            layout.write(rows, parts[self.rank])
            self.connections.broadcast(parts)
            return layout.read(whole.index_select(0, rows_in_order(shares, counts)))

    # ---- agreement ---------------------------------------------------------------------------------------------------

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, sent as JSON."""
        self.monitor.check()
        with self.profile("wait"):
            message = json.dumps(value, default=os.fspath).encode()
            return [json.loads(part) for part in self.connections.all_gather(message)]

    def broadcast(self, value: T) -> T:
        """The first rank's value; others may pass anything."""
        return self.all_gather(value if self.is_first else None)[0]  # type: ignore[return-value]  # the first one's is a T

    def any_rank(self, claims: Sequence[bool]) -> list[bool]:
        """For each claim, whether it is true on at least one rank."""
        return [any(claim) for claim in zip(*self.all_gather(list(claims)), strict=True)]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors with the first rank's, in place."""
        self.all_gather(None)
        for value in tensors.values():
            sent = value.detach().contiguous()
            self.connections.broadcast([sent])
            value.detach().copy_(sent)

    def broadcast_checkpoint(self, checkpoint: dict[str, Any] | None) -> dict[str, Any]:
        """The first rank's checkpoint, of any size, sent as a file that holds only tensors and plain data."""
        archived = archive(checkpoint) if self.is_first else b""
        content = bytes_as_tensor(archived, self.broadcast(len(archived)))
        self.connections.broadcast([content])
        received: dict[str, Any] = read_archive(content.numpy().tobytes())
        return received

    def heartbeat(self) -> None:
        """Report progress; an error of another rank is raised here too."""
        self.monitor.step()

    @contextmanager
    def without_timeout(self) -> Iterator[None]:
        """This rank need not report progress inside the block; being alive is enough."""
        with self.monitor.working(False):
            yield

    # ---- the end -----------------------------------------------------------------------------------------------------

    @contextmanager
    def taking_leave(self) -> Iterator[None]:
        """Around a run: all ranks finish it, or all end with the error of the rank that failed.

        Meanwhile the monitor, not the system, ends this process if the first rank dies, because it can say why.
        """
        death_signal = set_death_signal(0)
        try:
            yield
            self.all_gather(None)
        except BaseException as error:
            self.monitor.tell(error)
            self.connections.close()
            raise
        finally:
            self.monitor.leave()
            self.connections.close()
            set_death_signal(death_signal)


def rows_in_order(shares: list[list[int]], counts: list[int]) -> Tensor:
    """Indices that bring the concatenated rows of all ranks into the items' order."""
    starts, start = {}, 0
    for item in (item for share in shares for item in share):
        starts[item] = start
        start += counts[item]
    return torch.cat([torch.arange(starts[item], starts[item] + counts[item]) for item in range(len(counts))])
