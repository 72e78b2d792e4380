"""The terminal during a run: rounds, time left, clients of this round, key metrics.

Without a terminal, a line is printed now and then.
"""

import logging
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TextIO

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from fedlit.engines.progress import TrainingProgress
from fedlit.metrics.catalogue import first_measure
from fedlit.metrics.formatting import counted, duration

_SHOWN = {"global": "global", "local": "local", "min_user": "min user", "max_user": "max user"}
"""Groups of metrics -> their labels; the first measure of each is shown."""
_SECONDS_BETWEEN_LINES = 20.0
_REMEMBERED = 50
"""The time left is estimated from at most this many rounds."""
_ENOUGH = 0.05
"""Share of the first round's steps after which the round's length is estimated."""
_NARROWEST_BAR, _WIDEST_BAR = 8, 24


class Pace:
    """Estimates the time left from the time of rounds.

    Compiling is not part of a round's time. The first round is slower in other ways too, and counts only until the
    second is over.
    """

    def __init__(self, rounds: int, done: int, progress: TrainingProgress | None = None) -> None:
        self.rounds, self.done = rounds, done
        self.progress = progress or TrainingProgress()
        self.began = time.monotonic()
        self._ends = deque([self.began], maxlen=_REMEMBERED + 1)
        self._first = True

    def count(self, done: int) -> None:
        """A round is over."""
        if len(self._ends) == 2 and self._first:
            self._ends.popleft()
            self._first = False
        if self._first:
            self._ends[0] += self.progress.prepared
        self._ends.append(time.monotonic())
        self.done = done

    def seconds_left(self, share: float) -> float | None:
        """Seconds until the last round is over; `share` of the present round is done. None while nothing is known."""
        spent = time.monotonic() - self._ends[-1]
        if len(self._ends) > 1:
            each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        elif share >= _ENOUGH:
            spent -= self.progress.prepared
            each = spent / share
        else:
            return None
        later = max(self.rounds - self.done - 1, 0)
        return each * later + max(each - spent, 0.0) * (self.done < self.rounds)


class RoundView:
    """The lines at the bottom of a terminal, as wide as it is: notes that do not fit go to the next line."""

    def __init__(self, pace: Pace, progress: TrainingProgress) -> None:
        self.pace, self.progress = pace, progress
        self.words = ""
        self.is_over = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rounds, the bar, and the notes that fit after it; other notes and the metrics below."""
        pace, width = self.pace, options.max_width
        rounds = f"round {pace.done}/{pace.rounds}"
        notes = [clock(time.monotonic() - pace.began), *([] if self.is_over else self._notes())]
        room = width - len(rounds) - _NARROWEST_BAR - 1
        behind, *below = packed(notes, room) if len(notes[0]) + 2 <= room else ["", *packed(notes, width)]
        part = 0.0 if self.is_over else self.progress.share
        room = width - len(rounds) - len(behind) - 3
        bar = Bar(pace.rounds, min(pace.done + part, pace.rounds), width=max(min(room, _WIDEST_BAR), 1))
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(Text(rounds, no_wrap=True), bar, Text(behind, no_wrap=True))
        yield line
        for words in [*below, *packed(self.words.split("  "), width)]:
            yield Text(words, no_wrap=True)

    def _notes(self) -> list[str]:
        """Time left, clients of this round, steps per second, as far as they are known."""
        left, progress = self.pace.seconds_left(self.progress.share), self.progress
        rate = progress.steps_per_second
        return [
            *([f"{duration(left)} left"] if left is not None else []),
            *([f"clients {progress.clients}/{progress.of_clients}"] if progress.of_clients else []),
            *([f"{rate:,.{0 if rate >= 10 else 1}f} steps/s"] if rate is not None else []),
        ]


class RoundProgressBar(ProgressBar):
    """One bar for the whole run, by rounds."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._console = Console()
        self._live: Live | None = None
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
        progress = trainer.fit_loop.progress  # type: ignore[attr-defined]  # FederatedLoop's
        self._pace = Pace(trainer.max_epochs or 0, trainer.current_epoch, progress)
        if not self._enabled or not self._console.is_terminal:
            return
        self._view = RoundView(self._pace, progress)
        self._live = Live(
            self._view,
            console=self._console,
            refresh_per_second=4,
            redirect_stderr=sys.stderr.isatty(),  # a redirected stderr stays as it is
        )
        self._live.start()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One round further."""
        done = trainer.current_epoch + 1
        self._pace.count(done)
        words = format_metrics(trainer.callback_metrics, age=done - self._evaluated)
        if self._live is not None:
            self._view.words = words
            self._view.progress.begin(0, 0)
        elif self._enabled and (done == trainer.max_epochs or self._line_is_due()):
            left = self._pace.seconds_left(0.0) if done < (trainer.max_epochs or 0) else None
            ahead = f"  {duration(left)} left" if left is not None else ""
            self._console.print(f"round {done}/{trainer.max_epochs}  {words}{ahead}", highlight=False, soft_wrap=True)

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
        if self._live is not None:
            self._view.is_over = True
            self._live.stop()
            self._live = None


def clock(seconds: float) -> str:
    """`0:01:05`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def packed(items: Sequence[str], width: int) -> list[str]:
    """The items in lines of at most this width, with two spaces between them; an item is never divided."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 2 + len(item) <= width:
            lines[-1] += f"  {item}"
        else:
            lines.append(item)
    return lines


class CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to the present sys.stderr: while the bar is shown, that is a proxy which prints above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Look sys.stderr up at every line: Lightning and rich replace it."""
        self.setStream(sys.stderr)
        super().emit(record)


def is_first_rank() -> bool:
    """Whether this process prints for its run, as far as the environment tells before the run begins."""
    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


def show_lines() -> None:
    """Show fedlit's log lines (which engine and why, fallbacks …), unless the user has set up logging."""
    logger = logging.getLogger("fedlit")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO if is_first_rank() else logging.WARNING)  # only one rank prints
    if not logger.hasHandlers():
        logger.addHandler(CurrentStderr())


def format_metrics(metrics: dict[str, Any], age: int = 0) -> str:
    """The key metrics in a line, and how many rounds ago they were measured."""
    first = first_measure(metrics)
    form = "{:.1%}" if first.unit == "share" else "{:.4g}"
    trained = [f"loss {float(metrics['train/loss']):.3f}"] if "train/loss" in metrics else []
    names = {f"{group}/{first.name}": words for group, words in _SHOWN.items()}
    measured = [f"{words} {form.format(float(metrics[name]))}" for name, words in names.items() if name in metrics]
    ago = [f"(measured {counted(age, 'round')} ago)"] if age and measured else []
    return "  ".join([*trained, *measured, *ago])
