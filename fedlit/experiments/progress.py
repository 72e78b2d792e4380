"""What is seen of many runs while they run: how many are done, failed and running, and the time that is left."""

from collections.abc import Sequence
from math import ceil
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fedlit.experiments.jobs import Job, JobResult, Process, rounds_done
from fedlit.metrics.formatting import duration
from fedlit.results.folder import RunFolder

_ENOUGH = 0.1
"""Of a job must be done for an estimate: before, it is all start-up."""


class Board:
    """A bar over all jobs and one for each that runs; without a terminal a line for each that ends."""

    def __init__(self, console: Console, what: str, total: int, slots: int, cost: float | None = None) -> None:
        self.console, self.what, self.total, self.slots = console, what, total, slots
        self.done, self.failed = 0, 0
        self._cost_left = self._cost = float(total) if cost is None else cost  # in the unit of the jobs' own
        self._cost_made, self._seconds = 0.0, 0.0  # in this process, with the time that it took in a slot
        self._processes: Sequence[Process] = ()
        self._waited_for = ""
        self._bars: dict[str, TaskID] = {}
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn())
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[shown]}", markup=False),
            console=console,
            auto_refresh=False,  # no thread: the runner starts processes
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task(what, total=total, shown="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, processes: Sequence[Process]) -> None:
        """Draw the bars anew."""
        self._processes = processes
        if self._progress.disable:
            return
        for name in self._bars.keys() - {process.job.name for process in processes}:
            self._progress.remove_task(self._bars.pop(name))
        for process in processes:
            job = process.job
            if job.name not in self._bars:
                self._bars[job.name] = self._progress.add_task(job.name, total=job.rounds, shown=job.about)
            self._progress.update(self._bars[job.name], completed=rounds_done(RunFolder(job.folder).metrics))
        counts = f"{len(processes)} running, {self.failed} failed"
        self._progress.update(self._all, completed=self.done + self.failed, shown=f"{counts}{self.time_left()}")
        self._progress.refresh()

    def ended(self, outcome: JobResult, share_at_start: float) -> None:
        """Count a job that ended, and say so in a line."""
        if outcome.status == "stopped":
            self._say(f"{outcome.job.name} stopped after {duration(outcome.seconds)}; it can be continued")
            return
        self._cost_left -= outcome.job.cost
        self._cost_made += outcome.job.cost * (1 - share_at_start)
        self._seconds += outcome.seconds
        self.done += outcome.status == "finished"
        self.failed += outcome.status == "failed"
        self._processes = [process for process in self._processes if process.job is not outcome.job]
        position = f"{self.done + self.failed}/{self.total} {outcome.job.name}"
        about = f" ({outcome.job.about})" if outcome.job.about else ""
        how = f"{outcome.status} after {duration(outcome.seconds)}"
        note = f", {outcome.note}" if outcome.note else ""
        why = f": {outcome.reason}" if outcome.reason else ""
        self._say(f"{position}{about} {how}{note}{self.time_left()}{why}")

    def skip(self, *, failed: bool, cost: float = 1.0) -> None:
        """Count a job that an earlier command ran."""
        self._cost_left -= cost
        self.failed += failed
        self.done += not failed

    def waits_for(self, job: Job) -> None:
        """Say once that a run is still being ended by the process that an earlier command left."""
        if job.name != self._waited_for:
            self._waited_for = job.name
            self._say(f"{job.name}: waiting for the process of an earlier command to finish its round")

    def stop_request(self, running: int, *, at_once: bool) -> None:
        """Say that the end was asked for."""
        how = "at once" if at_once else "when their round is done; Ctrl-C again stops them at once"
        self._say(f"stopping: {running} running {self.what} end {how}")

    def time_left(self) -> str:
        """`, about 3 min left` from what was done so far, in finished and in running jobs; empty at first."""
        made, seconds, left = self._cost_made, self._seconds, self._cost_left
        for process in self._processes:
            share, cost = process.job.share_done(), process.job.cost
            made, left = made + cost * (share - process.share_at_start), left - cost * share
            seconds += process.seconds
        one = self._cost / self.total  # an average job's
        if left <= one * 1e-6 or made < _ENOUGH * one:
            return ""
        return f", about {duration(left * seconds / made / min(self.slots, ceil(left / one)))} left"

    def _say(self, line: str) -> None:
        self._progress.console.print(line, soft_wrap=True)
