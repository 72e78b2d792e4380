"""ServerCallback: the hooks of a round, for algorithms and for users.

Any subclass in `trainer.callbacks` takes part; nothing has to be registered. It is an ordinary Lightning callback,
so its `state_dict` and `load_state_dict` save and restore what the server keeps.
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
    (may change `cohort.pseudo_gradient`), on_server_step_end (z has moved, the cohort's rows are stored),
    on_users_measured (on evaluated rounds), on_round_metrics (may add to `metrics`). After the last hook the round is
    committed. With `trainer.buffer`, on_cohort_start is called for the clients that are sent the model, whenever that
    happens in a round; the other hooks are called for the clients that report.
    If a round fails in any hook, the state of `state_dict` is restored to the end of the last finished round.
    """

    _server: "Server | None" = None
    metrics: tuple[str, ...] = ()
    """Names that on_round_metrics adds: the columns of metrics.csv are fixed when a run starts."""
    role: str | None = None
    """What this callback does for an algorithm; a user's callback of the same role replaces the algorithm's own."""

    needs: frozenset[str] = frozenset()
    """Which of `risk_received`, `risk_trained` and `grad_received` the loop measures for it in each round."""

    decides: bool = True
    """Whether numbers of the run may depend on it. If False, it only watches, and may be added or removed at resume."""

    needs_reports: bool = False
    """Whether it needs the model of every client that trained, so that no client may be late or lost."""

    replaces_average: bool = False
    """Whether it replaces the pseudo-gradient by an average of its own, which ignores discounts and what clients send
    instead of x_i (`Cohort.sent_params`)."""

    single_server_reason: str = ""
    """Why its state makes no sense if several servers mix their models; empty if it does."""

    alone: str = ""
    """The older name of `single_server_reason`."""

    uses_initial: bool = False
    """Whether it reads z^0 (`Server.latest_models`), which checkpoints then save."""

    @property
    def server(self) -> "Server":
        """Its server, available from the start of a run: `server.z`, `server.latest_models(cohort)` …"""
        if self._server is None:
            raise ConfigError(f"{type(self).__name__}.server is empty before a run starts. Read it in a hook.")
        return self._server

    def evaluated_model(self) -> Params:
        """Parameters that are measured as the global model instead of those of z; empty for z itself."""
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
        """Every user is measured; `records` holds the columns of clients.parquet. `cohort` as in on_round_metrics."""

    def on_round_metrics(
        self, trainer: Trainer, client: Client, cohort: WeighedCohort | None, metrics: dict[str, float]
    ) -> None:
        """The round is measured; `metrics` may get more numbers. `cohort` is None for the initial model."""


def has_hook(callback: Callback, hook: str, base: type[Callback]) -> bool:
    """Whether a callback overrides a hook that is empty in its base; Lightning's own check is slow."""
    return getattr(type(callback), hook) is not getattr(base, hook) or hook in vars(callback)


def check_sent(cohort: TrainedCohort, callbacks: Sequence[ServerCallback]) -> None:
    """Require that what clients send instead of x_i fits their models, and that the server averages it."""
    for name, value in cohort.sent_params.items():
        param = cohort.params.get(name)
        if param is None or value.shape != param.shape:
            wrong = (
                "the net has no such parameter" if param is None else f"the clients' models have {tuple(param.shape)}"
            )
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
    averager = next((type(callback).__name__ for callback in callbacks if callback.replaces_average), None)
    if averager is not None:
        raise ConfigError(
            f"Round {cohort.run_round}: a callback filled cohort.sent_params, but {averager} averages the clients' own "
            "models, so what they send would have no effect. Leave that callback out, or take another algorithm."
        )


def merge_callbacks(needed: Sequence[ServerCallback], users: Sequence[Callback]) -> list[Callback]:
    """The algorithm's callbacks, without those whose role a user's callback takes, and then the user's."""
    roles = {callback.role for callback in users if isinstance(callback, ServerCallback) and callback.role}
    for callback in needed:
        if callback.role in roles:
            log.info(f"fedlit: your callback takes the role '{callback.role}' instead of {type(callback).__name__}.")
    return [callback for callback in needed if callback.role not in roles] + list(users)
