"""StepLogs: what the step of a LightningModule logs, as metrics of the round."""

from typing import Any

from pytorch_lightning import Trainer

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.user_module import UserModule
from fedlit.server.base import ServerCallback


class StepLogs(ServerCallback):
    """Adds the mean over all local steps of the round of each number that `self.log` was given.

    Args:
        module: whose steps log.
    """

    role = "step_logs"

    def __init__(self, module: UserModule) -> None:
        self.module = module
        self._means: dict[str, float] = {}

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]  # known once a step was tried
        """The names that were logged when the step was tried."""
        return tuple(self.module.logged)

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """Begin anew: the steps of a tried or failed round do not count."""
        self.module.forget_logged()

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        """Take the means before newcomers train; the same in every process."""
        loop: Any = trainer.fit_loop
        everywhere = loop.ranks.all_gather([[name, *pair] for name, pair in self.module.sums.items()])
        totals = {name: (0.0, 0) for name in self.metrics}
        for name, total, count in (entry for rank in everywhere for entry in rank):
            totals[name] = (totals[name][0] + total, totals[name][1] + count)
        self._means = {name: total / count for name, (total, count) in totals.items() if count}

    def on_round_metrics(
        self, trainer: Trainer, client: Client, cohort: WeighedCohort | None, metrics: dict[str, float]
    ) -> None:
        """Add them to the round."""
        metrics |= self._means


def step_logs(client: Client) -> list[ServerCallback]:
    """The callback of a client that is a LightningModule."""
    return [] if client.user_module is None else [StepLogs(client.user_module)]
