"""How far the clients of a round are: engines count, the terminal shows it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class TrainingProgress:
    """Clients and local steps that are done, of those that train at present; counted and read in any thread."""

    prepared = 0.0
    """Seconds of the run so far that went into compiling, which later rounds do not need."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin(0, 0)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Around what is done once and for all rounds."""
        began = time.monotonic()
        yield
        self.prepared += time.monotonic() - began

    def begin(self, clients: int, steps: int) -> None:
        """So many clients begin to train, with so many steps in all."""
        with self._lock:
            self.clients, self.of_clients = 0, clients
            self.steps, self.of_steps = 0, steps
            self._began = self._counted = time.monotonic()

    def count(self, *, clients: int = 0, steps: int = 0) -> None:
        """So many more are done."""
        with self._lock:
            self.clients += clients
            self.steps += steps
            self._counted = time.monotonic()

    @property
    def share(self) -> float:
        """How much of the steps is done: 0 to 1."""
        return self.steps / self.of_steps if self.of_steps else 0.0

    @property
    def steps_per_second(self) -> float | None:
        """Up to the last count; None before there is one."""
        seconds = self._counted - self._began
        return self.steps / seconds if self.steps and seconds > 0 else None
