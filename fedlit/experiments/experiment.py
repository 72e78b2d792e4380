"""What a sweep and a comparison have in common: jobs that are recorded, run, and not run again."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedlit.experiments.jobs import Job, JobResult
from fedlit.experiments.progress import Board
from fedlit.experiments.runner import Runner, claimed
from fedlit.experiments.trials import Trial, TrialLog


class Experiment(ABC):
    """Trials in a folder, with their record."""

    what: str
    """What one of its jobs is called, in the plural."""
    total: int
    cost: float | None = None
    """Of all jobs together, where they are not alike."""

    def __init__(self, trial_log: TrialLog) -> None:
        self.trial_log = trial_log

    @property
    def folder(self) -> Path:
        """Where the runs are."""
        return self.trial_log.path.parent

    @abstractmethod
    def jobs(self) -> Iterator[Job | None]:
        """All that belong to it, finished or not; the next is asked for when there is room for it.

        None means that the next one depends on what still runs.
        """

    def rate(self, trial: Trial) -> str:
        """See what a finished trial came to, in a few words; may find that it failed after all."""
        return ""

    def run(self, console: Console, slots: int, *, retry_failed: bool) -> bool:
        """Run what is left to be run; whether all was, False if somebody stopped it."""
        board = Board(console, self.what, self.total, slots, self.cost)
        with claimed(self.folder):
            complete = Runner(slots, board, self.judge).run(self.unfinished(board, retry_failed=retry_failed))
            self.trial_log.save()
        if not complete:
            console.print(
                f"stopped; {board.done} of {self.total} {self.what} are finished. The same command continues."
            )
        return complete

    def unfinished(self, board: Board, *, retry_failed: bool) -> Iterator[Job | None]:
        """Neither what is finished nor, unless it is to be retried, what failed."""
        for job in self.jobs():
            if job is None:
                yield None
                continue
            trial = self.trial_log.enter(job)
            if trial.status == "finished":
                self.rate(trial)
            if trial.status == "finished" or (trial.status == "failed" and not retry_failed):
                board.skip(failed=trial.status == "failed", cost=job.cost)
                continue
            trial.status = "running"
            self.trial_log.save()  # before it starts: what runs is known
            yield job

    def judge(self, outcome: JobResult) -> JobResult:
        """Record how a job ended, and what it came to."""
        trial = self.trial_log.note(outcome)
        note = self.rate(trial) if trial.status == "finished" else ""
        self.trial_log.save()
        failed = trial.status == "failed"
        return replace(outcome, status="failed" if failed else outcome.status, reason=trial.reason, note=note)
