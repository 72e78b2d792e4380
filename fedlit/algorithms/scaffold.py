"""SCAFFOLD: Stochastic Controlled Averaging (Karimireddy et al., 2020), Algorithm 1.

Every client corrects its steps by the difference between the server's control variate and its own, so that its drift
cancels in the average.

    local    y <- y - lr (g_i(y) - c_i + c), from y = x                            eq. 3
    control  c_i+ = grad f_i(x) (option I), or c_i - c + (x - y) / (K lr) (option II)   eq. 4
    server   x <- x + server_lr mean_i (y_i - x),   c <- c + sum_i (c_i+ - c_i) / N  eq. 5

Kept per client: c_i; by the server: c. All start at zero, so c is the mean of all c_i in every round.
Readings: option II and uniform weights; K lr is the sum of the rates of the steps that the client took. Heavy-ball
momentum m lengthens K steps to about K / (1 - m), which option II would mistake for a larger gradient: it is refused
unless `allow_momentum` is set, which divides by that length.
"""

from typing import Any, Literal

import torch
from pytorch_lightning import Trainer
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.states import ZEROS, StateSpec
from fedlit.client.step import Batch
from fedlit.errors import require
from fedlit.params import Params, expand, per_client, subtract, under_prefix, with_prefix
from fedlit.server.base import ServerCallback


class Scaffold(Client):
    """Stochastic controlled averaging.

    Args:
        net: the network that is trained.
        option: how a client renews c_i: by a full gradient at the received model (I), or by its path (II).
        server_lr: η_g: the server's step along the averaged update.
        allow_momentum: accept local momentum with option II.
        local: the local options of fedlit.client.base.Client.
    """

    weights = "uniform"
    newcomers_get_z = True

    def __init__(
        self,
        net: nn.Module,
        *,
        option: Literal["I", "II"] = "II",
        server_lr: float = 1.0,
        allow_momentum: bool = False,
        **local: Any,
    ) -> None:
        super().__init__(net, **local)
        require(server_lr > 0, f"model.server_lr is {server_lr}; give a number above 0.")
        require(
            option == "I" or self.momentum == 0 or allow_momentum,
            f"model.momentum is {self.momentum}, but option II of SCAFFOLD takes a client's path for K plain steps; "
            "momentum makes it longer. Set momentum to 0, or allow_momentum to true, which divides by that length.",
        )
        require(
            option == "I" or self.optimizer == "sgd",
            f"model.optimizer is '{self.optimizer}', but option II of SCAFFOLD takes a client's path for K plain "
            f"steps; those of {self.optimizer} have other lengths. Set optimizer to sgd, or option to I.",
        )
        self.option = option
        self.server_lr = server_lr
        self.needs = frozenset({"grad_received"} if option == "I" else ())

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """f_i(y) + <c - c_i, y> (eq. 3)."""
        task = self.task_loss(batch)
        correction = subtract(self.sent("server_control"), self.kept("control"))
        return {"loss": task + self.along(self.shared(correction)), "task": task}

    def state_spec(self) -> StateSpec:
        """c_i."""
        return {"control": ZEROS}

    def sent_spec(self) -> StateSpec:
        """c."""
        return {"server_control": ZEROS}

    def server_callbacks(self) -> list[ServerCallback]:
        """The callback for eq. 4 and 5."""
        return [ControlVariates(option=self.option, momentum=self.momentum)]

    def traffic(self) -> tuple[int, int]:
        """Down x and c; up the model, c_i+ - c_i and n_i."""
        down, up = super().traffic()
        return 2 * down, up + down


class ControlVariates(ServerCallback):
    """Sends c, renews the cohort's c_i, and moves c by the mean of their changes over all N clients.

    Args:
        option: by the gradient at the received model (I), or by the path that the client took (II).
        momentum: of the local steps; the length of a path depends on it.
    """

    role = "control"

    def __init__(self, *, option: Literal["I", "II"] = "II", momentum: float = 0.0) -> None:
        self.option = option
        self.momentum = momentum
        self.control: Params = {}
        self._change: Params = {}

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """Send c with the model."""
        if self.control:
            cohort.sent |= with_prefix("server_control", expand(self.control, len(cohort.clients)))

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        """Eq. 4 for every client that took a step, and the change of c in eq. 5, from those that report."""
        old, sent = cohort.model("control"), under_prefix("server_control", cohort.sent)
        lengths = cohort.lr_sums * path_lengths(cohort.steps, self.momentum) / cohort.steps.clamp(min=1)
        new = {
            name: torch.where(
                per_client(cohort.steps > 0, value), self._renewed(name, value, sent[name], cohort, lengths), value
            )
            for name, value in old.items()
        }
        cohort.state |= with_prefix("control", new)
        changes = {name: (new[name] - old[name])[cohort.reports].sum(0) for name in old}
        self._change = {name: value / cohort.population for name, value in changes.items()}

    def _renewed(self, name: str, control: Tensor, server: Tensor, cohort: TrainedCohort, lengths: Tensor) -> Tensor:
        if self.option == "I":
            return cohort.grad_received[name]
        path = cohort.received[name] - cohort.params[name]
        return control - server + path / per_client(lengths, path).to(path.dtype)

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """Replace c, now that the server has stepped (eq. 5)."""
        self.control = {
            name: self.control[name] + change if self.control else change for name, change in self._change.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """c."""
        return {"control": self.control}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.control = state_dict["control"]


def path_lengths(steps: Tensor, momentum: float) -> Tensor:
    """(clients,) length of K heavy-ball steps along a unit gradient: sum_k (1 - m^k) / (1 - m); K without momentum."""
    counts = steps.double()
    return (counts - momentum * (1 - momentum**counts) / (1 - momentum)) / (1 - momentum)
