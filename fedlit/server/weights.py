"""Weightings: how much each reporting client counts in the average.

Each is a pure function of the cohort's tensors. Weights are >= 0 and sum to 1 over the reporting clients.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedlit.client.cohort import TrainedCohort
from fedlit.errors import ConfigError, nearest, require
from fedlit.params import concat_rows
from fedlit.recorded import Recorded

log = logging.getLogger("fedlit")


class Weighed(NamedTuple):
    """Aggregation weights (clients,) and the length of the server's step along the averaged update."""

    weights: Tensor
    step: float = 1.0


class Weighting(Recorded):
    """Base of the weightings."""

    name: str = ""
    """Its name in configs; without one, configs name its class."""
    needs_state: tuple[str, ...] = ()
    """Client states that it reads; it is refused for an algorithm without them."""
    needs: frozenset[str] = frozenset()
    """Which of `risk_received`, `risk_trained` and `grad_received` the loop measures for it in each round."""

    def weigh(self, cohort: TrainedCohort) -> Weighed:
        """Weights and step length for this cohort."""
        raise NotImplementedError

    def weigh_each(self, cohorts: Sequence[TrainedCohort]) -> list[Weighed]:
        """The same for each cohort of the servers that step together."""
        return [self.weigh(cohort) for cohort in cohorts]


class Counting(Weighting):
    """Base of weightings by a whole number per client. Such sums are exact, so all cohorts are summed at once."""

    def counts(self, cohort: TrainedCohort) -> Tensor:
        """(clients,) the whole number of each client."""
        raise NotImplementedError

    def all_counts(self, cohorts: Sequence[TrainedCohort]) -> Tensor:
        """The same for the clients of all cohorts."""
        return concat_rows([self.counts(cohort) for cohort in cohorts])

    def weigh(self, cohort: TrainedCohort) -> Weighed:
        """counts_i / sum counts, over the reporting clients."""
        return Weighed(normalise(self.counts(cohort), cohort.reports))

    def weigh_each(self, cohorts: Sequence[TrainedCohort]) -> list[Weighed]:
        """The same for all cohorts at once, unless a subclass overrides `weigh`."""
        if type(self).weigh is not Counting.weigh:
            return super().weigh_each(cohorts)
        lengths = [len(cohort.clients) for cohort in cohorts]
        each = normalise_each(self.all_counts(cohorts), TrainedCohort.reports.of(cohorts), lengths)
        return [Weighed(weights) for weights in each]


class Samples(Counting):
    """n_i / sum n: by training samples."""

    name = "samples"

    def counts(self, cohort: TrainedCohort) -> Tensor:
        """Sizes."""
        return cohort.sizes

    def all_counts(self, cohorts: Sequence[TrainedCohort]) -> Tensor:
        """Sizes of all."""
        return TrainedCohort.sizes.of(cohorts)


class Uniform(Counting):
    """1 / S: all clients count the same."""

    name = "uniform"

    def counts(self, cohort: TrainedCohort) -> Tensor:
        """One each."""
        return torch.ones(len(cohort.clients))


@dataclass
class QFFL(Weighting):
    """F_i^q over their sum, with the step length of q-FedAvg (F_i: loss of the received model on i's training data).

    Args:
        q: q: how much a large loss counts; 0 is uniform.
        lipschitz: L: bound on the curvature; 1 / lr unless given.
        sample_weighted: multiply every client's part by its number of samples.
    """

    q: float = 1.0
    lipschitz: float | None = None
    sample_weighted: bool = False
    name = "q_ffl"
    needs = frozenset({"risk_received"})

    def weigh(self, cohort: TrainedCohort) -> Weighed:
        """w ∝ F^q, step = Σ F^q L / Σ h with h = q F^(q-1) |L (z - x)|² + L F^q; a client without samples counts 0."""
        counts = cohort.reports & (cohort.sizes > 0)
        if not bool(counts.any()):
            return Uniform().weigh(cohort)
        risk = torch.where(counts, cohort.risk_received.double(), 1.0) + 1e-10
        bound = 1 / cohort.rate if self.lipschitz is None else self.lipschitz
        lengths = cohort.distances.double()
        h = self.q * risk ** (self.q - 1) * bound**2 * lengths + bound * risk**self.q
        parts = counts * (cohort.sizes.double() if self.sample_weighted else 1.0)
        step = float((parts * risk**self.q * bound).sum() / (parts * h).sum())
        return Weighed(normalise(parts * risk**self.q, cohort.reports), step)


