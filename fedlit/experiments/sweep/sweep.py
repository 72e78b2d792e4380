"""A sweep: trials of a sweep file, run, recorded in sweep.json and ranked."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedlit.errors import ConfigError, RunError
from fedlit.experiments.experiment import Experiment
from fedlit.experiments.fit_arguments import names_of, parse_fit, refuse_options
from fedlit.experiments.jobs import Job
from fedlit.experiments.sweep.file import SweepFile
from fedlit.experiments.sweep.objective import check_metric, objective
from fedlit.experiments.sweep.search import Search
from fedlit.experiments.trials import Trial, TrialLog
from fedlit.metrics.catalogue import format_value
from fedlit.results.runs import read_run


class Sweep(Experiment):
    """The trials of a sweep file in a folder."""

    what = "trials"

    def __init__(
        self, file: SweepFile, search: Search, trial_log: TrialLog, overrides: Sequence[str], rounds: int
    ) -> None:
        super().__init__(trial_log)
        self.file, self.search, self.total = file, search, search.total
        self.overrides, self.rounds = tuple(overrides), rounds
        self.labels = short_names([parameter.name for parameter in file.parameters if not parameter.is_constant])

    def jobs(self) -> Iterator[Job]:
        """The trials by number; one that is recorded keeps its values."""
        for number in range(self.total):
            name = f"trial-{number:03d}"
            known = self.trial_log.trials.get(name)
            yield self.job(
                name, known.parameters if known else self.search.propose(number, list(self.trial_log.trials.values()))
            )

    def job(self, name: str, parameters: dict[str, Any]) -> Job:
        """The run of a trial."""
        rounds = parameters.get("trainer.rounds", self.rounds)
        arguments = self.file.arguments(parameters, self.overrides)
        return Job(name, self.folder / name, arguments, rounds, parameters, about=self.described(parameters))

    def rate(self, trial: Trial) -> str:
        """Read the trial's value off its run; one that lacks it has failed."""
        try:
            run = read_run(self.folder / trial.run)
        except RunError as error:
            trial.status, trial.reason = "failed", str(error)
            return ""
        trial.value = objective(run, self.file.metric, self.file.goal)
        if trial.value is None:
            measured = ", ".join(run.metrics)
            trial.status, trial.reason = "failed", f"It did not measure {self.file.metric}. It measured {measured}."
            return ""
        return f"{self.file.metric} {format_value(self.file.metric, trial.value)}"

    def ranked(self) -> list[Trial]:
        """The finished trials, the best first; of equals the earlier."""
        sign = -1 if self.file.goal == "maximize" else 1
        return sorted(self.trial_log.with_status("finished"), key=lambda trial: sign * (trial.value or 0.0))

    def described(self, parameters: dict[str, Any]) -> str:
        """`lr=0.1 dual_lr=0.001`."""
        return " ".join(f"{label}={readable(parameters[name])}" for name, label in self.labels.items())


def definition(file: SweepFile, overrides: Sequence[str]) -> dict[str, Any]:
    """What a sweep is, as plain data: trials of another one are not its own."""
    return {
        "method": file.method,
        "metric": [file.metric, file.goal],
        "parameters": {p.name: {"distribution": p.distribution, **p.keys} for p in file.parameters},
        "command": list(file.words),
        "overrides": list(overrides),
    }


def check_sweep(file: SweepFile, overrides: Sequence[str]) -> int:
    """Refuse what no trial could run with, before any does; returns the rounds of a trial.

    Every name is tried, and every value of a list: what the command line does not take, it does not take later.
    """
    refuse_options(overrides)
    swept = {parameter.name: parameter for parameter in file.parameters}
    for name in names_of(overrides):
        if name in swept:
            raise ConfigError(f"--{name} is given, but {file.path.name} sweeps {name}. Leave it out here or there.")
    rng = np.random.default_rng(0)
    first = {name: parameter.draw(rng) for name, parameter in swept.items()}
    tried = [first]
    for name, parameter in swept.items():
        tried += [first | {name: value} for value in parameter.keys.get("values", [])]
    try:
        config = [parse_fit(file.arguments(values, overrides)) for values in tried][0]
        check_metric(
            file.metric,
            has_validation=config.data.get("init_args", {}).get("val_fraction") != 0,
            has_callbacks=bool(config.trainer.callbacks),
        )
    except ConfigError as error:
        raise ConfigError(f"{file.path.name}: {error}") from error
    return int(config.trainer.rounds)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Name -> its last part, or all of it where another ends alike."""
    last = [name.rsplit(".", 1)[-1] for name in names]
    return {name: end if last.count(end) == 1 else name for name, end in zip(names, last, strict=True)}


def readable(value: Any) -> str:
    """A value in a table: four digits of a number."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
