"""Paired differences: a group against a reference, seed by seed, with a Student-t confidence interval.

    d_s = value(group, seed s) − value(reference, seed s)      over the seeds that both have
    mean(d) ± t(0.975, n − 1) · std(d) / √n                    n pairs, std divided by n − 1

Pairing takes out what the seeds have in common (the initial weights, the cohorts). No correction for many comparisons.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedlit.errors import ConfigError, nearest
from fedlit.metrics.catalogue import metric
from fedlit.report.tables import Cell, Value, cell_of, deviation, mean
from fedlit.results.runs import Group

LEVEL = 0.95


@dataclass(frozen=True)
class Pair(Value):
    """One seed's difference; `value` is own − reference.value."""

    own: float
    reference: Value


@dataclass(frozen=True)
class Difference(Cell):
    """A metric of one group less that of the reference; its values are pairs."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean difference; None with fewer than two pairs."""
        return interval([one.value for one in self.values])

    @property
    def verdict(self) -> str:
        """In words whether 0 lies outside the interval, and which way is better where the metric has one."""
        if not self.values:
            return "no common seed"
        if self.interval is None:
            return "one pair"
        low, high = self.interval
        if low == high == 0:
            return "equal"
        if low <= 0 <= high or math.isnan(low):
            return "not clear"
        best = metric(self.column).best
        higher = low > 0
        if best is None:
            return "higher" if higher else "lower"
        return "better" if higher == (best == "max") else "worse"


def interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Student-t confidence interval of the mean of a sample; None with fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    half = t_quantile(n - 1, level) * deviation(values) / math.sqrt(n)
    return mean(values) - half, mean(values) + half


def t_quantile(freedom: int, level: float) -> float:
    """The t with P(|T| <= t) = level for so many degrees of freedom, by halving the angle atan(t / √freedom).

    Our own: where SciPy is installed, torchmetrics imports a second's worth of it at every start.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if t_mass(freedom, angle) < level else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def t_mass(freedom: int, angle: float) -> float:
    """P(|T| <= √freedom tan(angle)): a finite sum of powers of the cosine (Abramowitz, Stegun, 26.7.3 and 26.7.4)."""
    odd, cosine = freedom % 2, math.cos(angle)
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def difference(group: Group, reference: Group, name: str, last: int = 1) -> Difference:
    """One metric of a group against the reference, by the seeds that both have."""
    theirs = {one.seed: one for one in cell_of(reference, name, last).values}
    pairs = [
        Pair(one.run, one.seed, one.value - theirs[one.seed].value, one.value, theirs[one.seed])
        for one in cell_of(group, name, last).values
        if one.seed in theirs
    ]
    return Difference(group.label, name, pairs)


def choose_reference(groups: Sequence[Group], asked: str | None) -> Group:
    """The group of this label, else plain FedAvg, else the first."""
    for group in groups:
        if asked is not None and group.label == asked:
            return group
    return next((group for group in groups if group.algorithm == "FedAvg"), groups[0])


def check_reference(groups: Sequence[Group], asked: str | None) -> None:
    """A reference that was named must be there."""
    labels = [group.label for group in groups]
    if asked is not None and asked not in labels:
        raise ConfigError(f"--reference '{asked}' is not a group. {nearest(asked, labels)}Groups: {', '.join(labels)}.")
