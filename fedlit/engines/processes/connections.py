"""Connections: the exchanges of one run over torch's gloo. Only raw bytes are sent; nothing received is executed."""

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
"""gloo's own timeout never ends an exchange: the monitor decides which rank is lost."""
SLICE = timedelta(seconds=1)
SHORT = 1016
"""Most bytes of a message that needs one exchange; a longer one needs a second."""


class Connections:
    """Connections of every rank with every other, for one run. Every rank takes part in every exchange.

    A rank that fails closes its connections, which ends the exchanges of all others; their monitors know why.

    Args:
        store: holds the ranks' addresses.
        monitor: knows which rank is lost.
    """

    def __init__(self, store: Store, monitor: Monitor) -> None:
        self.rank, self.size, self.monitor = monitor.rank, len(monitor.members), monitor
        self._gloo: Any = ProcessGroupGloo(PrefixStore("gloo", store), self.rank, self.size, PATIENCE)

    def all_gather(self, message: bytes) -> list[bytes]:
        """The messages of all ranks, in order."""
        first = self._gather(len(message).to_bytes(8, "little") + message[:SHORT], 8 + SHORT)
        lengths = [int.from_bytes(part[:8], "little") for part in first]
        longest = max(lengths)
        parts = [part[8:] for part in first] if longest <= SHORT else self._gather(message, longest)
        return [part[:length] for part, length in zip(parts, lengths, strict=True)]

    def _gather(self, part: bytes, size: int) -> list[bytes]:
        """The parts of all ranks, padded to one size."""
        padded = bytes_as_tensor(part, size)
        parts = [torch.empty(size, dtype=torch.uint8) for _ in range(self.size)]
        self._finish([self._gloo.allgather(parts, padded)])
        return [part.numpy().tobytes() for part in parts]

    def broadcast(self, parts: Sequence[Tensor]) -> None:
        """Overwrite the k-th part on every rank by rank k's; there may be fewer parts than ranks."""
        self._finish([self._gloo.broadcast(part, root) for root, part in enumerate(parts) if part.numel()])

    def close(self) -> None:
        """Close the connections: from now on, the others' exchanges with this rank fail."""
        self._gloo = None

    def _finish(self, works: Sequence[Work]) -> None:
        """Wait in slices, so that Ctrl-C works and a hanging rank is noticed."""
        try:
            for work in works:
                while not self._is_done(work):
                    self.monitor.check()
        except BaseException:
            if not all(work.is_completed() for work in works):
                never_free(self._gloo)
            raise

    def _is_done(self, work: Work) -> bool:
        with suppress(RuntimeError):  # gloo has no error class of its own for a timeout or a closed connection
            work.wait(SLICE)
        if not work.is_completed():
            return False
        try:
            work.wait()  # raises its error
        except RuntimeError as error:
            raise self.monitor.explain(error) from None
        return True


def never_free(group: Any) -> None:
    """Keep gloo's object alive for ever: its destructor would wait without end for an open exchange."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
