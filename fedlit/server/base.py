"""ServerCallback: the hooks of a round, for algorithms and for users.

Any subclass in `trainer.callbacks` takes part; nothing has to be registered. It is an ordinary Lightning callback,
so `state_dict` / `load_state_dict` carry what the server keeps.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.params import Params
from fedlit.recorded import Recorded

log = logging.getLogger("fedlit")


class ServerCallback(Recorded, Callback):
    """A Lightning callback with the hooks of a federated round.

    In the order of a round: on_cohort_start (rows gathered, nothing trained), on_cohort_trained (dual ascent,
    control variates; may change `cohort.state`), on_pseudo_gradient (may change `cohort.pseudo_gradient`),
    on_server_step_end (z has moved, the cohort's rows are kept), on_users_measured (on evaluated rounds),
    on_round_metrics (may add to `metrics`).
    Change a state of your own (`state_dict`) in on_server_step_end: a round that fails before it leaves all as it was.
    """

    metrics: tuple[str, ...] = ()
    """Names that on_round_metrics adds: the columns of metrics.csv are fixed when a run starts."""
    role: str | None = None
    """What this callback does for an algorithm; a user's callback of the same role replaces the algorithm's own."""

    needs: frozenset[str] = frozenset()
    """Of `risk_received`, `risk_trained`, `grad_received`: what the loop measures for it each round."""

    decides: bool = True
    """Whether numbers of the run may depend on it; one that only watches says False, and may come and go at resume."""

    uses_initial: bool = False
    """Whether it reads z^0 (`latest_models`), which checkpoints then keep."""

    def evaluated_model(self) -> Params:
        """Parameters that are measured as the global model instead of z; empty for z itself."""
        return {}

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """The cohort is gathered; nothing is trained yet."""

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """Local training is done; `cohort.params` and `cohort.losses` are filled."""

    def on_pseudo_gradient(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """The pseudo-gradient is computed and may be changed in place."""

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """z has moved and the cohort's rows are kept."""

    def on_users_measured(
        self, trainer: Trainer, client: Client, cohort: Cohort | None, records: dict[str, Any]
    ) -> None:
        """Every user is measured; `records` has a column for each of clients.parquet. `cohort` as in the next hook."""

    def on_round_metrics(
        self, trainer: Trainer, client: Client, cohort: Cohort | None, metrics: dict[str, float]
    ) -> None:
        """The round is measured; more numbers may be added. `cohort` is None for the initial model."""


def latest_models(trainer: Trainer, cohort: Cohort, state: str = "local") -> Params:
    """The mean of the last models of ALL clients, this round's included; z^0 for those that never trained."""
    current = cohort.params if state == "local" else cohort.model(state)
    loop = trainer.loop  # type: ignore[attr-defined]  # FederatedTrainer's
    states, present = loop.states, set(cohort.clients)
    absent = [client for client in states.touched if client not in present]
    never = cohort.population - len(absent) - len(present)
    mean: Params = {}
    for name, value in current.items():
        total = value.double().sum(0) + never * loop.initial[name].double()
        if absent:
            total = total + torch.stack([states.row(f"{state}.{name}", client) for client in absent]).double().sum(0)
        mean[name] = (total / cohort.population).to(value.dtype)
    return mean


def merge_callbacks(own: Sequence[ServerCallback], users: Sequence[Callback]) -> list[Callback]:
    """The algorithm's callbacks first, without those whose role one of the user's takes over."""
    taken = {callback.role for callback in users if isinstance(callback, ServerCallback) and callback.role}
    for callback in own:
        if callback.role in taken:
            log.info(f"fedlit: your callback takes the role '{callback.role}' instead of {type(callback).__name__}.")
    return [callback for callback in own if callback.role not in taken] + list(users)
