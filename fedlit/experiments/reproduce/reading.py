"""How a run becomes a number of a table: its best round, the mean of its last ones, or a part of it.

Papers seldom say which of the first two they print. So a table's file may say it for them, and a page shows both.
"""

from dataclasses import dataclass, replace
from statistics import fmean

from fedlit.experiments.sweep.objective import objective
from fedlit.metrics.catalogue import metric
from fedlit.report.domains import MEAN, domain_scores
from fedlit.report.figures.rounds import mean_weights
from fedlit.report.tables import measured
from fedlit.results.runs import Run


@dataclass(frozen=True)
class Reading:
    """How a run becomes a number."""

    metric: str
    last: int = 1
    """Mean over so many evaluated rounds at the end."""
    best: bool = False
    """The best evaluated round instead."""
    domain: str | None = None
    """Accuracy on the clients of one domain instead of the metric."""
    weight_of: str | None = None
    """The mean aggregation coefficient of one group of clients instead, over all evaluated rounds."""

    @property
    def words(self) -> str:
        """For a caption."""
        if self.weight_of is not None:
            return f"mean coefficient of a client of the group '{self.weight_of}', over all evaluated rounds"
        what = f"accuracy in the domain {self.domain}" if self.domain else self.metric
        return f"{what}, {self.rounds}"

    @property
    def rounds(self) -> str:
        """Which rounds count, in a sentence."""
        if self.best:
            return "best evaluated round"
        return "last evaluated round" if self.last == 1 else f"mean of the last {self.last} evaluated rounds"

    @property
    def label(self) -> str:
        """Which rounds count, in a heading."""
        return "best round" if self.best else f"last {self.last}"

    @property
    def other(self) -> "Reading":
        """The best round in place of the last ones, or the other way round."""
        return replace(self, best=not self.best)


PRINTED = {"best": True, "last": False}
"""What a file may say of a paper -> whether that is the best round."""


@dataclass(frozen=True)
class Printed:
    """Which of the two readings a paper printed."""

    best: bool
    why: str
    """What speaks for it, in a sentence."""


def value_of(run: Run, reading: Reading) -> float | None:
    """A run's number, None where it was not measured."""
    if reading.domain is not None:
        scores, _ = domain_scores(run, reading.last)
        return sum(scores.values()) / len(scores) if reading.domain == MEAN and scores else scores.get(reading.domain)
    if reading.weight_of is not None:
        by_round = mean_weights(run).get(reading.weight_of, {})
        return fmean(by_round.values()) if by_round else None
    if reading.best:
        return objective(run, reading.metric, "minimize" if metric(reading.metric).best == "min" else "maximize")
    return measured(run, reading.metric, reading.last)


def evaluated_rounds(run: Run, name: str) -> tuple[int, int]:
    """(rounds after which a metric was measured, rounds of the run); what is measured before the first is neither."""
    rounds, _ = run.series(name)
    return sum(done > 0 for done in rounds), run.rounds[-1]
