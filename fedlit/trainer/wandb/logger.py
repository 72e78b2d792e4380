"""WandbRun: Lightning's W&B logger over rounds, with the labels of fedlit's catalogue.

`users.py` sends the users' records; `session.py` has what the command line adds to a run.
"""

import logging
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pytorch_lightning.loggers import WandbLogger

from fedlit.errors import ConfigError
from fedlit.metrics.catalogue import metric
from fedlit.trainer.wandb.failures import wandb_failures

log = logging.getLogger("fedlit")

ROUND = "round"
"""The x-axis of all charts."""
GLOSSARY = "about/metrics"
"""A table: every metric of the run with its unit and definition."""


class WandbRun(WandbLogger):
    """Lightning's WandbLogger with the round as x-axis, and summaries of the best and the last value.

    Training goes on if W&B fails: the first error is logged, then nothing more is sent to W&B.

    Args:
        config: the complete config; if given, a module's own hyperparameters are not logged, which would repeat it.
        options: arguments of WandbLogger; `prefix` has no effect, metric names are fixed.
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(config=config, **options)
        self.has_config = config is not None
        self.lost = False

    @property
    def experiment(self) -> Any:
        """W&B's own run object; ConfigError if it cannot start, which happens before any training."""
        try:
            return super().experiment
        except wandb_failures() as error:
            why = " ".join(str(error).split())
            raise ConfigError(f"W&B cannot start ({why}). Give --wandb offline, or --wandb disabled.") from error

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """One row of W&B's history; the step is the round."""
        self.send(metrics if step is None else {**metrics, ROUND: step})

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Log hyperparameters as Lightning does, unless the run has its complete config already."""
        if not self.has_config:
            super().log_hyperparams(params)

    def define(self, names: Iterable[str]) -> None:
        """Make the round the x-axis of every metric; the summary keeps its last value, and its best if it has one."""

        def define(run: Any) -> None:
            run.define_metric(ROUND, hidden=True)
            run.define_metric("*", step_metric=ROUND)
            for name in names:
                best = metric(name).best
                run.define_metric(name, step_metric=ROUND, summary=f"{best},last" if best else None)

        self.attempt(define)

    def explain(self, names: Iterable[str]) -> None:
        """Send the glossary of these metrics with the next row: W&B itself has no field for units."""
        import wandb

        columns: list[str | int] = ["name", "label", "unit", "better", "definition"]
        known = [(name, metric(name)) for name in names]
        rows = [[name, m.label, m.unit or "-", m.best or "-", m.definition] for name, m in known]
        self.send({GLOSSARY: wandb.Table(columns=columns, data=rows)}, commit=False)

    def send(self, values: Mapping[str, Any], *, commit: bool = True) -> None:
        """Numbers or media as a row of the history; without `commit` they wait for the next row."""
        self.attempt(lambda run: run.log(dict(values), commit=commit))

    def attempt(self, action: Callable[[Any], object]) -> None:
        """Call an action on W&B's run, unless W&B has failed before."""
        if self.lost:
            return
        run = self.experiment
        try:
            action(run)
        except wandb_failures() as error:
            self.lose(error)

    def lose(self, error: Exception) -> None:
        """Log the error once, and send nothing more."""
        if not self.lost:
            log.warning(
                f"W&B failed ({error}) and gets nothing more of this run. The run does not need it: every number is in "
                "its folder."
            )
            # On a full disk W&B's own log fails too: Python prints that, W&B records what is printed, and so on.
            logging.getLogger("wandb").handlers.clear()
        self.lost = True

    def finish(self, code: int) -> None:
        """Close W&B's run, so that the next run of this process does not write into it."""
        import wandb

        if wandb.run is None:  # refused before it was started: `experiment` would start it now
            return
        try:
            wandb.finish(exit_code=code)
        except wandb_failures() as error:
            self.lose(error)
            with suppress(*wandb_failures()):
                wandb.teardown()  # at the end of the process it would print a traceback
            wandb.run = None
