"""Distributions of seconds (or of speeds), one small class each.

A draw is the inverse distribution function at a keyed uniform number, so a client's draw depends on (seed, round,
client, purpose) alone, and two distributions under one seed rank the clients alike.

    Exponential  Q(u) = -mean ln(1 - u)
    Weibull      Q(u) = scale (-ln(1 - u))^(1 / shape)                  shape 1 is Exponential(scale)
    LogNormal    Q(u) = mean exp(sigma Φ⁻¹(u) - sigma² / 2)             `mean` is the mean of the seconds
    Uniform      Q(u) = low + u (high - low)
    Constant     Q(u) = value
    Trace        recorded numbers: trace.py
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedlit.errors import require
from fedlit.keys import Purpose, Rounds, uniforms

Seconds = NDArray[np.float64]


class Distribution(ABC):
    """Base of the distributions; none of them draws a negative number."""

    is_recorded = False
    """Whether there is only one number for a round and client, so that `processing: sum` cannot add several."""

    @abstractmethod
    def expected(self) -> float:
        """Its mean."""

    @abstractmethod
    def quantile(self, u: ArrayLike) -> Seconds:
        """The inverse of the distribution function, element by element, for 0 <= u < 1."""

    def draw(self, seed: int, purpose: Purpose, round: Rounds, clients: ArrayLike, index: int = 0) -> Seconds:
        """(clients,): one number for each client, whichever other clients are drawn."""
        return self.quantile(uniforms(seed, purpose, clients, round=round, index=index)[:, 0])

    def draw_four(self, seed: int, purpose: Purpose, round: Rounds, clients: ArrayLike, block: int) -> Seconds:
        """(clients, 4): independent numbers 4 · block to 4 · block + 3; `draw` gives number 0."""
        return self.quantile(uniforms(seed, purpose, clients, round=round, block=block))


@dataclass(frozen=True)
class Exponential(Distribution):
    """Exponential: memoryless arrivals and processing, as in the FedBCD paper.

    Args:
        mean: mean seconds, 1 / rate; above 0
    """

    mean: float

    def __post_init__(self) -> None:
        _check_positive("Exponential.mean", self.mean)

    def expected(self) -> float:
        """The mean."""
        return self.mean

    def quantile(self, u: ArrayLike) -> Seconds:
        """-mean ln(1 - u)."""
        return self.mean * _hazard(u)


@dataclass(frozen=True)
class Weibull(Distribution):
    """Weibull: a heavier tail than the exponential below shape 1, a lighter one above it.

    Args:
        shape: k: above 0 (at least 0.01: below it the numbers leave the range of floats)
        scale: λ: seconds by which a share of 1 - 1/e is done; above 0
    """

    shape: float
    scale: float

    def __post_init__(self) -> None:
        _check_positive("Weibull.shape", self.shape)
        _check_positive("Weibull.scale", self.scale)
        require(self.shape >= 0.01, f"Weibull.shape is {self.shape}. Set it to 0.01 or more.")

    def expected(self) -> float:
        """scale Γ(1 + 1 / shape)."""
        return self.scale * math.gamma(1 + 1 / self.shape)

    def quantile(self, u: ArrayLike) -> Seconds:
        """scale (-ln(1 - u))^(1 / shape)."""
        seconds: Seconds = self.scale * _hazard(u) ** (1 / self.shape)
        return seconds


@dataclass(frozen=True)
class LogNormal(Distribution):
    """Log-normal: the usual model of devices' speeds and of response times.

    Args:
        mean: mean of the seconds themselves, not of their logarithm; the median is mean · exp(-sigma² / 2). Above 0
        sigma: σ: standard deviation of the logarithm; 0 or more
    """

    mean: float
    sigma: float

    def __post_init__(self) -> None:
        _check_positive("LogNormal.mean", self.mean)
        _check_not_negative("LogNormal.sigma", self.sigma)

    def expected(self) -> float:
        """The mean."""
        return self.mean

    def quantile(self, u: ArrayLike) -> Seconds:
        """mean exp(sigma Φ⁻¹(u) - sigma² / 2)."""
        if self.sigma == 0:  # 0 · Φ⁻¹(0) is not a number
            return np.full(np.shape(u), self.mean)
        normal = torch.special.ndtri(torch.as_tensor(np.asarray(u, dtype=np.float64))).numpy()
        seconds: Seconds = self.mean * np.exp(self.sigma * normal - self.sigma**2 / 2)
        return seconds


@dataclass(frozen=True)
class Uniform(Distribution):
    """Uniform between two numbers.

    Args:
        low: fewest seconds; 0 or more
        high: most seconds; at least `low`
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_not_negative("Uniform.low", self.low)
        _check_not_negative("Uniform.high", self.high)
        require(
            self.low <= self.high,
            f"Uniform.low is {self.low} and Uniform.high is {self.high}. Exchange them, or raise high.",
        )

    def expected(self) -> float:
        """(low + high) / 2."""
        return (self.low + self.high) / 2

    def quantile(self, u: ArrayLike) -> Seconds:
        """low + u (high - low)."""
        return self.low + (self.high - self.low) * np.asarray(u, dtype=np.float64)


@dataclass(frozen=True)
class Constant(Distribution):
    """The same number in every draw.

    Args:
        value: seconds; 0 or more
    """

    value: float

    def __post_init__(self) -> None:
        _check_not_negative("Constant.value", self.value)

    def expected(self) -> float:
        """The value."""
        return self.value

    def quantile(self, u: ArrayLike) -> Seconds:
        """The value, in the shape of u."""
        return np.full(np.shape(u), self.value, dtype=np.float64)

    def draw(self, seed: int, purpose: Purpose, round: Rounds, clients: ArrayLike, index: int = 0) -> Seconds:
        """(clients,): the value. Nothing is drawn, since drawing takes most of a small round's time in the clock."""
        return self.quantile(np.atleast_1d(clients))


def _hazard(u: ArrayLike) -> Seconds:
    """-ln(1 - u): the quantile of the exponential distribution with mean 1."""
    seconds: Seconds = -np.log1p(-np.asarray(u, dtype=np.float64))
    return seconds


def _check_positive(key: str, value: float) -> None:
    require(math.isfinite(value) and value > 0, f"{key} is {value}. Set it to a finite number above 0.")


def _check_not_negative(key: str, value: float) -> None:
    require(math.isfinite(value) and value >= 0, f"{key} is {value}. Set it to a finite number that is 0 or more.")
