"""The picture at the end of a sweep: a heat map of two parameters, or importance and slices of any other number."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlit.experiments.sweep.parallel_plot import failures, headline
from fedlit.experiments.sweep.parameters import is_number
from fedlit.experiments.sweep.sweep import Sweep
from fedlit.experiments.trials import Trial
from fedlit.report.figures.draw import save
from fedlit.report.figures.search_figures import search_drawn
from fedlit.report.figures.searches import Search
from fedlit.report.figures.style import look, wrapped


def draw_search(sweep: Sweep) -> list[Path]:
    """Write search.png and search.pdf; nothing where no trial has finished or nothing varies."""
    trials = sweep.ranked()
    if not trials or not sweep.labels:
        return []
    with look():
        picture = search_drawn(search_of(sweep, trials)).picture
        width = picture.get_figwidth() - 0.3
        picture.suptitle(wrapped(headline(sweep, trials), width), x=0.02, ha="left", fontsize=8.5)
        if failed := failures(sweep):
            picture.supxlabel(wrapped(failed, width), x=0.02, ha="left", fontsize=8, color="0.35")
        save(picture, sweep.folder / "search")
    return [sweep.folder / f"search.{kind}" for kind in ("png", "pdf")]


def search_of(sweep: Sweep, trials: Sequence[Trial]) -> Search:
    """The finished trials as settings and scores."""
    settings = [{name: plain(trial.parameters[name]) for name in sweep.labels} for trial in trials]
    scores = [trial.value for trial in trials if trial.value is not None]
    return Search(sweep.file.path.stem, list(sweep.labels), settings, scores, sweep.file.metric, sweep.file.goal)


def plain(value: Any) -> Any:
    """A number that YAML has read as text (1e-7) is a number; what is neither is text, of a class its name."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = str(value)
    if is_number(text):
        return float(text)
    return text.rsplit(".", 1)[-1] if all(part.isidentifier() for part in text.split(".")) else text
