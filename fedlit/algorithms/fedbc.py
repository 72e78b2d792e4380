"""FedBC: Federated Learning Beyond Consensus, Algorithms 1 and 2.

Each client keeps its own model within a learned distance of the server's model. The dual variable of this constraint is
also the client's weight in the average.

    local      x_i <- x_i - lr (grad f_i(x_i) + 2 dual_i (x_i - z))               Alg. 2: old z, old dual
    dual       dual_i <- P[dual_i + dual_lr (|x_i - z|^2 - tolerance_i)]          eq. 11: new x_i, old z, old tolerance
    tolerance  tolerance_i <- tolerance_i + tolerance_lr dual_i                   descent on L_i: old dual by default
    server     z <- sum_i dual_i x_i / sum_i dual_i over the cohort               eq. 13: new dual

The squared distance has no factor 1/2. Kept per client: dual, tolerance and, with start_from: local, x_i.
Readings: dual and tolerance start at 0 and move simultaneously, as in the authors' code (`tolerance_uses: new` reads
the new dual); local training starts from z, for which the paper's reductions to FedAvg and FedProx hold
(`start_from: local` is Algorithm 2 to the letter, with x_i = z^0 for every client that has not trained: appendix B);
P projects on [dual_min, dual_max], by default [0, inf); if the duals of a cohort sum to 0, `fallback_weights` are used
in that round.
"""

import logging
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from pytorch_lightning import Trainer
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.specs import INITIAL, StateSpec, at_server
from fedlit.client.step import Batch, Phase
from fedlit.errors import require
from fedlit.metrics.catalogue import ShownState
from fedlit.server.base import ServerCallback
from fedlit.server.weights import Weighed, Weighting, find_weighting

log = logging.getLogger("fedlit")


class FedBC(Client):
    """Federated learning beyond consensus.

    Args:
        net: the network that is trained.
        dual_lr: α: step size of the dual ascent (Algorithm 1; the paper tunes it from 1e-7 to 1e-2).
        dual_init: λ⁰: dual variable of a client at its first participation.
        dual_min: lower end of the range that λ is projected on.
        dual_max: upper end of the range that λ is projected on.
        dual_momentum: heavy-ball momentum of the dual ascent, each client's own; 0 in the paper.
        tolerance_lr: step size of the tolerance γ; dual_lr unless given, 0 keeps γ fixed.
        tolerance_init: γ⁰: allowed squared distance at the first participation.
        tolerance_uses: which λ moves γ, the old one (simultaneous steps) or the new one.
        fallback_weights: weighting of a round in which all λ are 0.
        start_from: where local training starts, the received model or the client's own last one, z^0 if it has none
            (Algorithm 2).
        local: the local options of fedlit.client.base.Client.
    """

    dual: Tensor
    weights = "dual"
    shown_states = {
        "dual": ShownState("dual λ", {"dual/mean": "mean", "dual/min": "min", "dual/max": "max"}),
        "tolerance": ShownState("tolerance γ", {"tolerance/mean": "mean"}),
        "dual_velocity": ShownState("velocity of λ"),
    }

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        dual_lr: float = 1e-3,
        dual_init: float = 0.0,
        dual_min: float = 0.0,
        dual_max: float = inf,
        dual_momentum: float = 0.0,
        tolerance_lr: float | None = None,
        tolerance_init: float = 0.0,
        tolerance_uses: Literal["old", "new"] = "old",
        fallback_weights: Literal["samples", "uniform"] = "samples",
        start_from: Literal["global", "local"] = "global",
        **local: Any,
    ) -> None:
        super().__init__(net, **local)
        require(dual_lr >= 0, f"model.dual_lr is {dual_lr}; give 0 (frozen duals) or more.")
        require(tolerance_lr is None or tolerance_lr >= 0, f"model.tolerance_lr is {tolerance_lr}; give 0 or more.")
        require(
            0 <= dual_min <= dual_init <= dual_max,
            f"model.dual_init is {dual_init}, but the duals are limited to [{dual_min}, {dual_max}] and must not be "
            "negative. Choose dual_min <= dual_init <= dual_max, all at least 0.",
        )
        require(0 <= dual_momentum < 1, f"model.dual_momentum is {dual_momentum}; give 0 or more and below 1.")
        self.dual_lr, self.dual_momentum = dual_lr, dual_momentum
        self.dual_init, self.dual_min, self.dual_max = dual_init, dual_min, dual_max
        self.tolerance_lr = dual_lr if tolerance_lr is None else tolerance_lr
        self.tolerance_init = tolerance_init
        self.tolerance_uses = tolerance_uses
        self.fallback_weights = fallback_weights
        self.start_from = start_from

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """L_i = f_i(x) + λ_i |x - z|² (eq. 8, without the constant λ_i γ_i)."""
        task = self.task_loss(batch)
        return {"loss": task + self.dual * self.distance_to_global(), "task": task}

    def state_spec(self) -> StateSpec:
        """λ_i and γ_i, which the server computes; also x_i if training starts from it."""
        kept: StateSpec = {"dual": at_server(self.dual_init, sent=True), "tolerance": at_server(self.tolerance_init)}
        kept |= {"dual_velocity": at_server(0.0)} if self.dual_momentum else {}
        return kept | ({"local": INITIAL} if self.start_from == "local" else {})

    def phases(self) -> list[Phase]:
        """One solve, from the received model or from the client's own."""
        return [Phase(start="local" if self.start_from == "local" else "received")]

    def server_callbacks(self) -> list[ServerCallback]:
        """The callback for eq. 11 and the tolerance's step."""
        return [
            DualAscent(
                lr=self.dual_lr,
                low=self.dual_min,
                high=self.dual_max,
                tolerance_lr=self.tolerance_lr,
                tolerance_uses=self.tolerance_uses,
                momentum=self.dual_momentum,
            )
        ]

    def weighting(self) -> Weighting:
        """Eq. 13."""
        return Dual(fallback=self.fallback_weights)


