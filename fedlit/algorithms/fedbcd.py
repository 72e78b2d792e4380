"""FedBCD: federated block-coordinate descent, Algorithm 1, with one server.

Every client keeps a model of its own, pulled towards the server's; the server averages the last models of ALL of them.

    local    e = x + extrapolation (x - x_prev),   x <- P[e - lr (g_i(e) + prox (e - z))], K_i times       ASPG
    server   z <- z - server_lr sum_i prox (z - x_i) / sum_i prox, over all N clients, active or not

P clips to [-box, box]. x_i and x_prev start at the initial model and survive between rounds: momentum goes on where the
client's last active round ended. K_i is drawn anew every round, uniformly from 1 to `most_steps`.
Readings: the server's sum is divided by sum prox (`server_sum: sum` is the paper's letter, which diverges with its
printed rate); K_i counts mini-batch steps (`local_unit: epoch`). Kept per client: x_i, x_prev.
"""

from typing import Any, Literal

from pytorch_lightning import Trainer
from torch import Tensor, nn

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.errors import require
from fedlit.params import Params, scale, subtract
from fedlit.server.base import ServerCallback
from fedlit.states import INITIAL, StateSpec
from fedlit.step import Batch, Phase


class FedBCD(Client):
    """Block-coordinate descent.

    Args:
        net: the network that is trained.
        prox: γ: how firmly a client's model is pulled towards the server's.
        server_lr: η_z: the server's step.
        server_sum: the server's sum over its clients divided by the sum of γ (mean), or as printed (sum).
        optimizer: of the local steps: aspg, or sgd, which needs extrapolation 0 and no box.
        extrapolation: ζ: momentum of the local steps, kept between rounds.
        box: every number of a client's model is clipped to [-box, box]; none projects on nothing.
        most_steps: K_i is drawn from 1 to this.
        local: the other local options of fedlit.client.Client; momentum, weight_decay and clip are for sgd.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        prox: float = 1.0,
        server_lr: float = 0.5,
        server_sum: Literal["mean", "sum"] = "mean",
        optimizer: Literal["sgd", "aspg"] = "aspg",
        extrapolation: float = 0.9,
        box: float | None = 2.0,
        most_steps: int | None = 5,
        **local: Any,
    ) -> None:
        super().__init__(net, optimizer=optimizer, extrapolation=extrapolation, box=box, most_steps=most_steps, **local)
        self.keep_optimizer = True  # x_prev
        require(prox >= 0 and (prox > 0 or server_sum == "sum"), f"model.prox is {prox}; the mean form divides by it.")
        require(server_lr > 0, f"model.server_lr is {server_lr}; give a number above 0.")
        self.prox = prox
        self.server_lr = server_lr
        self.server_sum = server_sum

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """f_i(x) + γ/2 |x - z|²."""
        task = self.task_loss(batch)
        return {"loss": task + self.prox / 2 * self.distance_to_global(), "task": task}

    def phases(self) -> list[Phase]:
        """From the client's own model."""
        return [Phase(start="local")]

    def state_spec(self) -> StateSpec:
        """x_i."""
        return {"local": INITIAL}

    def server_callbacks(self) -> list[ServerCallback]:
        """The server's step over all clients."""
        return [BlockAverage(prox=self.prox, lr=self.server_lr, form=self.server_sum)]


class BlockAverage(ServerCallback):
    """Replaces the pseudo-gradient by lr * sum_i γ (z - x_i), divided by sum_i γ in the mean form.

    Args:
        prox: γ.
        lr: η_z.
        form: mean or sum.
        model: which of the clients' models: x_i (local), or the one that each sent last (reported).
        over: the clients that the sum is over: all of them, or those who report (active).
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
        over: Literal["active", "all"] = "all",
    ) -> None:
        self.prox, self.lr, self.form, self.model, self.over = prox, lr, form, model, over

    def on_pseudo_gradient(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """z - mean of the x_i, times its factor."""
        count = cohort.population if self.over == "all" else int(cohort.reports.sum())
        factor = self.lr * (self.prox * count if self.form == "sum" else 1.0)
        cohort.pseudo_gradient = scale(subtract(self.server.z, self.mean_model(cohort)), factor)

    def mean_model(self, cohort: Cohort) -> Params:
        """The mean of the x_i that the sum is over."""
        if self.over == "all":
            return self.server.latest_models(cohort, self.model)
        return {name: value[cohort.reports].mean(0) for name, value in cohort.params.items()}
