"""The server's last move, which clients may be told."""

from typing import Any

from pytorch_lightning import Trainer

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.params import Params, clone, subtract
from fedlit.server.base import ServerCallback


class LastMove(ServerCallback):
    """Keeps G = z_before - z of the last round and sends it per unit of each client's own way, G / (lr K_i)."""

    role = "last_move"

    def __init__(self) -> None:
        self.move: Params = {}
        self._before: Params = {}

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """G / (lr K_i) goes out with the model; zeros in the first round."""
        self._before = clone(dict(client.net.named_parameters()))
        ways = cohort.rate_sums.clamp(min=cohort.lr)  # a client without steps divides by one
        for name, value in self.move.items():
            stacked = value / ways.to(value.dtype).view(-1, *[1] * value.dim())
            cohort.sent[f"last_move.{name}"] = stacked

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """The move of this round, whatever optimiser made it."""
        self.move = subtract(self._before, clone(dict(client.net.named_parameters())))

    def state_dict(self) -> dict[str, Any]:
        """G."""
        return {"move": self.move}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse."""
        self.move = state_dict["move"]
