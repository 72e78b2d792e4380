"""Figures of a search: a heat map of two options; of more, how much each matters and what each of its values reached.

Dark is good, and the best trials have an orange ring or frame.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedlit.metrics.catalogue import metric
from fedlit.report.figures.axes import is_number, label_metric, number, scale, show_metric, show_percent, show_values
from fedlit.report.figures.base import MOST_PANELS, Drawn, Figure, Floats, definitions
from fedlit.report.figures.importance import LEAST_TRIALS, importances, tells
from fedlit.report.figures.searches import Search, find_searches, short_names
from fedlit.report.figures.style import Style, good_is_dark, new_panels, panel_width, wrapped
from fedlit.report.figures.sweep_figures import slug
from fedlit.results.runs import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure as Picture

BEST = "#d55e00"
_POINT = "#0072b2"
_MOST_CELLS = 12
"""Values of an option on one side of a heat map; with more, trials are points."""
_PALEST = 0.25
"""Scores below this quantile share the palest colour: a trial that diverged must not hide how the others differ."""
_FAR = 1.5
"""As in a box plot."""


def searched(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """Of several options that were searched together, on validation data."""
    for search in find_searches(groups):
        yield search_drawn(search)


def search_drawn(search: Search) -> Drawn:
    """A heat map of two options; importance and slices of any other number."""
    count = f"{len(search.scores)} settings; a score is the best {search.metric} over the rounds, mean over seeds."
    said = definitions([search.metric])
    name, title = f"search_{slug(search.label)}", f"Search over options of {search.label}"
    if len(search.options) == 2:
        return Drawn(Figure(name, title, f"{count} {said} Dark is good, the best in orange."), heat_map(search))
    shares = importances(search)
    marks = "A point is a setting, a triangle one that is far worse, and the best are ringed."
    caption = f"{count} {said} {marks} {importance_note(search, shares)}"
    return Drawn(Figure(name, title, caption), slices(search, shares))


def importance_note(search: Search, shares: Mapping[str, float] | None) -> str:
    """The sentence of a caption about importance."""
    if shares is not None:
        return (
            "Importance: how far the best quarter of the settings differs from all of them in an option (PED-ANOVA of "
            "Optuna, in shares)."
        )
    if len(search.scores) < LEAST_TRIALS:
        return f"Importance is told of {LEAST_TRIALS} settings or more."
    if not tells(search):
        return "Too many scores are the same to tell which option matters."
    return "Importance is left out: it needs Optuna (pip install 'fedlit[sweep]')."


# two options


def heat_map(search: Search) -> "Picture":
    """Cells where the settings are a grid, points where they were drawn."""
    picture, (axes,) = new_panels(1, height=2.6, wide=True)
    across, up = sorted(search.options, key=lambda option: -len(search.different(option)))
    is_grid = all(
        len(search.different(option)) <= _MOST_CELLS and not search.is_drawn(option) for option in (across, up)
    )
    colours = (draw_cells if is_grid else draw_points)(axes, search, across, up)
    axes.set_xlabel(wrapped(across, 4))
    axes.set_ylabel(wrapped(up, 2.4))
    axes.grid(visible=False)
    bar = picture.colorbar(colours, ax=axes, extend=beyond(search), pad=0.02)
    label_metric(bar.ax, search.metric)
    if metric(search.metric).unit == "share":
        show_percent(bar.ax.yaxis)
    return picture


def draw_cells(axes: "Axes", search: Search, across: str, up: str) -> "ScalarMappable":
    """A cell for each pair of values, with its score; of several trials of a pair, the best one."""
    from matplotlib.patches import Rectangle

    columns, rows = search.different(across), search.different(up)
    cells = best_by_cell(search, across, up)
    matrix = np.full((len(rows), len(columns)), np.nan)
    for (column, row), score in cells.items():
        matrix[row, column] = score
    shades = axes.imshow(matrix, origin="lower", aspect="auto", cmap=good_is_dark(search.goal), norm=norm_of(search))
    for (column, row), score in cells.items():
        red, green, blue, _ = shades.to_rgba(np.array([score]))[0]
        is_dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        axes.text(column, row, short(search, score), ha="center", va="center", color="white" if is_dark else "black")
    for column, row in places_of_best(search, across, up):
        frame = Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, fill=False, ec=BEST, lw=2.2, zorder=3)
        axes.add_patch(frame)
    axes.set_xticks(
        range(len(columns)), [wrapped(number(value), panel_width(axes) / len(columns)) for value in columns]
    )
    axes.set_yticks(range(len(rows)), [wrapped(number(value), 1.8) for value in rows])
    return shades


def best_by_cell(search: Search, across: str, up: str) -> dict[tuple[int, int], float]:
    """(column, row) -> the best score of the trials there."""
    columns, rows = search.different(across), search.different(up)
    cells: dict[tuple[int, int], float] = {}
    for setting, score in zip(search.settings, search.scores, strict=True):
        cell = columns.index(setting[across]), rows.index(setting[up])
        cells[cell] = better(search, score, cells.get(cell, score))
    return cells


def places_of_best(search: Search, across: str, up: str) -> set[tuple[int, int]]:
    """The cells of the best trials."""
    columns, rows = search.different(across), search.different(up)
    best = [search.settings[index] for index in search.best]
    return {(columns.index(setting[across]), rows.index(setting[up])) for setting in best}


def draw_points(axes: "Axes", search: Search, across: str, up: str) -> "ScalarMappable":
    """A point for each trial, the better ones on top."""
    x, y = places(axes, search, across, "x"), places(axes, search, up, "y")
    scores = np.array(search.scores)
    order = np.argsort(scores if search.goal == "maximize" else -scores, kind="stable")
    cmap, norm = good_is_dark(search.goal), norm_of(search)
    shades = axes.scatter(
        x[order], y[order], 42, scores[order], cmap=cmap, norm=norm, edgecolors="white", lw=0.4, zorder=2
    )
    ring(axes, x[search.best], y[search.best])
    return shades


def norm_of(search: Search) -> "Normalize":
    """From the first quartile to the best; from the worst where so many are tied that these are the same."""
    from matplotlib.colors import Normalize

    is_max = search.goal == "maximize"
    worst, best = sorted((min(search.scores), max(search.scores)), reverse=not is_max)
    bound = float(np.quantile(search.scores, _PALEST if is_max else 1 - _PALEST))
    palest = bound if bound != best else worst if worst != best else best - 1 if is_max else best + 1
    return Normalize(min(palest, best), max(palest, best))


def beyond(search: Search) -> str:
    """At which end of the colours scores are outside of them."""
    return "min" if search.goal == "maximize" else "max"


def short(search: Search, score: float) -> str:
    """A score in a cell."""
    return f"{100 * score:.1f}" if metric(search.metric).unit == "share" else f"{score:.3g}"


def better(search: Search, one: float, other: float) -> float:
    """The better of two scores."""
    return max(one, other) if search.goal == "maximize" else min(one, other)


# any other number of options


def slices(search: Search, shares: Mapping[str, float] | None) -> "Picture":
    """A panel for each option, the most important first, and before them one with the importances."""
    shown = list(shares or search.options)[: MOST_PANELS - 1]
    picture, axes = new_panels(len(shown) + (shares is not None), wide=True, height=2.0)
    if shares is not None:
        draw_importances(axes[0], {option: shares[option] for option in shown})
    for panel, option in zip(axes[-len(shown) :], shown, strict=True):
        draw_slice(panel, search, option)
        show_metric(panel, search.metric, search.scores)
        panel.set_xlabel(wrapped(option, panel_width(panel) + 0.2))
    return picture


def draw_importances(axes: "Axes", shares: Mapping[str, float]) -> None:
    """A bar for each option, the largest on top."""
    names = short_names(list(shares)[::-1])
    axes.barh(range(len(names)), [shares[name] for name in names], color="#999999", height=0.6)
    axes.set_yticks(range(len(names)), [wrapped(label, 1.2) for label in names.values()])
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set_xlabel("importance")


def draw_slice(axes: "Axes", search: Search, option: str) -> None:
    """A point for each trial; values of a list are joined by a line through the best of each.

    Trials that are far worse than the others are triangles at the edge.
    """
    x, scores, edge = places(axes, search, option, "x"), np.array(search.scores), edge_of(search)
    is_max = search.goal == "maximize"
    outside = scores < edge if is_max else scores > edge
    shown = np.where(outside, edge, scores)
    if not search.is_range(option):
        values = np.unique(x)
        tops = [max(shown[x == value]) if is_max else min(shown[x == value]) for value in values]
        axes.plot(values, tops, color=_POINT, lw=0.9, alpha=0.5, zorder=1)
    for marker, chosen in (("o", ~outside), ("v" if is_max else "^", outside)):
        axes.plot(x[chosen], shown[chosen], marker, color=_POINT, ms=4, alpha=0.55, mew=0, zorder=2)
    ring(axes, x[search.best], shown[search.best])


def edge_of(search: Search) -> float:
    """The score beyond which a trial is at the edge: from the quartile 1.5 times as far as that is from the best."""
    is_max = search.goal == "maximize"
    best = max(search.scores) if is_max else min(search.scores)
    quartile = float(np.quantile(search.scores, _PALEST if is_max else 1 - _PALEST))
    return quartile - _FAR * (best - quartile)


def ring(axes: "Axes", x: Floats, y: Floats) -> None:
    """Around the best trials."""
    axes.plot(x, y, "o", mfc="none", mec=BEST, mew=1.8, ms=8, zorder=4)


def places(axes: "Axes", search: Search, option: str, which: Literal["x", "y"]) -> Floats:
    """Where the trials stand along an option, whose axis is labelled."""
    values, different = search.values(option), search.different(option)
    if not all(is_number(value) for value in different):
        room = panel_width(axes) / len(different) if which == "x" else 1.2
        texts = [wrapped(number(value), room, lines=4) for value in different]
        axes.set(**{f"{which}ticks": range(len(different)), f"{which}ticklabels": texts})
        return np.array([float(different.index(value)) for value in values])
    if search.is_range(option) or which == "y":
        scale(axes, which, values)
        thin_out(axes)
    else:
        show_values(axes, different)
    return np.array(values, dtype=float)


def thin_out(axes: "Axes") -> None:
    """Powers of ten along x as far as they can be written side by side."""
    from matplotlib.ticker import LogLocator

    if axes.get_xscale() == "log":
        axes.xaxis.set_major_locator(LogLocator(10, numticks=max(3, int(panel_width(axes) / 0.5))))
