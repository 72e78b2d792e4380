"""The numbers of a report's tables: every cell keeps the runs it was computed from.

A cell is a mean over the seeds of one group. What it looks like is decided elsewhere (grids.py, markdown.py, ...).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlit.errors import ConfigError, nearest
from fedlit.metrics.catalogue import CLOCK, ROUNDS_TO, TIME_TO
from fedlit.metrics.measures import Measure
from fedlit.report.min_max import LAST, min_max_metrics
from fedlit.results.runs import Group, Run


@dataclass(frozen=True)
class Value:
    """One run's part in a cell."""

    run: Path
    seed: tuple[int, int]
    """Of the run and of its data."""
    value: float


@dataclass(frozen=True)
class Cell:
    """A metric of one group: mean and spread over its seeds."""

    row: str
    """The group's label."""
    column: str
    """The metric's name."""
    values: Sequence[Value]
    missing: Sequence[Path] = ()
    """Runs of the group that do not have it."""

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Plain mean over the seeds, nan if one of them is not finite; None without any."""
        return mean([one.value for one in self.values]) if self.values else None

    @property
    def std(self) -> float | None:
        """Standard deviation over the seeds, divided by n − 1; None with fewer than two."""
        return deviation([one.value for one in self.values]) if self.n > 1 else None


def mean(values: Sequence[float]) -> float:
    """Plain mean; nan if a value is not finite."""
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample of two or more: the squares are divided by n − 1."""
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def measured(run: Run, name: str, last: int = 1) -> float | None:
    """The metric at the end of a run: mean of its `last` newest values, or what is known of the whole run."""
    value = run.final(name, last)
    return value if value is not None else whole_run_metrics(run).get(name)


def whole_run_metrics(run: Run) -> dict[str, float]:
    """What has no curve: in summary.json alone, times at which thresholds were reached, and of min and max user."""
    return summary_metrics(run) | times_to(run) | min_max_metrics(run.rows, run.measures)


def summary_metrics(run: Run) -> dict[str, float]:
    """`rounds_to/0.40`, `halftime/acc` and the like; a threshold that was never reached is absent."""
    return {
        name: value
        for name, value in run.summary.items()
        if "/" in name and isinstance(value, int | float) and not isinstance(value, bool)
    }


def times_to(run: Run) -> dict[str, float]:
    """`time_to/0.40`: simulated time of the first round with this global accuracy, for the summary's `rounds_to`.

    A threshold that was never reached is absent, as are all of them where there is no clock.
    """
    thresholds = [name.removeprefix(ROUNDS_TO) for name in run.summary if name.startswith(ROUNDS_TO)]
    reached = [(row["global/acc"], row[CLOCK]) for row in run.rows if CLOCK in row and "global/acc" in row]
    first = {text: next((time for acc, time in reached if acc >= float(text)), None) for text in thresholds}
    return {f"{TIME_TO}{text}": time for text, time in first.items() if time is not None}


def cell_of(group: Group, name: str, last: int = 1) -> Cell:
    """One metric of one group."""
    scores = [(run, measured(run, name, last)) for run in group.runs]
    values = [Value(run.path, run.seed, value) for run, value in scores if value is not None]
    return Cell(group.label, name, values, [run.path for run, value in scores if value is None])


def known_metrics(runs: Sequence[Run]) -> list[str]:
    """Names of everything that at least one run has at its end."""
    names = [name for run in runs for name in (*run.metrics, *whole_run_metrics(run))]
    return list(dict.fromkeys(names))


def choose_metrics(runs: Sequence[Run], asked: Sequence[str]) -> list[str]:
    """The metrics that were asked for, each once, or a sensible set of those that the runs have."""
    known = known_metrics(runs)
    for name in asked:
        if name not in known:
            raise ConfigError(
                f"--metric {name} was not measured in any of these runs. {nearest(name, known)}"
                f"They have: {', '.join(known)}."
            )
    if asked:
        return list(dict.fromkeys(asked))
    usual = [name for name in default_metrics(runs) if name in known and not is_repetition(runs, name)]
    return [*usual, *(name for name in known if name.startswith(TIME_TO))] or known[:8]


def default_metrics(runs: Sequence[Run]) -> list[str]:
    """What a table shows when nobody says otherwise: of what runs are judged by the users too, of the rest z alone."""
    first = list(dict.fromkeys(run.measures[0] for run in runs))
    other = [measure for run in runs for measure in run.measures if measure not in first]
    usual = [name for measure in first for name in told_of(measure)]
    return list(dict.fromkeys([*usual, "users/gini", *(f"global/{measure.name}" for measure in other)]))


def told_of(measure: Measure) -> list[str]:
    """The metrics of a measure that tables have."""
    name, worst = measure.name, "min" if measure.best == "max" else "max"
    return [
        *(f"{model}/{name}" for model in ("global", "local", "personal", "finetuned")),
        *("finetuned/lr", "finetuned/epochs", f"newcomers/{name}"),
        *(f"global/user_{name}", f"users/{name}_{worst}", f"users/{name}_worst10", f"users/{name}_var"),
        *(f"min_user/{name}_last{LAST}", f"max_user/{name}_last{LAST}"),
        *(f"min_max/{name}_gap", f"min_max/{name}_within10"),
    ]


def is_repetition(runs: Sequence[Run], name: str) -> bool:
    """Whether the local models are the users' personal ones in every run: the same column twice tells nothing."""
    group, _, measure = name.partition("/")
    return group == "local" and all(run.final(name) == run.final(f"personal/{measure}") for run in runs)
