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

from pytorch_lightning import Trainer
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.specs import ZEROS, StateSpec
from fedlit.client.step import Batch, Phase
from fedlit.errors import require
from fedlit.params import Params, expand, per_client, subtract, with_prefix
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
        net: nn.Module | None = None,
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

    def report_spec(self) -> StateSpec:
        """c_i+ - c_i."""
        return {"control_change": ZEROS}

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        """Renew c_i (eq. 4), and report its change."""
        old = self.shared(cohort.model("control"))
        new = self.shared(cohort.grad_received) if self.option == "I" else self.mean_gradients(cohort)
        cohort.state |= with_prefix("control", new)
        cohort.reported_rows = with_prefix("control_change", subtract(new, old))

    def mean_gradients(self, cohort: TrainedCohort) -> Params:
        """Option II: c_i - c + (x - y) / (K lr)."""
        control, server = cohort.model("control"), cohort.sent_model("server_control")
        lengths = cohort.lr_sums * path_lengths(cohort.steps, self.momentum) / cohort.steps.clamp(min=1)
        paths = self.shared(subtract(cohort.received, cohort.params))
        return {
            name: control[name] - server[name] + path / per_client(lengths, path).to(path.dtype)
            for name, path in paths.items()
        }

    def server_callbacks(self) -> list[ServerCallback]:
        """The callback for eq. 5."""
        return [ControlVariates()]


class ControlVariates(ServerCallback):
    """Sends c, and moves it by the mean of the changes of c_i over all N clients."""

    role = "control"

    def __init__(self) -> None:
        self.control: Params = {}
        self._change: Params = {}

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """Send c with the model."""
        if self.control:
            cohort.sent |= with_prefix("server_control", expand(self.control, len(cohort.clients)))

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        """The change of c in eq. 5, from those that report."""
        changes = cohort.reported_model("control_change")
        self._change = {name: value[cohort.reports].sum(0) / cohort.population for name, value in changes.items()}

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
