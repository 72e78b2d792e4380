"""What the cells of a table came to: our numbers, those of the paper, and how many of them agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from fedlit.errors import RunError
from fedlit.experiments.jobs import Job
from fedlit.experiments.reproduce.reading import Reading, evaluated_rounds, value_of
from fedlit.experiments.reproduce.runs import Reproduction
from fedlit.experiments.reproduce.table import Cell
from fedlit.report.tables import deviation, mean
from fedlit.results.runs import Run, read_run


@dataclass(frozen=True)
class Result:
    """One cell, made."""

    cell: Cell
    reading: Reading
    values: Sequence[float]
    """One for each finished run."""
    point: dict[str, Any] | None
    """The values that the search found; None while it runs."""
    paper: tuple[float, float | None] | None
    """Mean and standard deviation, in our unit."""
    command: str
    """Of its first run; empty while its values are not known."""
    first: float | None = None
    """What is read off that run; None while it is not finished."""
    second: "Result | None" = None
    """The same runs in the other reading, where the file says which one the paper printed."""
    evaluated: tuple[int, int] | None = None
    """(evaluated rounds, rounds) of the run that was evaluated least; None without runs."""

    @property
    def mean(self) -> float | None:
        """Over the runs."""
        return mean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Over the runs, divided by n − 1; None with fewer than two."""
        return deviation(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper[0]

    @property
    def is_within(self) -> bool | None:
        """|d| ≤ 2 √(s₁² + s₂²); a spread that is not known counts as 0, and without any there is no answer."""
        if self.difference is None or self.paper is None:
            return None
        spreads = [spread for spread in (self.std, self.paper[1]) if spread is not None]
        return abs(self.difference) <= 2 * math.hypot(*spreads) if spreads else None


@dataclass(frozen=True)
class Counts:
    """What agrees."""

    compared: int
    answered: int
    """Cells where at least one spread is known."""
    within: int
    orders: dict[str, tuple[float, int]]
    """Column -> (Kendall's τ between our order and the paper's, rows in it)."""


def collect(made: Reproduction) -> list[Result]:
    """Every cell that was asked for, as far as its runs are finished."""
    return [result_of(made, cell) for cell in made.cells]


def result_of(made: Reproduction, cell: Cell) -> Result:
    """One cell in the paper's reading, and in the other one beside it."""
    jobs, reading = made.seed_jobs(cell), made.table.reading_of(cell)
    runs = [read_job(made, job) for job in jobs]
    other = made.table.second_reading_of(cell)
    own = read_as(made, cell, reading, jobs, runs)
    evaluated = [evaluated_rounds(run, reading.metric) for run in runs if run is not None]
    return replace(
        own,
        second=None if other is None else read_as(made, cell, other, jobs, runs),
        evaluated=min(evaluated) if evaluated else None,
    )


def read_as(
    made: Reproduction, cell: Cell, reading: Reading, jobs: Sequence[Job], runs: Sequence[Run | None]
) -> Result:
    """The runs of a cell in one reading."""
    each = [None if run is None else value_of(run, reading) for run in runs]
    values = [value for value in each if value is not None]
    command, first = (jobs[0].command, each[0]) if jobs else ("", None)
    return Result(cell, reading, values, made.found(cell), made.table.paper_number(cell), command, first)


def read_job(made: Reproduction, job: Job) -> Run | None:
    """A run; None where it is not finished, or somebody took its folder away."""
    if not made.is_finished(job):
        return None
    try:
        return read_run(job.folder)
    except RunError:
        return None


def count(results: Sequence[Result]) -> Counts:
    """Over the rows that count."""
    counted = [one for one in results if one.cell.row.counts and one.difference is not None]
    answers = [one.is_within for one in counted if one.is_within is not None]
    orders = {}
    for column in dict.fromkeys(one.cell.column.name for one in counted):
        pairs = [(one.mean, one.paper[0]) for one in counted if one.cell.column.name == column and one.paper]
        if len(pairs) > 1:
            orders[column] = (kendall([(a, b) for a, b in pairs if a is not None]), len(pairs))
    return Counts(len(counted), len(answers), sum(answers), orders)


def kendall(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's τ: pairs in the same order less pairs in the other, over all; ties are neither."""
    signs = [sign((a - b) * (c - d)) for (a, c), (b, d) in combinations(pairs, 2)]
    return sum(signs) / len(signs)


def sign(value: float) -> int:
    """−1, 0 or 1."""
    return (value > 0) - (value < 0)


def seconds_spent(made: Reproduction) -> float:
    """Of all runs, those of the search too."""
    return sum(trial.seconds for trial in made.trial_log.trials.values())
