"""Scores of users as pure functions of predictions. Names and definitions: docs/metrics.md.

Nothing here knows clients or rounds; `evaluation/evaluator.py` brings the predictions. A new metric per user is a
`Measure` in `measures.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlit.metrics.measures import ACCURACY, Measure

Predicted = tuple[Tensor, Tensor]
"""Outputs of the net for some rows, and the rows' targets."""


@dataclass(frozen=True)
class OwnScores:
    """A model on one user's own test."""

    sums: Mapping[str, Tensor]
    """Measure -> (k,) sums of its numbers; the value of a measure that is not a sum."""
    loss: Tensor
    """The sum of losses."""
    predicted: Predicted | None = None
    """What measures are computed from that are not sums; None if there are none."""


@dataclass(frozen=True)
class UserScores:
    """Each user's own test: sums over its samples."""

    sums: Mapping[str, Tensor]
    """Measure -> (users, k) sums of its numbers."""
    losses: Tensor
    """(users,) sum of losses."""
    counts: Tensor
    """(users,) test samples; 0 = left out of every mean."""
    predicted: Mapping[int, Predicted] = field(default_factory=dict)
    """User -> outputs and targets, for measures that are not sums over rows."""

    def values(self, measure: Measure) -> Tensor:
        """(users,) the measure of each user; NaN where there are no test samples."""
        return measure.value(self.sums[measure.name], self.counts)

    @property
    def loss(self) -> Tensor:
        """(users,) mean loss; NaN for users without test samples."""
        return self.losses / self.counts

    def mean(self, measure: Measure) -> float:
        """Plain mean over the users that have a value: every user counts once."""
        values = self.values(measure)
        return float(values[~values.isnan()].mean())

    def pooled(self, measure: Measure) -> float:
        """The measure of all samples together: every sample counts once."""
        if measure.of_outputs is not None:
            parts = [self.predicted[user] for user in sorted(self.predicted)]
            together = (torch.cat(part) for part in zip(*parts, strict=True))
            return measure.of_outputs(*together).value if parts else torch.nan
        return float(measure.value(self.sums[measure.name].sum(0), self.counts.sum()))

    def replaced(self, own: Mapping[int, OwnScores]) -> "UserScores":
        """These scores, with those of some users replaced."""
        if not own:
            return self
        users = list(own)
        sums = {name: value.clone() for name, value in self.sums.items()}
        for name, value in sums.items():
            value[users] = torch.stack([scores.sums[name] for scores in own.values()])
        losses = self.losses.clone()
        losses[users] = torch.stack([scores.loss for scores in own.values()])
        predicted = {user: scores.predicted for user, scores in own.items() if scores.predicted is not None}
        return UserScores(sums, losses, self.counts, {**self.predicted, **predicted})


def by_user(values: Tensor, owners: Tensor, users: int) -> Tensor:
    """(users, ...) float64 sums of the values (rows, ...) that belong to each user."""
    return torch.zeros(users, *values.shape[1:], dtype=torch.float64).index_add_(0, owners, values.double())


def distribution(values: Tensor, measure: Measure = ACCURACY) -> dict[str, float]:
    """Statistics of a measure over users: min, max, mean, population variance, a quantile and the worst tenth.

    The quantile describes users with bad values: 10 %, or 90 % if less is better.
    """
    known = values[~values.isnan()].double()
    if len(known) == 0:
        return dict.fromkeys(measure.spread, float("nan"))
    less_is_better = measure.best == "min"
    worst = known.sort(descending=less_is_better).values[: max(1, len(known) // 10)]
    return {
        "min": float(known.min()),
        "max": float(known.max()),
        "mean": float(known.mean()),
        "var": float(known.var(correction=0)),
        measure.tail: float(known.quantile(0.9 if less_is_better else 0.1)),
        "worst10": float(worst.mean()),
    }


def gini(accuracy: Tensor) -> float:
    """Σ_i Σ_j |a_i - a_j| / (2 n² mean): 0 where all users fare alike, also where all are 0; NaN below 0."""
    known = accuracy[~accuracy.isnan()].double().sort().values
    count, total = len(known), known.sum()
    if count == 0 or known[0] < 0:
        return float("nan")
    if total == 0:
        return 0.0
    ranks = torch.arange(1, count + 1, dtype=torch.float64)
    return float((2 * (ranks * known).sum() / total - (count + 1)) / count)


def entropy(accuracy: Tensor) -> float:
    """-Σ p_i log p_i / log n with p_i = a_i / Σ a: 1 where all users fare alike, also for one user; NaN below 0."""
    known = accuracy[~accuracy.isnan()].double()
    if len(known) == 0 or known.min() < 0:
        return float("nan")
    if len(known) < 2 or known.sum() == 0:
        return 1.0
    share = known / known.sum()
    return float(torch.special.entr(share).sum() / torch.log(torch.tensor(float(len(known)), dtype=torch.float64)))


def first_round_at(threshold: float, rounds: list[int], values: list[float]) -> int | None:
    """The first round whose value reaches the threshold, or None."""
    return next((r for r, value in zip(rounds, values, strict=True) if value >= threshold), None)
