"""Progress of a round's training: engines count, the progress bar shows it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class TrainingProgress:
    """Clients and local steps of the present training that are done; any thread may count and read."""

    prepared = 0.0
    """Seconds spent on compiling so far, which later rounds do not need."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin(0, 0)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Around work that is done once for all rounds."""
        began = time.monotonic()
        yield
        self.prepared += time.monotonic() - began

    def begin(self, clients: int, steps: int) -> None:
        """This many clients begin to train, with this many steps in total."""
        with self._lock:
            self.clients, self.of_clients = 0, clients
            self.steps, self.of_steps = 0, steps
            self._began = self._counted = time.monotonic()

    def count(self, *, clients: int = 0, steps: int = 0) -> None:
        """This many more clients and steps are done."""
        with self._lock:
            self.clients += clients
            self.steps += steps
            self._counted = time.monotonic()

    @property
    def share(self) -> float:
        """The share of the steps that is done: 0 to 1."""
        return self.steps / self.of_steps if self.of_steps else 0.0

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second up to the last count; None before it."""
        seconds = self._counted - self._began
        return self.steps / seconds if self.steps and seconds > 0 else None
