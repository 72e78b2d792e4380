"""ServerCallback: the hooks of a round, for algorithms and for users.

Any subclass in `trainer.callbacks` takes part; nothing has to be registered. It is an ordinary Lightning callback,
so `state_dict` / `load_state_dict` carry what the server keeps.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytorch_lightning import Callback, Trainer

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.errors import ConfigError
from fedlit.params import Params
from fedlit.recorded import Recorded

if TYPE_CHECKING:
    from fedlit.server.server import Server

log = logging.getLogger("fedlit")


class ServerCallback(Recorded, Callback):
    """A Lightning callback with the hooks of a federated round.

    In the order of a round: on_cohort_start (rows gathered, nothing trained), on_cohort_trained (dual ascent, control
    variates; may change `cohort.state`, and fill `cohort.sent_params` and `cohort.sent_bytes`), on_pseudo_gradient
    (may change `cohort.pseudo_gradient`), on_server_step_end (z has moved, the cohort's rows are kept),
    on_users_measured (on evaluated rounds), on_round_metrics (may add to `metrics`). The round counts after the last of
    them. With `trainer.buffer` the first is called for those who are sent the model, whenever that happens in a round;
    the others are for those who report.
    A round that fails in any of them leaves the state that `state_dict` gives as the last finished round left it.
    """

    _server: "Server | None" = None
    metrics: tuple[str, ...] = ()
    """Names that on_round_metrics adds: the columns of metrics.csv are fixed when a run starts."""
    role: str | None = None
    """What this callback does for an algorithm; a user's callback of the same role replaces the algorithm's own."""

    needs: frozenset[str] = frozenset()
    """Of `risk_received`, `risk_trained`, `grad_received`: what the loop measures for it each round."""

    decides: bool = True
    """Whether numbers of the run may depend on it; one that only watches says False, and may come and go at resume."""

    needs_reports: bool = False
    """Whether it counts the model of everyone who trained, so that nobody may be late or lost."""

    replaces_average: bool = False
    """Whether it puts an average of its own in the place of the pseudo-gradient, in which no discount counts, and
    nothing that is sent in the place of x_i (`Cohort.sent_params`)."""

    single_server_reason: str = ""
    """Why what it keeps makes no sense where several servers mix their models; empty where it does."""

    alone: str = ""
    """The older name of `single_server_reason`."""

    uses_initial: bool = False
    """Whether it reads z^0 (`Server.latest_models`), which checkpoints then keep."""

    @property
    def server(self) -> "Server":
        """The server that it works for, from the start of a run: `server.z`, `server.latest_models(cohort)` …"""
        if self._server is None:
            raise ConfigError(f"{type(self).__name__}.server is empty before a run starts. Read it in a hook.")
        return self._server

    def evaluated_model(self) -> Params:
        """Parameters that are measured as the global model instead of z; empty for z itself."""
        return {}

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """The cohort is gathered; nothing is trained yet."""

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        """Local training is done; `cohort.params` and `cohort.losses` are filled."""

    def on_pseudo_gradient(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """The pseudo-gradient is computed and may be changed in place."""

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """z has moved and the cohort's rows are kept."""

    def on_users_measured(
        self, trainer: Trainer, client: Client, cohort: WeighedCohort | None, records: dict[str, Any]
    ) -> None:
        """Every user is measured; `records` has a column for each of clients.parquet. `cohort` as in the next hook."""

    def on_round_metrics(
        self, trainer: Trainer, client: Client, cohort: WeighedCohort | None, metrics: dict[str, float]
    ) -> None:
        """The round is measured; more numbers may be added. `cohort` is None for the initial model."""


def has_hook(callback: Callback, hook: str, base: type[Callback]) -> bool:
    """Whether a callback has something to do in a hook that its base leaves empty; Lightning's own check takes long."""
    return getattr(type(callback), hook) is not getattr(base, hook) or hook in vars(callback)


def check_sent(cohort: TrainedCohort, callbacks: Sequence[ServerCallback]) -> None:
    """What clients send in the place of x_i must fit their models, and must be what the server averages."""
    for name, value in cohort.sent_params.items():
        held = cohort.params.get(name)
        if held is None or value.shape != held.shape:
            wrong = "the net has no such parameter" if held is None else f"the clients' models have {tuple(held.shape)}"
            raise ConfigError(
                f"Round {cohort.run_round}: a callback sent '{name}' of shape {tuple(value.shape)} "
                f"(cohort.sent_params), but {wrong}. Give one row for each client of the cohort, under the net's own "
                "names."
            )
    counted = cohort.sent_bytes.numel()
    if counted not in (0, len(cohort.clients)):
        raise ConfigError(
            f"Round {cohort.run_round}: a callback gave {counted} numbers as cohort.sent_bytes, but the "
            f"cohort has {len(cohort.clients)} clients. Give the bytes of each client's model."
        )
    if not cohort.sent_params:
        return
    own = next((type(callback).__name__ for callback in callbacks if callback.replaces_average), None)
    if own is not None:
        raise ConfigError(
            f"Round {cohort.run_round}: a callback filled cohort.sent_params, but {own} averages the clients' own "
            "models, so what they send would have no effect. Leave that callback out, or take another algorithm."
        )


def merge_callbacks(own: Sequence[ServerCallback], users: Sequence[Callback]) -> list[Callback]:
    """The algorithm's callbacks first, without those whose role one of the user's takes over."""
    taken = {callback.role for callback in users if isinstance(callback, ServerCallback) and callback.role}
    for callback in own:
        if callback.role in taken:
            log.info(f"fedlit: your callback takes the role '{callback.role}' instead of {type(callback).__name__}.")
    return [callback for callback in own if callback.role not in taken] + list(users)
