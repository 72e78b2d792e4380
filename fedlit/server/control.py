"""Control variates: how the clients' and the server's follow a round of SCAFFOLD."""

from typing import Any, Literal

import torch
from pytorch_lightning import Trainer
from torch import Tensor

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.params import Params, expand, under_prefix, with_prefix
from fedlit.server.base import ServerCallback


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
        """c goes out with the model."""
        if self.control:
            cohort.sent |= with_prefix("server_control", expand(self.control, len(cohort.clients)))

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """Eq. 4 for everyone who took a step; eq. 5's change of c, from those who report."""
        old, sent = cohort.model("control"), under_prefix("server_control", cohort.sent)
        lengths = cohort.rate_sums * path_lengths(cohort.steps, self.momentum) / cohort.steps.clamp(min=1)
        new = {
            name: torch.where(
                _per_client(cohort.steps > 0, value), self._renewed(name, value, sent[name], cohort, lengths), value
            )
            for name, value in old.items()
        }
        cohort.state |= with_prefix("control", new)
        changes = {name: (new[name] - old[name])[cohort.reports].sum(0) for name in old}
        self._change = {name: value / cohort.population for name, value in changes.items()}

    def _renewed(self, name: str, own: Tensor, server: Tensor, cohort: Cohort, lengths: Tensor) -> Tensor:
        if self.option == "I":
            return cohort.grad_received[name]
        path = cohort.received[name] - cohort.params[name]
        return own - server + path / _per_client(lengths, path).to(path.dtype)

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """c moves when the round is complete."""
        self.control = {
            name: self.control[name] + change if self.control else change for name, change in self._change.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """c."""
        return {"control": self.control}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse."""
        self.control = state_dict["control"]


def path_lengths(steps: Tensor, momentum: float) -> Tensor:
    """(clients,) how many unit gradients K heavy-ball steps add up to: sum over k of (1 - m^k) / (1 - m); K without."""
    counts = steps.double()
    return (counts - momentum * (1 - momentum**counts) / (1 - momentum)) / (1 - momentum)


def _per_client(values: Tensor, like: Tensor) -> Tensor:
    """(clients,) -> a shape that broadcasts over a stacked tensor."""
    return values.view(-1, *[1] * (like.dim() - 1))
