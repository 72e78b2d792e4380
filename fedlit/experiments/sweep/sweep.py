"""A sweep: trials of a sweep file, run, recorded in sweep.json and ranked."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedlit.errors import ConfigError, RunError, nearest
from fedlit.experiments.experiment import Experiment
from fedlit.experiments.fit_arguments import names_of, parse_fit, refuse_options
from fedlit.experiments.jobs import Job
from fedlit.experiments.sweep.file import SweepFile
from fedlit.experiments.sweep.objective import GOALS, check_measured, check_metric, objective
from fedlit.experiments.sweep.search import Search
from fedlit.experiments.trials import Trial, TrialLog
from fedlit.metrics.catalogue import BEST_ROUND, format_value, metric
from fedlit.report.figures.searches import short_names as short_names  # tables of papers take it from here
from fedlit.results.runs import read_run

_RATE = (".lr", "_lr")
"""How the name of a rate ends."""


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

    def ranks(self) -> list[int]:
        """The rank of each of these trials: those with the same value share one."""
        values = [trial.value for trial in self.ranked()]
        return [values.index(value) + 1 for value in values]

    @property
    def test_metric(self) -> str:
        """What the summary of a run says of its best round on test data, where validation data rank the trials."""
        group, _, measure = self.file.metric.partition("/")
        is_first = group == "val" and self.file.goal == GOALS.get(metric(self.file.metric).best)
        return f"{BEST_ROUND}global_{measure}" if is_first else ""

    def tested(self, trial: Trial) -> str:
        """That number of a trial; nothing where its run has none."""
        value = self.job(trial.name, trial.parameters).summary().get(self.test_metric)
        return format_value(self.test_metric, value) if isinstance(value, int | float) else ""

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
    lists = {name: parameter.keys["values"] for name, parameter in swept.items() if parameter.keys.get("values")}
    longest = max(map(len, lists.values()), default=0)
    tried = [first]
    for place in range(longest):
        tried.append(first | {name: values[place] for name, values in lists.items() if place < len(values)})
    try:
        config = [parse_fit(file.arguments(values, overrides)) for values in tried][0]
        check_metric(
            file.metric,
            has_validation=config.data.get("init_args", {}).get("val_fraction") != 0,
            has_callbacks=bool(config.trainer.callbacks),
        )
        check_measured(file.metric, [file.arguments(values, overrides) for values in tried], config)
    except ConfigError as error:
        raise ConfigError(f"{file.path.name}: {error}{what_it_has(file, overrides, str(error))}") from error
    return int(config.trainer.rounds)


def what_it_has(file: SweepFile, overrides: Sequence[str], message: str) -> str:
    """The end of an error about an option that other algorithms have: the nearest that this one has, and its rates."""
    unknown = [parameter.name for parameter in file.parameters if f"'{parameter.name}' is not an option of" in message]
    if not unknown:
        return ""
    try:
        model = parse_fit(file.arguments({}, overrides)).model
    except ConfigError:  # it cannot do without what is swept
        return ""
    known = [f"model.{name}" for name in vars(model.init_args)]
    rates = [name for name in known if name.endswith(_RATE)]
    meant = nearest(unknown[0], rates if unknown[0].endswith(_RATE) else known)
    return f" {meant}The rates of {str(model.class_path).rpartition('.')[2]} are {', '.join(rates)}."


def readable(value: Any) -> str:
    """A value in a table: four digits of a number."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
