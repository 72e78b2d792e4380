"""Connections: the exchanges of one run over torch's gloo. Raw bytes only: nothing that arrives is run."""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]  # torch lists the second alone
    PrefixStore,
    ProcessGroupGloo,
    Store,
    Work,
)

from fedlit.client.row_layout import bytes_as_tensor
from fedlit.engines.processes.monitor import Monitor

PATIENCE = timedelta(days=30)
"""gloo itself never gives up: the monitor knows better who is lost."""
SLICE = timedelta(seconds=1)
SHORT = 1016
"""Bytes of a message that travels at once; a longer one takes a second exchange."""


class Connections:
    """From every rank to every other one, for one run. Every rank takes part in every exchange.

    A rank that fails closes its connections, which ends the exchanges of all others; the monitor tells them why.

    Args:
        store: where the ranks find each other's addresses.
        monitor: knows who is lost.
    """

    def __init__(self, store: Store, monitor: Monitor) -> None:
        self.rank, self.size, self.monitor = monitor.rank, len(monitor.members), monitor
        self._gloo: Any = ProcessGroupGloo(PrefixStore("gloo", store), self.rank, self.size, PATIENCE)

    def all_gather(self, message: bytes) -> list[bytes]:
        """Every rank's message, in their order."""
        first = self._gather(len(message).to_bytes(8, "little") + message[:SHORT], 8 + SHORT)
        lengths = [int.from_bytes(part[:8], "little") for part in first]
        longest = max(lengths)
        parts = [part[8:] for part in first] if longest <= SHORT else self._gather(message, longest)
        return [part[:length] for part, length in zip(parts, lengths, strict=True)]

    def _gather(self, part: bytes, size: int) -> list[bytes]:
        """Parts of one size; a shorter one is filled up."""
        own = bytes_as_tensor(part, size)
        parts = [torch.empty(size, dtype=torch.uint8) for _ in range(self.size)]
        self._finish([self._gloo.allgather(parts, own)])
        return [part.numpy().tobytes() for part in parts]

    def broadcast(self, parts: Sequence[Tensor]) -> None:
        """Overwrite each rank's part, in their order, with that of its rank; there may be fewer parts than ranks."""
        self._finish([self._gloo.broadcast(part, root) for root, part in enumerate(parts) if part.numel()])

    def close(self) -> None:
        """The others' exchanges with this rank fail from now on."""
        self._gloo = None

    def _finish(self, works: Sequence[Work]) -> None:
        """Wait in slices: Ctrl-C is heard, and a rank that hangs is noticed. gloo goes on meanwhile."""
        try:
            for work in works:
                while not self._is_done(work):
                    self.monitor.check()
        except BaseException:
            if not all(work.is_completed() for work in works):
                never_free(self._gloo)
            raise

    def _is_done(self, work: Work) -> bool:
        with suppress(RuntimeError):  # gloo has no type of its own for time that is up, or for a closed connection
            work.wait(SLICE)
        if not work.is_completed():
            return False
        try:
            work.wait()  # for its error
        except RuntimeError as error:
            raise self.monitor.explain(error) from None
        return True


def never_free(group: Any) -> None:
    """Let the end of this process not wait for an exchange that is still open: gloo's destructor would, for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
