"""What is measured, as pure functions of predictions. Names and definitions: docs/metrics.md.

It knows neither clients nor rounds; `evaluate.py` brings the predictions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class UserScores:
    """Each user's own test: sums over its samples."""

    hits: Tensor
    """(users,) right predictions."""
    losses: Tensor
    """(users,) sum of losses."""
    counts: Tensor
    """(users,) test samples; 0 = left out of every mean."""

    @property
    def accuracy(self) -> Tensor:
        """(users,) share of right predictions; NaN for users without test samples."""
        return self.hits / self.counts

    @property
    def loss(self) -> Tensor:
        """(users,) mean loss; NaN for users without test samples."""
        return self.losses / self.counts

    @property
    def mean(self) -> float:
        """Plain mean of the users' accuracies: every user counts once."""
        return float(self.accuracy[self.counts > 0].mean())

    @property
    def pooled(self) -> float:
        """Σ right / Σ samples: every sample counts once."""
        return float(self.hits.sum() / self.counts.sum())


def by_user(values: Tensor, owners: Tensor, users: int) -> Tensor:
    """(users,) float64 sums of the values that belong to each user."""
    return torch.zeros(users, dtype=torch.float64).index_add_(0, owners, values.double())


def distribution(accuracy: Tensor) -> dict[str, float]:
    """How accuracy is spread over users: min, max, mean, population variance, 10 % quantile, worst tenth."""
    known = accuracy[~accuracy.isnan()].double()
    if len(known) == 0:
        return dict.fromkeys(("min", "max", "mean", "var", "p10", "worst10"), float("nan"))
    worst = known.sort().values[: max(1, len(known) // 10)]
    return {
        "min": float(known.min()),
        "max": float(known.max()),
        "mean": float(known.mean()),
        "var": float(known.var(correction=0)),
        "p10": float(known.quantile(0.1)),
        "worst10": float(worst.mean()),
    }


def gini(accuracy: Tensor) -> float:
    """Σ_i Σ_j |a_i - a_j| / (2 n² mean): 0 where all users fare alike; 0 too where all accuracies are 0."""
    known = accuracy[~accuracy.isnan()].double().sort().values
    count, total = len(known), known.sum()
    if count == 0:
        return float("nan")
    if total == 0:
        return 0.0
    ranks = torch.arange(1, count + 1, dtype=torch.float64)
    return float((2 * (ranks * known).sum() / total - (count + 1)) / count)


def entropy(accuracy: Tensor) -> float:
    """-Σ p_i log p_i / log n with p_i = a_i / Σ a: 1 where all users fare alike; 1 too for a single user."""
    known = accuracy[~accuracy.isnan()].double()
    if len(known) == 0:
        return float("nan")
    if len(known) < 2 or known.sum() == 0:
        return 1.0
    share = known / known.sum()
    return float(torch.special.entr(share).sum() / torch.log(torch.tensor(float(len(known)), dtype=torch.float64)))


def first_round_at(threshold: float, rounds: list[int], values: list[float]) -> int | None:
    """The first round whose value reaches the threshold, or None."""
    return next((r for r, value in zip(rounds, values, strict=True) if value >= threshold), None)
