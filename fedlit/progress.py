"""The progress bar counts rounds, shows the key metrics and the time left; without a terminal it prints some lines."""

import logging
import time
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_SHOWN = (
    ("train/loss", "loss", "{:.3f}"),
    ("global/acc", "global", "{:.1%}"),
    ("local/acc", "local", "{:.1%}"),
    ("min_user/acc", "min user", "{:.1%}"),
    ("max_user/acc", "max user", "{:.1%}"),
)
_SECONDS_BETWEEN_LINES = 20.0


class RoundProgressBar(ProgressBar):
    """One bar for the whole run, by rounds."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._console = Console()
        self._bar: Progress | None = None
        self._line_at = 0.0
        self._evaluated = 0

    def disable(self) -> None:
        """Lightning turns it off on all processes but one."""
        self._enabled = False

    def enable(self) -> None:
        """The opposite of disable."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the bar, at the round where the run begins."""
        self._line_at = time.monotonic()
        if not self._enabled or not self._console.is_terminal:
            return
        columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=24), TimeElapsedColumn())
        self._bar = Progress(
            *columns,
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[shown]}"),
            console=self._console,
        )
        self._task = self._bar.add_task("", total=trainer.max_epochs, completed=trainer.current_epoch, shown="")
        self._bar.start()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One round further."""
        done = trainer.current_epoch + 1
        words = shown(trainer.callback_metrics, age=done - self._evaluated)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, shown=words)
        elif self._enabled and (done == trainer.max_epochs or self._line_is_due()):
            self._console.print(f"round {done}/{trainer.max_epochs}  {words}", highlight=False, soft_wrap=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The round was evaluated."""
        self._evaluated = trainer.current_epoch + 1

    def _line_is_due(self) -> bool:
        now = time.monotonic()
        if now - self._line_at < _SECONDS_BETWEEN_LINES:
            return False
        self._line_at = now
        return True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the finished bar on the screen."""
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the terminal back."""
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def is_first_rank() -> bool:
    """Whether this process speaks for its run, as far as the environment tells before the run begins."""
    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


def show_lines() -> None:
    """Let fedlit's lines (which engine and why, fallbacks …) be seen, unless the user set logging up otherwise."""
    logger = logging.getLogger("fedlit")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO if is_first_rank() else logging.WARNING)  # one rank speaks for all
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())


def shown(metrics: dict[str, Any], age: int = 0) -> str:
    """The key metrics in a line; accuracies say how many rounds ago they were measured, unless it was in this one."""
    known = [(name, f"{label} {form.format(float(metrics[name]))}") for name, label, form in _SHOWN if name in metrics]
    trained = [text for name, text in known if name.startswith("train/")]
    measured = [text for name, text in known if not name.startswith("train/")]
    ago = [f"(measured {age} round{'s' * (age > 1)} ago)"] if age and measured else []
    return "  ".join([*trained, *measured, *ago])
