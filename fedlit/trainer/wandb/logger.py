"""WandbRun: Lightning's W&B logger over rounds, in the words of fedlit's catalogue.

The users' records are sent by `evaluation/user_models.py`; what the command line adds to a run is in `command.py`.
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
"""The x-axis of everything."""
GLOSSARY = "about/metrics"
"""A table: every metric of the run with its unit and definition."""


class WandbRun(WandbLogger):
    """Lightning's WandbLogger with the round as x-axis, and summaries of the best and the last value.

    W&B's trouble is not the training's: the first error is told, then nothing more is sent to W&B.

    Args:
        config: the complete config; what a module saves as hyperparameters would repeat it, and is left out then.
        given: arguments of WandbLogger; `prefix` has no effect, metric names are fixed.
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None, **given: Any) -> None:
        super().__init__(config=config, **given)
        self.has_config = config is not None
        self.lost = False

    @property
    def experiment(self) -> Any:
        """W&B's own object. One that cannot start is an error: it happens before any training."""
        try:
            return super().experiment
        except wandb_failures() as error:
            why = " ".join(str(error).split())
            raise ConfigError(f"W&B cannot start ({why}). Give --wandb offline, or --wandb disabled.") from error

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """One row of W&B's history; the step is the round."""
        self.send(metrics if step is None else {**metrics, ROUND: step})

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Lightning's, unless the run has its complete config already."""
        if not self.has_config:
            super().log_hyperparams(params)

    def define(self, names: Iterable[str]) -> None:
        """The round is the x-axis of every metric; the summary keeps its last value and, where one is, the best."""

        def define(run: Any) -> None:
            run.define_metric(ROUND, hidden=True)
            run.define_metric("*", step_metric=ROUND)
            for name in names:
                best = metric(name).best
                run.define_metric(name, step_metric=ROUND, summary=f"{best},last" if best else None)

        self.attempt(define)

    def explain(self, names: Iterable[str]) -> None:
        """The glossary of these metrics, to go with the next row: W&B itself has no place for units."""
        import wandb

        columns: list[str | int] = ["name", "label", "unit", "better", "definition"]
        known = [(name, metric(name)) for name in names]
        rows = [[name, m.label, m.unit or "-", m.best or "-", m.definition] for name, m in known]
        self.send({GLOSSARY: wandb.Table(columns=columns, data=rows)}, commit=False)

    def send(self, values: Mapping[str, Any], *, commit: bool = True) -> None:
        """Numbers or media as a row of the history; without `commit` they wait for the next row."""
        self.attempt(lambda run: run.log(dict(values), commit=commit))

    def attempt(self, action: Callable[[Any], object]) -> None:
        """Act on W&B's run, unless it was lost before."""
        if self.lost:
            return
        run = self.experiment
        try:
            action(run)
        except wandb_failures() as error:
            self.lose(error)

    def lose(self, error: Exception) -> None:
        """Tell it once, and send nothing more."""
        if not self.lost:
            log.warning(
                f"W&B failed ({error}) and gets nothing more of this run. The run does not need it: every number is in "
                "its folder."
            )
            # On a full disk its own log fails too: Python prints that, W&B records what is printed, and so on.
            logging.getLogger("wandb").handlers.clear()
        self.lost = True

    def finish(self, code: int) -> None:
        """Close W&B's run: the next run of this process must not write into this one."""
        import wandb

        if wandb.run is None:  # refused before it was started: `experiment` would start it now
            return
        try:
            wandb.finish(exit_code=code)
        except wandb_failures() as error:
            self.lose(error)
            with suppress(*wandb_failures()):
                wandb.teardown()  # now: at the end of the process it would leave a traceback
            wandb.run = None
