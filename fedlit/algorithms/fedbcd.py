"""FedBCD: federated block-coordinate descent, Algorithm 1, with one server.

Every client keeps a model of its own, pulled towards the server's; the server averages the last models of ALL of them.

    local    e = x + extrapolation (x - x_prev),   x <- P[e - lr (g_i(e) + prox_i (e - z))], K_i times     ASPG
    server   z <- z - server_lr sum_i prox_i (z - x_i) / sum_i prox_i, over all N clients, active or not

P clips to [-box, box]. x_i and x_prev start at the initial model and are kept between rounds: momentum continues from
the end of the client's last active round. K_i is drawn anew every round, uniformly from 1 to `most_steps`.
Readings: the server's sum is divided by sum prox_i (`server_sum: sum` is the paper's formula, which diverges with the
printed rate and is refused with it); K_i counts mini-batch steps (`local_unit: epoch`). Kept per client: x_i, x_prev.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pytorch_lightning import Trainer
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.specs import INITIAL, StateSpec, at_both
from fedlit.client.step import Batch, Phase
from fedlit.errors import ConfigError, require
from fedlit.params import Params, scale, subtract, weighted_mean
from fedlit.server.base import ServerCallback


class FedBCD(Client):
    """Block-coordinate descent.

    Args:
        net: the network that is trained.
        prox: γ: how firmly a client's model is pulled towards the server's; a list gives each client's own, by id.
        server_lr: η_z: the server's step.
        server_sum: the server's sum over its clients divided by the sum of γ (mean), or as printed (sum).
        optimizer: of the local steps: aspg, or sgd, which needs extrapolation 0 and no box.
        extrapolation: ζ: momentum of the local steps, kept between rounds.
        box: every number of a client's model is clipped to [-box, box]; none does not clip.
        most_steps: K_i is drawn from 1 to this.
        local: the other local options of fedlit.client.base.Client; momentum, weight_decay and clip are for sgd.
    """

    penalty: Tensor
    """γ_i, in a step."""

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        prox: float | list[float] = 1.0,
        server_lr: float = 0.5,
        server_sum: Literal["mean", "sum"] = "mean",
        optimizer: Literal["sgd", "aspg"] = "aspg",
        extrapolation: float = 0.9,
        box: float | None = 2.0,
        most_steps: int | None = 5,
        **local: Any,
    ) -> None:
        require(
            optimizer in ("sgd", "aspg"),
            f"model.optimizer is '{optimizer}', but FedBCD's steps are projected gradient steps whose x_prev is kept "
            "for the next round. Set optimizer to aspg, or to sgd with extrapolation 0 and box null.",
        )
        super().__init__(net, optimizer=optimizer, extrapolation=extrapolation, box=box, most_steps=most_steps, **local)
        self.keep_optimizer = True  # x_prev
        self.prox = prox if isinstance(prox, int | float) else list(prox)
        require(len(self.penalties) > 0, "model.prox is an empty list; give one number, or one for each client.")
        for name, value in self.penalties.items():
            require(0 <= value < math.inf, f"{name} is {value}; give 0 or more.")
        require(
            server_sum == "sum" or any(self.penalties.values()),
            f"model.prox is {prox}; the mean form divides by its sum. Give a number above 0.",
        )
        require(server_lr > 0, f"model.server_lr is {server_lr}; give a number above 0.")
        self.server_lr = server_lr
        self.server_sum = server_sum

    @property
    def penalties(self) -> dict[str, float]:
        """The numbers of `prox`, each under the name that an error gives it."""
        if isinstance(self.prox, list):
            return {f"model.prox[{client}]": value for client, value in enumerate(self.prox)}
        return {"model.prox": self.prox}

    def check_clients(self, population: int, served: int, reporting: int) -> None:
        """Require one γ_i per client, and a server's step that does not pass the clients' models (Assumption 4)."""
        require(
            not isinstance(self.prox, list) or len(self.prox) == population,
            f"model.prox has {len(self.penalties)} numbers, but the data have {population} clients. Give one number "
            "for all, or one for each client, in the order of their ids.",
        )
        counted, largest = self.summed_clients(served, reporting), max(self.penalties.values())
        if self.server_sum == "sum" and self.server_lr * largest * counted > 1 + 1e-6:
            raise ConfigError(
                f"model.server_lr is {self.server_lr:g} and model.server_sum is 'sum', but the sum is over {counted} "
                f"clients with γ up to {largest:g}. Above 1 / (γ · clients) the server steps past its clients' models "
                f"and may diverge (FedBCD, Assumption 4). Set server_lr to {1 / (largest * counted):.8g} or less, or "
                "server_sum to mean."
            )

    def summed_clients(self, served: int, reporting: int) -> int:
        """Number of clients in the server's sum: all of its own."""
        return served

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """f_i(x) + γ_i/2 |x - z|²."""
        task = self.task_loss(batch)
        return {"loss": task + self.penalty / 2 * self.distance_to_global(), "task": task}

    def phases(self) -> list[Phase]:
        """From the client's own model."""
        return [Phase(start="local")]

    def state_spec(self) -> StateSpec:
        """x_i, of which the server reads the last ones of all clients."""
        return {"local": at_both(INITIAL)}

    def sent_spec(self) -> StateSpec:
        """γ_i, which may differ from client to client."""
        return {"penalty": next(iter(self.penalties.values()))}

    def server_callbacks(self) -> list[ServerCallback]:
        """The server's step over all clients."""
        return [*self.own_penalties(), BlockAverage(prox=self.prox, lr=self.server_lr, form=self.server_sum)]

    def own_penalties(self) -> list[ServerCallback]:
        """The callback that sends each client its own γ_i, if they differ."""
        return [OwnPenalties(self.prox)] if isinstance(self.prox, list) else []


