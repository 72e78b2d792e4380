"""Paired differences: a group against a reference, seed by seed, with a Student-t confidence interval and a rank test.

    d_s = value(group, seed s) − value(reference, seed s)      over the seeds that both have
    mean(d) ± t(0.975, n − 1) · std(d) / √n                    n pairs, std divided by n − 1

Pairing takes out what the seeds have in common (the initial weights, the cohorts). Intervals are not corrected for many
comparisons; p is, among the groups that are compared in one metric (signed_ranks.py). Neither is given for runs of
different lengths, of which the longer one would win by its length.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedlit.errors import ConfigError, nearest
from fedlit.metrics.catalogue import ROUNDS_TO, TIME_TO, metric
from fedlit.report.signed_ranks import ALPHA, holm, signed_rank_p, smallest_p
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

    lengths: Sequence[int] = ()
    """Rounds of the runs in the pairs, where they are not all of one length."""
    holm: float | None = None
    """p after the correction for the other groups that are compared in this metric."""
    tests: int = 1
    """So many groups are tested in this metric."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean difference; None with fewer than two pairs, or of different lengths."""
        return None if self.lengths else interval([one.value for one in self.values])

    @property
    def p(self) -> float | None:
        """Wilcoxon's signed-rank p; None for different lengths, and where no difference is known to be other than 0."""
        return None if self.lengths else signed_rank_p([one.value for one in self.values])

    @property
    def by_the_test(self) -> str:
        """Whether the corrected p is significant, with the number of pairs; and whether it could be."""
        if self.holm is None:
            return "refused" if self.lengths else "no test"
        if self.holm <= ALPHA:
            return f"significant, n = {self.n}"
        can_be = self.tests * smallest_p(self.n) <= ALPHA
        return f"{'not significant' if can_be else 'too few pairs'}, n = {self.n}"

    @property
    def verdict(self) -> str:
        """In words whether 0 lies outside the interval, and which way is better where the metric has one."""
        if not self.values:
            return "no common seed"
        if self.lengths:
            return "other lengths"
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


def differences(groups: Sequence[Group], reference: Group, name: str, last: int = 1) -> list[Difference]:
    """One metric of several groups against the reference, p corrected by Holm's method for their number."""
    tested = [difference(group, reference, name, last) for group in groups]
    ps = [one.p for one in tested if one.p is not None]
    corrected = iter(holm(ps))
    return [one if one.p is None else replace(one, holm=next(corrected), tests=len(ps)) for one in tested]


def difference(group: Group, reference: Group, name: str, last: int = 1) -> Difference:
    """One metric of a group against the reference, by the seeds that both have."""
    theirs = {one.seed: one for one in cell_of(reference, name, last).values}
    pairs = [
        Pair(one.run, one.seed, one.value - theirs[one.seed].value, one.value, theirs[one.seed])
        for one in cell_of(group, name, last).values
        if one.seed in theirs
    ]
    rounds = {run.path: run.rounds[-1] for run in (*group.runs, *reference.runs)}
    lengths = {rounds[run] for pair in pairs for run in (pair.run, pair.reference.run)}
    matters = len(lengths) > 1 and not name.startswith((ROUNDS_TO, TIME_TO))  # these end when they are reached
    return Difference(group.label, name, pairs, lengths=sorted(lengths) if matters else ())


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
