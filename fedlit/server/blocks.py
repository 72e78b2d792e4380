"""The server's step of block-coordinate descent: over the last models of all clients, active or not."""

from typing import Literal

import torch
from pytorch_lightning import Trainer

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.params import scale, subtract
from fedlit.server.base import ServerCallback, latest_models


class BlockAverage(ServerCallback):
    """Replaces the pseudo-gradient by lr * sum_i γ (z - x_i), divided by sum_i γ in the mean form.

    Args:
        prox: γ.
        lr: η_z.
        form: mean or sum.
        model: which of the clients' models: x_i (local), or the one that each sent last (reported).
    """

    role = "blocks"
    uses_initial = True

    def __init__(
        self,
        *,
        prox: float,
        lr: float,
        form: Literal["mean", "sum"] = "mean",
        model: Literal["local", "reported"] = "local",
    ) -> None:
        self.prox, self.lr, self.form, self.model = prox, lr, form, model

    def on_pseudo_gradient(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """z - mean of all x_i, times its factor."""
        z = {name: value.detach() for name, value in client.net.named_parameters()}
        factor = self.lr * (self.prox * cohort.population if self.form == "sum" else 1.0)
        cohort.pseudo_gradient = scale(subtract(z, latest_models(trainer, cohort, self.model)), factor)


class OfflineRounds(ServerCallback):
    """Counts the rounds that clients train without contact, and notes what was sent.

    Args:
        reset_momentum: let the momentum of those who report start anew.
    """

    role = "offline"

    def __init__(self, *, reset_momentum: bool = False) -> None:
        self.reset_momentum = reset_momentum

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """One more for who trained, 0 for who reports."""
        trained = cohort.state["offline"] + (cohort.steps > 0)
        cohort.state["offline"] = torch.where(cohort.reports, torch.zeros_like(trained), trained)
        for name, value in cohort.params.items():
            reports = cohort.reports.view(-1, *[1] * (value.dim() - 1))
            if f"reported.{name}" in cohort.state:
                cohort.state[f"reported.{name}"] = torch.where(reports, value, cohort.state[f"reported.{name}"])
            if self.reset_momentum:
                cohort.memory[name] = torch.where(reports, value, cohort.memory[name])