class OwnPenalties(ServerCallback):
    """Sends each client its own γ_i.

    Args:
        prox: γ_i, by the clients' ids.
    """

    role = "penalties"

    def __init__(self, prox: list[float]) -> None:
        self.prox = prox

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """Send γ_i with the model; a newcomer, for whom none was given, gets their mean."""
        mean = math.fsum(self.prox) / len(self.prox)
        penalties = [self.prox[who] if who < len(self.prox) else mean for who in cohort.clients]
        cohort.sent["penalty"] = cohort.sent["penalty"].new_tensor(penalties)


class BlockAverage(ServerCallback):
    """Replaces the pseudo-gradient by lr * sum_i γ_i (z - x_i), divided by sum_i γ_i in the mean form.

    Args:
        prox: γ, or γ_i by the clients' ids.
        lr: η_z.
        form: mean or sum.
        model: the models in the sum: x_i (local), or the one that each client sent last (reported).
        over: the clients in the sum: all of them, or those that report (active).
    """

    role = "blocks"
    uses_initial = True
    replaces_average = True

    def __init__(
        self,
        *,
        prox: float | list[float],
        lr: float,
        form: Literal["mean", "sum"] = "mean",
        model: Literal["local", "reported"] = "local",
        over: Literal["active", "all"] = "all",
    ) -> None:
        self.prox, self.lr, self.form, self.model, self.over = prox, lr, form, model, over
        self.needs_reports = over == "all" and model == "local"

    def on_pseudo_gradient(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """lr * (z - the mean of x_i weighted by γ_i), times sum_i γ_i in the sum form."""
        counted = self.server.clients.tolist() if self.over == "all" else reporting(cohort)
        factor = self.lr * (self.total(counted) if self.form == "sum" else 1.0)
        cohort.pseudo_gradient = scale(subtract(self.server.z, self.mean_model(cohort)), factor)

    def total(self, clients: Sequence[int]) -> float:
        """sum_i γ_i."""
        return math.fsum(self.prox[who] for who in clients) if isinstance(self.prox, list) else self.prox * len(clients)

    def mean_model(self, cohort: TrainedCohort) -> Params:
        """The mean, weighted by γ_i, of the models in the sum."""
        if isinstance(self.prox, list):
            models, penalties = self.counted(cohort, self.prox)
            return weighted_mean(models, penalties / penalties.sum())
        if self.over == "all":
            return self.server.latest_models(cohort, self.model)
        return {name: value[cohort.reports].mean(0) for name, value in cohort.params.items()}

    def counted(self, cohort: TrainedCohort, prox: list[float]) -> tuple[Params, Tensor]:
        """Stacked: the models in the sum, with their γ_i; clients that never trained share one row, z^0."""
        if self.over == "active":
            models = {name: value[cohort.reports] for name, value in cohort.params.items()}
            return models, torch.tensor([prox[who] for who in reporting(cohort)], dtype=torch.float64)
        states, initial = self.server.states, self.server.initial
        absent = [who for who in states.touched if who in self.server.members and who not in set(cohort.clients)]
        never = self.server.members - {*cohort.clients, *absent}
        current = cohort.params if self.model == "local" else cohort.model(self.model)
        kept = [{name: states.row(f"{self.model}.{name}", who) for name in current} for who in absent]
        models = {
            name: torch.stack([*value, *(model[name] for model in kept), initial[name]])
            for name, value in current.items()
        }
        penalties = [*(prox[who] for who in [*cohort.clients, *absent]), math.fsum(prox[who] for who in never)]
        return models, torch.tensor(penalties, dtype=torch.float64)


def reporting(cohort: TrainedCohort) -> list[int]:
    """Ids of the clients that report."""
    return [who for who, sends in zip(cohort.clients, cohort.reports.tolist(), strict=True) if sends]
