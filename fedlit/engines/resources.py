"""Resources of a process: its part of the machine and of the cohort."""

import os
from dataclasses import dataclass

from fedlit.engines.engine_choice import EngineChoice

_OMP_NUM_THREADS = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
"""Read once, as OpenMP does: later, Lightning sets the variable itself when it starts processes."""


@dataclass(frozen=True)
class Resources:
    """The resources of one process: its part of the machine and of the cohort."""

    processes: int = 1
    here: int = 1
    """Number of processes on the same machine."""
    threads: int | None = None
    """Threads that the user allows this process."""

    @property
    def cores(self) -> int:
        """Threads of this process: trainer.threads, else OMP_NUM_THREADS, else its part of the cores."""
        return self._allowed[0]

    @property
    def _allowed(self) -> tuple[int, str]:
        if self.threads is not None:
            return self.threads, "trainer.threads"
        if _OMP_NUM_THREADS.isdigit() and int(_OMP_NUM_THREADS) > 0:
            return int(_OMP_NUM_THREADS), "OMP_NUM_THREADS"
        return max(1, len(os.sched_getaffinity(0)) // self.here), "the cores of this process"

    def line(self, choice: EngineChoice) -> str:
        """One line for the user: how many threads are used, how many are allowed, and by what."""
        training = choice.workers if choice.compiled else choice.threads
        most, source = self._allowed
        form = " (compiled)" if choice.evaluation == "compiled" else ""
        used = f"threads: {training} in training, {choice.evaluation_threads} in evaluation{form}"
        return f"{used}; at most {most} ({source}, trainer.threads changes it)" if most > 1 else f"{used} ({source})"
