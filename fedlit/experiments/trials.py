"""The record of many runs: which there are, how each ended, and of what they are part. One file, written atomically."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedlit.errors import ConfigError, RunError
from fedlit.experiments.jobs import Job, JobResult
from fedlit.files import write_json
from fedlit.results.folder import make_folder
from fedlit.results.runs import read_json

Status = Literal["waiting", "running", "stopped", "finished", "failed"]


@dataclass
class Trial:
    """One run of a sweep or of a comparison."""

    name: str
    parameters: dict[str, Any]
    """What is set in this run and not in all."""
    arguments: list[str] = field(default_factory=list)
    """Of `fedlit fit`, without --run and --resume."""
    status: Status = "waiting"
    value: float | None = None
    """A sweep's objective, once the run is finished."""
    run: str = ""
    """The run's folder, beside the record."""
    reason: str = ""
    """Why it failed."""
    seconds: float = 0.0
    """Of the process that ended it."""


class TrialLog:
    """The trials in their order, with `about`: what they are trials of."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
        self.trials: dict[str, Trial] = {}

    @classmethod
    def open(cls, path: Path, about: dict[str, Any]) -> "TrialLog":
        """The record in a file, or a new one where there is none; ConfigError if it is of something else."""
        trial_log = cls(path, about)
        try:
            content = read_json(path)
            for entry in content.get("trials", []):
                trial = Trial(**entry)
                trial_log.trials[trial.name] = trial
        except (RunError, TypeError) as error:
            raise RunError(
                f"{path} is damaged: fedlit replaces it as a whole, so something else wrote to it. Delete it and "
                "repeat the command; finished runs stay and are not run again."
            ) from error
        known = content.get("about", {})
        changed = [name for name in about if name in known and known[name] != about[name]]
        if changed:
            begun = [f" It was begun with {known[name]}." for name in changed if str(known[name]).startswith("--")]
            raise ConfigError(
                f"{path} records other runs than these: {', '.join(changed)} changed.{''.join(begun)} Give the options "
                "that it was begun with, or another folder with --out DIR."
            )
        trial_log.about = known | about
        return trial_log

    def make_folder(self) -> None:
        """Make the folder that the record and the runs are in."""
        make_folder(self.path.parent, "--out DIR")

    def save(self) -> None:
        """Replace the file."""
        content = {"about": self.about, "trials": [asdict(trial) for trial in self.trials.values()]}
        write_json(self.path, content)

    def enter(self, job: Job) -> Trial:
        """The trial of a job: the recorded one, or a new one where there is none or where it was run otherwise.

        What was run otherwise is not taken for this job, even if it is finished: `fit` will say what differs.
        """
        trial = self.trials.get(job.name)
        is_other = trial is not None and trial.arguments != list(job.arguments)
        if trial is None or is_other:
            trial = Trial(job.name, dict(job.parameters), list(job.arguments), run=job.folder.name)
            self.trials[job.name] = trial
        summary = job.summary()
        long_enough = summary.get("rounds", 0) >= job.rounds or trial.status == "finished"  # less if stopped early
        if trial.status != "failed":
            finished = summary.get("finished") and long_enough and not is_other
            trial.status = "finished" if finished else "waiting"
        return trial

    def note(self, outcome: JobResult) -> Trial:
        """Record how a job ended."""
        trial = self.trials[outcome.job.name]
        trial.status, trial.reason, trial.seconds = outcome.status, outcome.reason, round(outcome.seconds, 1)
        return trial

    def with_status(self, status: Status) -> list[Trial]:
        """The trials that are so."""
        return [trial for trial in self.trials.values() if trial.status == status]