def dual_ascent(dual: Tensor, slope: Tensor, lr: float, low: float, high: float) -> Tensor:
    """P[dual + lr slope] on [low, high]; the Lagrangian's slope is distance - tolerance."""
    return dual.add(slope, alpha=lr).clamp(low, high)


def tolerance_step(tolerance: Tensor, dual: Tensor, lr: float) -> Tensor:
    """tolerance + lr dual: gradient descent on the Lagrangian, whose derivative is -dual."""
    return tolerance.add(dual, alpha=lr)


class DualAscent(ServerCallback):
    """Moves `dual` and `tolerance` of the cohort, from the new x_i and the received z.

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

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        """Both steps use the values from before the round, unless tolerance_uses is `new`."""
        dual, tolerance = cohort.state["dual"], cohort.state["tolerance"]
        distance = cohort.distances
        slope = distance - tolerance
        if self.momentum:
            slope = cohort.state["dual_velocity"] = self.momentum * cohort.state["dual_velocity"] + slope
        moved = dual_ascent(dual, slope, self.lr, self.low, self.high)
        cohort.state["dual"] = moved
        chosen = moved if self.tolerance_uses == "new" else dual
        cohort.state["tolerance"] = tolerance_step(tolerance, chosen, self.tolerance_lr)


@dataclass
class Dual(Weighting):
    """dual_i / sum dual: weights by dual variable.

    Args:
        fallback: weighting of a round in which the duals sum to 0 or are not finite.
    """

    fallback: Literal["samples", "uniform"] = "samples"
    name = "dual"
    needs_state = ("dual",)

    def weigh(self, cohort: TrainedCohort) -> Weighed:
        """Weights by the cohort's updated dual variables."""
        dual = cohort.state["dual"].double() * cohort.reports
        total = float(dual.sum())
        if 0 < total < inf:
            return Weighed(dual / total)
        log.info(f"Round {cohort.run_round}: the duals sum to {total:g}; weights are '{self.fallback}' instead.")
        return find_weighting(self.fallback).weigh(cohort)