@dataclass
class ExpAlpha(Weighting):
    """exp((F_new - F_old) / alpha) over their sum: a client whose loss falls more counts less (Exp-α, eq. 3, Alg. 1).

    Args:
        alpha: α: temperature; a large one weighs by samples.
        size_factor: r_i = S n_i / Σ n enters before the exponential and in it (corollary 1.1), before it, or nowhere.
    """

    alpha: float = 0.2
    size_factor: Literal["both", "prefactor", "none"] = "both"
    name = "exp_alpha"
    needs = frozenset({"risk_received", "risk_trained"})

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"ExpAlpha.alpha is {self.alpha}; give a number above 0.")

    def weigh(self, cohort: TrainedCohort) -> Weighed:
        """The largest exponent is subtracted first, for stability. A client with a risk that is not finite counts 0."""
        change = cohort.risk_trained.double() - cohort.risk_received.double()
        counts = cohort.reports & change.isfinite() & (cohort.sizes > 0)
        if not bool(counts.any()):
            return Samples().weigh(cohort)
        sizes = cohort.sizes.double() * cohort.reports
        share = sizes * int(cohort.reports.sum()) / sizes.sum()
        exponent = change * (share if self.size_factor == "both" else 1.0) / self.alpha
        exponent = torch.where(counts, exponent, -torch.inf)
        prefactor = torch.ones_like(share) if self.size_factor == "none" else share
        return Weighed(normalise(prefactor * (exponent - exponent.max()).exp(), cohort.reports))


def check_weights(weighed: Sequence[Weighed], cohorts: Sequence[TrainedCohort], weighting: Weighting) -> None:
    """ConfigError if the weights of a cohort are not shares of its reporting clients; it names the weighting."""
    if are_shares([answer.weights for answer in weighed], cohorts) and all(
        math.isfinite(answer.step) for answer in weighed
    ):
        return
    for answer, cohort in zip(weighed, cohorts, strict=True):
        if not are_shares([answer.weights], [cohort]) or not math.isfinite(answer.step):
            refuse_weights(answer, cohort, weighting)


def refuse_weights(weighed: Weighed, cohort: TrainedCohort, weighting: Weighting) -> NoReturn:
    """Raise ConfigError, with what is wrong with the weights of a cohort."""
    weights, reports = weighed.weights.numpy(), cohort.reports.numpy()
    if weights.shape != reports.shape:
        wrong = f"gave {weights.size} weights for {reports.size} clients"
    elif not np.isfinite(weights).all() or not np.isfinite(weighed.step):
        wrong = f"gave weights {_shown(weights)} with a step of {weighed.step:g}: not all are finite"
    elif (weights < 0).any():
        wrong = f"gave weights {_shown(weights)}: one is below 0"
    elif weights[~reports].any():
        wrong = f"gave weights {_shown(weights)}: a client that does not report has one"
    else:
        wrong = f"gave weights {_shown(weights)}, which sum to {weights.sum():g}"
    raise ConfigError(
        f"Round {cohort.run_round}: the weighting {type(weighting).__name__} {wrong}. Weights must be finite, 0 or "
        "more, and sum to 1 over the reporting clients; fedlit.server.weights.normalise does that."
    )


def are_shares(weights: Sequence[Tensor], cohorts: Sequence[TrainedCohort]) -> bool:
    """Whether the weights of all cohorts are shares; numbers that are not finite fail one of the comparisons."""
    lengths = [of_cohort.numel() for of_cohort in weights]
    if lengths != [len(cohort.clients) for cohort in cohorts] or any(of_cohort.dim() != 1 for of_cohort in weights):
        return False
    shares, sending = concat_rows(weights).numpy(), TrainedCohort.reports.of(cohorts).numpy()
    sums = np.add.reduceat(shares, np.cumsum([0, *lengths[:-1]]))
    return bool(shares.min() >= 0 and (abs(sums - 1) <= 1e-6).all() and not shares[~sending].any())


def _shown(weights: np.ndarray) -> str:
    shown = ", ".join(f"{weight:.4g}" for weight in weights[:6])
    return f"({shown}{', …' if weights.size > 6 else ''})"


def normalise(values: Tensor, reports: Tensor) -> Tensor:
    """Values over their sum, in float64; 0 for clients that do not report."""
    values = values.double() * reports
    total = values.sum()
    if float(total) == 0 and not bool(values.any()):  # nobody has samples (data.allow_empty): all count alike
        values, total = reports.double(), reports.double().sum()
    return values / total


def normalise_each(counts: Tensor, reports: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
    """The same for the whole numbers of several cohorts, which follow each other with these lengths."""
    starts, sends = np.cumsum([0, *lengths[:-1]]), reports.numpy()
    values = counts.numpy() * sends
    is_empty = np.add.reduceat(values, starts) == 0
    if is_empty.any():
        values = np.where(np.repeat(is_empty, lengths), sends, values)
    sums = np.add.reduceat(values, starts, dtype=np.float64)
    return torch.split(torch.from_numpy(values / np.repeat(sums, lengths)), [*lengths])


def named_weightings() -> dict[str, type[Weighting]]:
    """All weightings that have a name, including those of algorithms and users."""
    named: dict[str, type[Weighting]] = {}
    remaining = [Weighting]
    while remaining:
        kind = remaining.pop(0)
        remaining = [*kind.__subclasses__(), *remaining]  # in the order in which they are written
        if vars(kind).get("name"):  # its own: a subclass is another weighting
            named.setdefault(kind.name, kind)
    return named


def find_weighting(weighting: str | Weighting) -> Weighting:
    """A weighting from its name in configs, or itself."""
    if isinstance(weighting, Weighting):
        return weighting
    known = named_weightings()
    if weighting not in known:
        raise ConfigError(
            f"trainer.weights is '{weighting}', which is not a weighting. {nearest(weighting, known)}"
            f"Known: {', '.join(known)}."
        )
    return known[weighting]()
