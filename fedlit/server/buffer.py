"""Buffer: one server that does not wait for a round's slowest client (FedBuff, Nguyen et al. 2022, Algorithm 1).

`concurrency` clients (C) are in flight, and each trains the model that it was sent. When a report arrives, another
client, which is neither in flight nor in the buffer, is sent the present model. After `size` reports (K) the server
steps, and the buffer is empty again:

    pseudo_gradient = sum_i w_i s(tau_i) (received_i - x_i)     over the K reports
    tau_i                                                       steps of the server since client i was sent its model

w_i are the run's weights, which sum to 1 (uniform ones give FedBuff's mean), and s discounts stale reports. With s = 1
and every received_i = z it is the flat round's z - sum_i w_i x_i. Readings: all reports of a moment are received before
any client is sent a model at that moment; so the client that follows the K-th report is sent the model after the step.
"""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from fedlit.errors import ConfigError, nearest, require
from fedlit.recorded import Recorded


class Discount(Recorded):
    """A factor on each report that depends on its staleness: the steps of the server since its model was sent."""

    def of(self, staleness: Tensor) -> Tensor:
        """(reports,) float64 factors for these numbers of steps; 1 for 0 steps."""
        raise NotImplementedError


class Undiscounted(Discount):
    """s(τ) = 1: all reports count the same."""

    def of(self, staleness: Tensor) -> Tensor:
        """Ones."""
        return torch.ones_like(staleness)


@dataclass
class Polynomial(Discount):
    """s(τ) = (1 + τ)^-power.

    Args:
        power: a: how fast a report loses its weight; 0.5 in FedBuff.
    """

    power: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.power < inf, f"Polynomial.power is {self.power}; give 0 (no discount) or more.")

    def of(self, staleness: Tensor) -> Tensor:
        """(1 + τ)^-a."""
        return (1 + staleness) ** -self.power


@dataclass
class Hinge(Discount):
    """s(τ) = 1 up to τ = grace, then 1 / (slope (τ - grace) + 1) (FedAsync, Xie et al. 2019).

    Args:
        slope: a: how fast a report loses its weight after that; 10 in FedAsync.
        grace: b: how many steps of the server may pass without a discount; 4 in FedAsync.
    """

    slope: float = 10.0
    grace: float = 4.0

    def __post_init__(self) -> None:
        require(0 <= self.slope < inf, f"Hinge.slope is {self.slope}; give 0 (no discount) or more.")
        require(0 <= self.grace < inf, f"Hinge.grace is {self.grace}; give a number of steps, 0 or more.")

    def of(self, staleness: Tensor) -> Tensor:
        """1, or 1 / (a (τ - b) + 1)."""
        return 1 / (self.slope * (staleness - self.grace).clamp(min=0) + 1)


_BY_NAME: dict[str, type[Discount]] = {"constant": Undiscounted, "polynomial": Polynomial, "hinge": Hinge}


def find_discount(discount: str | Discount) -> Discount:
    """A discount from its name in configs, or itself."""
    if isinstance(discount, Discount):
        return discount
    if discount not in _BY_NAME:
        raise ConfigError(
            f"trainer.buffer.discount is '{discount}', which is not a discount. {nearest(discount, _BY_NAME)}"
            f"Known: {', '.join(_BY_NAME)}, or the classes Polynomial and Hinge with their options."
        )
    return _BY_NAME[discount]()


@dataclass(frozen=True)
class Buffer(Recorded):
    """A server that steps whenever its buffer holds `size` reports.

    Args:
        size: K: reports after which the server steps; it replaces trainer.clients_per_round.
        concurrency: C: clients in flight.
        discount: how much a stale report counts: constant, polynomial, hinge, or a Discount.
    """

    size: int = 10
    concurrency: int = 100
    discount: str | Discount = "polynomial"

    def __post_init__(self) -> None:
        require(self.size >= 1, f"trainer.buffer.size is {self.size}; give 1 or more.")
        require(
            self.size <= self.concurrency,
            f"trainer.buffer.size is {self.size}, but only {self.concurrency} clients are in flight "
            "(trainer.buffer.concurrency), so the buffer would never be full. Lower size, or raise concurrency.",
        )
        find_discount(self.discount)

    def discounts(self, staleness: Tensor) -> Tensor:
        """(reports,) s(τ_i)."""
        return find_discount(self.discount).of(staleness.double())
