"""WandbUsers: users' results in W&B, as a histogram for each evaluated round and a table of the last one."""

import math
from typing import Any

import numpy as np
from pytorch_lightning import LightningModule, Trainer

from fedlit.client.base import Client
from fedlit.client.cohort import WeighedCohort
from fedlit.metrics.measures import Measure
from fedlit.server.base import ServerCallback
from fedlit.trainer.checkpoint import loop_of
from fedlit.trainer.wandb.logger import WandbRun

HISTOGRAM = "users/acc_hist"
"""Users' accuracies under z on their own test, 20 bins of [0, 1]: the same bins in every round and run.

For a measure that is not a share, the name has that measure, and the bins cover its range in the round.
"""
TABLE = "users/table"
"""One row per client of the last evaluated round; the columns of clients.parquet."""
_BINS = 20


class WandbUsers(ServerCallback):
    """Sends the users' records to the WandbRun among the trainer's loggers; without one it does nothing."""

    decides = False

    def __init__(self) -> None:
        self.round = 0
        self.records: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Define the metrics, and send the glossary once: a resumed run continues the same W&B run."""
        loop = loop_of(trainer)
        for run in runs_of(trainer):
            run.define([*loop.history.columns, histogram(loop.client.task.first), TABLE])
            if loop.rounds_done == 0:
                run.explain(loop.history.columns)

    def on_users_measured(
        self, trainer: Trainer, client: Client, cohort: WeighedCohort | None, records: dict[str, Any]
    ) -> None:
        """Send the histogram with the round's row, and keep the records for the table."""
        import wandb

        self.round, self.records = 0 if cohort is None else cohort.run_round, records
        first = client.task.first
        values = np.asarray(records[f"{first.name}_global"])
        bounds = (0.0, 1.0) if first.unit == "share" else None
        counts = np.histogram(values[np.isfinite(values)], bins=_BINS, range=bounds)
        if counts[0].sum():
            for run in runs_of(trainer):
                run.send({histogram(first): wandb.Histogram(np_histogram=counts)}, commit=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The table of the last evaluated round."""
        self.send_table(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Send the table of a run that failed, too."""
        self.send_table(trainer)

    def send_table(self, trainer: Trainer) -> None:
        """Send every client's newest record."""
        import wandb

        if self.records:
            for run in runs_of(trainer):
                table = wandb.Table(columns=list(self.records), data=rows_of(self.records))
                run.log_metrics({TABLE: table}, self.round)


def histogram(measure: Measure) -> str:
    """The key of a measure's histogram over users."""
    return HISTOGRAM.replace("acc", measure.name)


def runs_of(trainer: Trainer) -> list[WandbRun]:
    """The W&B runs among a trainer's loggers."""
    return [logger for logger in trainer.loggers if isinstance(logger, WandbRun)]


def rows_of(records: dict[str, Any]) -> list[list[Any]]:
    """Columns as rows of plain values, with None for NaN, which W&B shows as an empty cell."""
    columns = [np.asarray(column).tolist() for column in records.values()]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return [[None if isinstance(cell, float) and math.isnan(cell) else cell for cell in row] for row in rows]
