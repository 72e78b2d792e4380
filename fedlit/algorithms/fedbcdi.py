"""FedBCD-I: block-coordinate descent with offline training, Algorithm 2, with one server.

More clients train than report. The others train offline, on their own loss only, for at most `offline_rounds` rounds
without contact. The clients that report are pulled towards the server's model before they send theirs.

    offline   e = x + extrapolation (x - x_prev),   x <- P[e - lr g_i(e)], K_i times, if below offline_rounds
    pull      x <- P[x - prox_i (x - z)], K_i times, by clients that report
    server    z <- z - server_lr sum_i prox_i (z - x_i) / sum_i prox_i, over clients that report               line 24

A client trains while its count is below `offline_rounds`; the count goes up with every round in which it trains, and
back to 0 when it reports. Kept per client: x_i, x_prev, the count.
Readings: the server's sum is divided by sum prox_i, so that one prox for all acts only in the pull (`server_sum: sum`
is the paper's formula), and is over the clients that report (`server_over: all` takes the model that each client sent
last, or z^0); after a pull x_prev is the iterate before the last one (`momentum_after_pull: reset` sets it to x); the
training and the pull of a round have the same K_i.
"""

from typing import Any, Literal

import numpy as np
import torch
from pytorch_lightning import Trainer
from torch import Tensor, nn

from fedlit.algorithms.fedbcd import BlockAverage, FedBCD
from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, Selection, TrainedCohort
from fedlit.client.local_optimizers import ExtrapolatedSGD
from fedlit.client.specs import INITIAL, StateSpec, at_server
from fedlit.client.step import Batch, Phase
from fedlit.errors import require
from fedlit.keys import GeneratorOf
from fedlit.metrics.catalogue import ShownState
from fedlit.params import per_client
from fedlit.server.base import ServerCallback


class FedBCDI(FedBCD):
    """Block-coordinate descent with offline training.

    Args:
        net: the network that is trained.
        prox: γ: how far each pull goes towards the server's model, 1 reaches it; a list gives each client's own, by id.
        offline_clients: |Q~|: clients that may train in a round, those who report among them.
        offline_rounds: rounds that a client trains without contact before it waits.
        server_over: what the server averages: the models of this round's reports (active), or each client's last (all).
        momentum_after_pull: x_prev after a pull: the iterate before the last (literal), or x itself (reset).
        fedbcd: the other options of FedBCD and the local options of fedlit.client.base.Client.
    """

    weights = "uniform"
    shown_states = {"offline": ShownState("rounds offline", curves={})}  # no curve: it is 0 for all that report

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        prox: float | list[float] = 0.2,
        offline_clients: int = 8,
        offline_rounds: int = 4,
        server_over: Literal["active", "all"] = "active",
        momentum_after_pull: Literal["literal", "reset"] = "literal",
        **fedbcd: Any,
    ) -> None:
        super().__init__(net, prox=prox, **fedbcd)
        require(
            self.optimizer == "aspg",
            f"model.optimizer is '{self.optimizer}', but FedBCD-I's pull is a step of aspg: it moves x_prev, which "
            f"{self.optimizer} does not have. Leave optimizer out; extrapolation 0 and box null make aspg's steps "
            "plain ones.",
        )
        for name, value in self.penalties.items():
            require(0 < value <= 1, f"{name} is {value}; a pull moves x to z by a share above 0 and at most 1.")
        require(offline_clients >= 1, f"model.offline_clients is {offline_clients}; give 1 or more.")
        require(offline_rounds >= 1, f"model.offline_rounds is {offline_rounds}; give 1 or more.")
        self.offline_clients = offline_clients
        self.offline_rounds = offline_rounds
        self.server_over = server_over
        self.momentum_after_pull = momentum_after_pull

    def summed_clients(self, served: int, reporting: int) -> int:
        """Number of clients in the server's sum: those that report, or all."""
        return reporting if self.server_over == "active" else served

    def select(self, selection: Selection, population: int, generator: np.random.Generator) -> Selection:
        """Q~: the clients that report, filled up with the next in each group's order, or with drawn ones."""
        if selection.order:
            trains = {k for group in selection.order for k in group[: self.offline_clients]} | set(selection.report)
            return Selection(sorted(trains), selection.report)
        others = np.setdiff1d(np.arange(population), selection.report)
        missing = min(max(0, self.offline_clients - len(selection.report)), len(others))
        offline = generator.choice(others, missing, replace=False).tolist()
        return Selection(sorted([*selection.report, *offline]), selection.report)

    def phases(self) -> list[Phase]:
        """Offline training, then the pull."""
        pull = Phase(
            "pull",
            start="trained",
            step_method="pull_step",
            work_method="pull_work",
            optimizer=ExtrapolatedSGD(0.0, self.box),
            lr=1.0,  # γ_i, the rate of a pull, is in its step
        )
        return [Phase("offline", start="local"), pull]

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """f_i alone."""
        return {"loss": self.task_loss(batch)}

    def pull_step(self, batch: Batch, batch_idx: int | Tensor) -> Tensor:
        """γ_i/2 |x - z|², whose gradient is γ_i (x - z)."""
        return self.penalty / 2 * self.distance_to_global()

    def local_work(self, cohort: Cohort, planned: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        """K_i, unless the client has been offline for too long."""
        drawn = super().local_work(cohort, planned, generator_of)
        return np.where(cohort.state["offline"].numpy() < self.offline_rounds, drawn, 0)

    def pull_work(self, cohort: Cohort, planned: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        """K_i, for the clients that report."""
        return np.where(cohort.reports.numpy(), super().local_work(cohort, planned, generator_of), 0)

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        """With `momentum_after_pull: reset`, x_prev of a client that reports is x."""
        if phase.name == "pull" and self.momentum_after_pull == "reset":
            cohort.optimizer_state = {
                name: torch.where(per_client(cohort.reports, value), cohort.params[name], value)
                for name, value in cohort.optimizer_state.items()
            }

    def state_spec(self) -> StateSpec:
        """x_i and the count; also the model that was sent last if the server averages it."""
        kept: StateSpec = {"local": INITIAL, "offline": at_server(0.0, sent=True)}
        return kept | ({"reported": at_server(INITIAL)} if self.server_over == "all" else {})

    def server_callbacks(self) -> list[ServerCallback]:
        """The count, and the server's step unless it is the plain mean of the clients that report."""
        count = OfflineRounds()
        if self.server_over == "active" and self.server_sum == "mean" and not isinstance(self.prox, list):
            return [count]
        step = BlockAverage(
            prox=self.prox,
            lr=self.server_lr,
            form=self.server_sum,
            model="reported" if self.server_over == "all" else "local",
            over=self.server_over,
        )
        return [*self.own_penalties(), count, step]


class OfflineRounds(ServerCallback):
    """Counts the rounds in which clients train without contact, and stores the models that were sent."""

    role = "offline"

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        """Add 1 for clients that trained, and reset clients that report to 0."""
        trained = cohort.state["offline"] + (cohort.steps > 0)
        cohort.state["offline"] = torch.where(cohort.reports, torch.zeros_like(trained), trained)
        for name, value in cohort.params.items():
            reports = per_client(cohort.reports, value)
            if f"reported.{name}" in cohort.state:
                cohort.state[f"reported.{name}"] = torch.where(reports, value, cohort.state[f"reported.{name}"])
