"""The picture of a table without a paper: a panel for each column, a point with a whisker for each row."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedlit.experiments.reproduce.result import Result
from fedlit.files import writing
from fedlit.metrics.catalogue import metric
from fedlit.report.figures.style import CHARACTER, DPI, WIDE, look, styles_of, wrapped
from fedlit.report.formats import Style
from fedlit.results.folder import chosen_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

IN_A_LINE = 5
"""Panels beside each other."""


def save_picture(path: Path, results: Sequence[Result], style_for: Callable[[Result], Style]) -> None:
    """Draw and write it."""
    with look(), chosen_by("--page FILE", path), writing(path) as file:
        drawn(results, style_for).savefig(file, format="png", dpi=DPI)


def drawn(results: Sequence[Result], style_for: Callable[[Result], Style]) -> "Picture":
    """The picture; rows are named at the left, the first on top."""
    from matplotlib.figure import Figure as Picture

    rows = list(dict.fromkeys(one.cell.row.name for one in results))
    columns = list(dict.fromkeys(one.cell.column.name for one in results))
    lines = -(-len(columns) // IN_A_LINE)
    picture = Picture(figsize=(WIDE + CHARACTER * max(map(len, rows)), lines * (0.7 + 0.2 * len(rows))))
    picture.set_layout_engine("constrained")
    panels = picture.subplots(lines, min(IN_A_LINE, len(columns)), sharey=True, squeeze=False)
    for axes in panels.flat[len(columns) :]:
        axes.set_visible(False)
    for axes, column in zip(panels.flat, columns, strict=False):
        own = [one for one in results if one.cell.column.name == column and one.mean is not None]
        draw_column(axes, own, rows, style_for)
        axes.set_title(wrapped(column, 1.3))
    for axes in panels[:, 0]:
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
    return picture


def draw_column(
    axes: "Axes", results: Sequence[Result], rows: Sequence[str], style_for: Callable[[Result], Style]
) -> None:
    """The points of one column, in the unit of its numbers."""
    from matplotlib.ticker import MaxNLocator

    styles = styles_of(rows)
    for one in results:
        scale, style = style_for(one).scale, styles[one.cell.row.name]
        spread = None if one.std is None else scale * one.std
        axes.errorbar(
            scale * (one.mean or 0.0),
            rows.index(one.cell.row.name),
            xerr=spread,
            fmt=style.marker,
            color=style.colour,
            capsize=2,
        )
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if results:
        percent = " %" * (style_for(results[0]).scale == 100)
        axes.set_xlabel(wrapped(metric(results[0].reading.metric).label, 1.3) + percent)
        axes.xaxis.label.set_fontsize(7)
