"""Dual ascent and the tolerance's step, after local training and before the cohort is weighed."""

from math import inf
from typing import Literal

from pytorch_lightning import Trainer
from torch import Tensor

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.server.base import ServerCallback


def dual_ascent(dual: Tensor, slope: Tensor, lr: float, low: float, high: float) -> Tensor:
    """P[dual + lr slope] on [low, high]; the Lagrangian's slope is distance - tolerance."""
    return (dual + lr * slope).clamp(low, high)


def tolerance_step(tolerance: Tensor, dual: Tensor, lr: float) -> Tensor:
    """tolerance + lr dual: gradient descent on the Lagrangian, whose derivative is -dual."""
    return tolerance + lr * dual


class DualAscent(ServerCallback):
    """Moves `dual` and `tolerance` of the cohort; reads the new x_i and the received z.

    Args:
        lr: α: step size of the dual variables.
        low: lower end of their range.
        high: upper end of their range.
        tolerance_lr: step size of the tolerances; 0 keeps them fixed.
        tolerance_uses: which dual moves the tolerance, the old or the new one.
        momentum: of the dual steps; each client's own, kept as `dual_velocity`.
    """

    role = "dual"

    def __init__(
        self,
        *,
        lr: float,
        low: float = 0.0,
        high: float = inf,
        tolerance_lr: float = 0.0,
        tolerance_uses: Literal["old", "new"] = "old",
        momentum: float = 0.0,
    ) -> None:
        self.momentum = momentum
        self.lr, self.low, self.high = lr, low, high
        self.tolerance_lr = tolerance_lr
        self.tolerance_uses = tolerance_uses

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """Both steps start from the values of the round's beginning, unless tolerance_uses is `new`."""
        dual, tolerance = cohort.state["dual"], cohort.state["tolerance"]
        distance = cohort.distances
        slope = distance - tolerance
        if self.momentum:
            slope = cohort.state["dual_velocity"] = self.momentum * cohort.state["dual_velocity"] + slope
        moved = dual_ascent(dual, slope, self.lr, self.low, self.high)
        cohort.state["dual"] = moved
        chosen = moved if self.tolerance_uses == "new" else dual
        cohort.state["tolerance"] = tolerance_step(tolerance, chosen, self.tolerance_lr)
