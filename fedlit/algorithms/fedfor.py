"""FedFor: stateless federated learning with a first-order penalty (Tian, Smith, Kira, 2022).

Clients receive the server's last move, and a penalty discourages steps against it.

    local    x_i by SGD from z on  f_i(x) + strength <G, x - z> / (lr K_i),   G = z_before - z, 0 in the first round
    server   z <- sum_i n_i x_i / sum_i n_i over the cohort

Kept per client: nothing; by the server: G. The paper's code was never published and its equations could not be
verified: this is our reading of its abstract. G / (lr K_i) has the units of a gradient. `form: hinge` penalises only
numbers that move against G: strength sum_c max(0, G_c (x_c - z_c)) / (lr K_i).
"""

from typing import Any, Literal

import torch
from pytorch_lightning import Trainer
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.specs import ZEROS, StateSpec
from fedlit.client.step import Batch
from fedlit.errors import require
from fedlit.params import Params, dot, subtract
from fedlit.server.base import ServerCallback


class FedFor(Client):
    """Federated averaging with a first-order penalty on steps against the server's last move.

    Args:
        net: the network that is trained.
        strength: a: weight of the penalty; 0 is FedAvg.
        form: penalise along the last move (linear), or only what goes against it (hinge).
        local: the local options of fedlit.client.base.Client.
    """

    newcomers_get_z = True

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        strength: float = 0.1,
        form: Literal["linear", "hinge"] = "linear",
        **local: Any,
    ) -> None:
        super().__init__(net, **local)
        require(strength >= 0, f"model.strength is {strength}; give 0 (FedAvg) or more.")
        require(
            self.optimizer not in ("adam", "adamw"),
            f"model.optimizer is '{self.optimizer}', but FedFor takes the server's move over lr K_i for a gradient, "
            f"and the steps of {self.optimizer} do not have a gradient's length. Set optimizer to sgd.",
        )
        self.strength = strength
        self.form = form

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """f_i(x) + a <G, x - z> / (η K)."""
        task = self.task_loss(batch)
        slope = self.shared(self.sent("last_move"))
        moved = self.shared(subtract(self.local_params, self.global_params))
        if self.form == "linear":
            penalty = dot(slope, moved)
        else:
            penalty = torch.stack([(slope[name] * value).relu().sum() for name, value in moved.items()]).sum()
        return {"loss": task + self.strength * penalty, "task": task}

    def sent_spec(self) -> StateSpec:
        """G / (η K_i)."""
        return {"last_move": ZEROS}

    def server_callbacks(self) -> list[ServerCallback]:
        """The callback that keeps G and sends it."""
        return [LastMove()]


class LastMove(ServerCallback):
    """Keeps G = z_before - z of the last round, and sends each client G / (lr K_i)."""

    role = "last_move"
    single_server_reason = (
        "the server's last move would include its jump to the other servers' models, which no client's training made"
    )

    def __init__(self) -> None:
        self.move: Params = {}
        self._before: Params = {}

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """Send G / (lr K_i) with the model; zeros in the first round."""
        lr_sums = cohort.lr_sums.clamp(min=cohort.lr)  # a client without steps divides by one
        for name, value in self.move.items():
            stacked = value / lr_sums.to(value.dtype).view(-1, *[1] * value.dim())
            cohort.sent[f"last_move.{name}"] = stacked

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        """Keep z from before the step."""
        self._before = self.server.z

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """Compute the move of this round, by any server optimiser."""
        self.move = subtract(self._before, self.server.z)

    def state_dict(self) -> dict[str, Any]:
        """G."""
        return {"move": self.move}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.move = state_dict["move"]
