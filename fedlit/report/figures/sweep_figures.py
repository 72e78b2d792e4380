"""Figures of swept options: one curve by round for each value, and the end of training against the value."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlit.metrics.catalogue import STATES, metric, state_label
from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.report.figures.axes import is_number, number, show_metric, show_shares, show_values
from fedlit.report.figures.bars import Bar, bar_of, bars_figure
from fedlit.report.figures.base import (
    MOST_PANELS,
    Curve,
    Drawn,
    Figure,
    curve_of,
    definitions,
    final_values,
    has,
    spread_note,
)
from fedlit.report.figures.curves import MOST_BANDS, draw_curves
from fedlit.report.figures.rounds import opening
from fedlit.report.figures.style import (
    Style,
    legend_below,
    name_panels,
    needs_width,
    new_panels,
    sequential,
    styles_of,
    title_panels,
    wrapped,
)
from fedlit.report.figures.sweeps import Line, Sweep, find_sweeps
from fedlit.results.runs import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture
    from matplotlib.lines import Line2D

MOST_ROWS = 6
"""Combinations of other options in a figure by round."""
_BY_ROUND = ("global/{}", "personal/{}")
_AT_THE_END = (*_BY_ROUND, "users/{}_var")
_CLIENTS = "data.num_clients"
_FIRST_VALUE = re.compile(r"model\.(\w+)_init")
_GLOBAL_AND_LOCAL = {"global": Style("#0072b2"), "local": Style("#d55e00", (0, (4, 1.5)), "s")}


def swept_by_round(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """pFedMe's Fig. 1 to 7, Exp-α's Fig. 3 and 4: accuracy by round, one curve per value of an option."""
    for sweep in find_sweeps(groups):
        names = known_names(sweep, _BY_ROUND)
        if names:
            yield by_round(sweep, names)


def by_round(sweep: Sweep, names: Sequence[str]) -> Drawn:
    """A row of panels for each line, up to a page."""
    shown = sweep.lines[:MOST_ROWS]
    rows = {line.label: {name: curves_by_round(line, name) for name in names} for line in shown}
    caption = spread_note(groups_of(sweep.lines), is_drawn=len(sweep.values) <= MOST_BANDS)
    if len(shown) < len(sweep.lines):
        caption += f" The first {len(shown)} of {len(sweep.lines)} combinations of other options are shown."
    who = f"{shown[0].label}, o" if len(shown) == 1 else "O"
    title = f"{opening(measure_of(sweep))} by round for each {name_of(sweep.option)}"
    picture = swept_figure(rows, [number(value) for value in sweep.values], sweep.option.rsplit(".", 1)[-1])
    return Drawn(
        Figure(f"swept_{slug(sweep.option)}", title, f"{who}ne curve per value of {sweep.option}. {caption}"), picture
    )


def curves_by_round(line: Line, name: str) -> list[Curve]:
    """A curve for each value, called by it."""
    curves = [curve_of(group, name, number(value)) for value, group in zip(line.values, line.groups, strict=True)]
    return [curve for curve in curves if curve]


def swept_figure(rows: Mapping[str, Mapping[str, Sequence[Curve]]], values: Sequence[str], option: str) -> "Picture":
    """A row for each line, a column for each metric, the values of the option from dark to light."""
    names = list(next(iter(rows.values())))
    panels = [(label, name, row[name]) for label, row in rows.items() for name in names]
    styles = {value: Style(colour) for value, colour in zip(values, sequential(len(values)), strict=True)}
    titles = {value: f"{option} = {value}" for value in values}
    height = 1.9 if len(rows) <= 2 else 1.35
    picture, axes = new_panels(len(panels), columns=len(names), height=height, wide=needs_width(titles.values()))
    lines: dict[str, Line2D] = {}
    for panel, (_, name, curves) in zip(axes, panels, strict=True):
        lines |= draw_curves(panel, curves, styles)
        show_metric(panel, name, np.concatenate([curve.mean for curve in curves]))
        panel.set_xlabel("round")
    if len(rows) > 1:
        title_panels(axes, [label for label, _, _ in panels])
    legend_below(picture, {titles[value]: lines[value] for value in values if value in lines})
    return picture


# the end of training


def swept_at_the_end(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """FedBC's Fig. 7f (number of clients), 3d, 14, 15; any other option that was swept."""
    for sweep in find_sweeps(groups):
        names = known_names(sweep, _AT_THE_END)
        if names and started_state(sweep.option) is None:
            yield at_the_end(sweep, names)


def at_the_end(sweep: Sweep, names: Sequence[str]) -> Drawn:
    """Lines along values that are numbers, bars for others."""
    if all(is_number(value) for value in sweep.values):
        panels = {name: [curve_at_the_end(line, name) for line in sweep.lines] for name in names}
        picture = against_figure(panels, sweep.values, name_of(sweep.option))
    else:
        picture = choice_figure(sweep, names)
    name = "number_of_clients" if sweep.option == _CLIENTS else f"against_{slug(sweep.option)}"
    caption = f"{definitions(names)} {spread_note(groups_of(sweep.lines), 'whisker')}"
    return Drawn(Figure(name, f"At the end of training, by {name_of(sweep.option)}", caption), picture)


def choice_figure(sweep: Sweep, names: Sequence[str]) -> "Picture":
    """A bar for each value of each line, in the colour of the line."""
    option = sweep.option.rsplit(".", 1)[-1]
    colours = styles_of(line.label for line in sweep.lines)
    panels: dict[str, list[Bar]] = {name: [] for name in names}
    styles = {}
    for line in sweep.lines:
        for value, group in zip(line.values, line.groups, strict=True):
            label = f"{line.label} {option}={number(value)}"
            styles[label] = colours[line.label]
            for name in names:
                panels[name] += [bar for bar in [bar_of(group, name, label)] if bar]
    return bars_figure(panels, styles)


def curve_at_the_end(line: Line, name: str, label: str | None = None) -> Curve:
    """The metric at the end of training against the values of an option."""
    ends = [final_values(group, name) for group in line.groups]
    mean = np.array([end.mean() for end in ends])
    std = np.array([end.std(ddof=1) if len(end) > 1 else np.nan for end in ends])
    return Curve(label or line.label, np.array(line.values, dtype=float), mean, std if np.isfinite(std).any() else None)


def against_figure(panels: Mapping[str, Sequence[Curve]], values: Sequence[float], option: str) -> "Picture":
    """A panel per metric, a line per algorithm (or combination of other options)."""
    labels = list(dict.fromkeys(curve.label for curves in panels.values() for curve in curves))
    styles = styles_of(labels)
    picture, axes = new_panels(len(panels), columns=len(panels), wide=needs_width(labels))
    points = {}
    for panel, (name, curves) in zip(axes, panels.items(), strict=True):
        for curve in curves:
            points[curve.label] = draw_points(panel, curve, styles[curve.label])
        show_values(panel, values)
        show_metric(panel, name, np.concatenate([curve.mean for curve in curves]))
        panel.set_xlabel(wrapped(option, 3))
    legend_below(picture, {label: points[label] for label in labels})
    return picture


def against_first_state(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """FedBC's Fig. 2: global and local accuracy against γ; likewise for any state whose first value was swept."""
    for sweep in find_sweeps(groups):
        state = started_state(sweep.option)
        if state is not None and all(all_have(sweep, name) for name in both_of(sweep)):
            yield against_state(sweep, state)


def started_state(option: str) -> str | None:
    """The state whose first value an option is: `model.<state>_init`, where an algorithm has words for that state."""
    match = _FIRST_VALUE.fullmatch(option)
    return match[1] if match and match[1] in STATES else None


def against_state(sweep: Sweep, state: str) -> Drawn:
    """A panel for each line, up to a page."""
    label, both, measure = state_label(state), both_of(sweep), measure_of(sweep)
    panels = {
        line.label: [curve_at_the_end(line, name, metric(name).label) for name in both]
        for line in sweep.lines[:MOST_PANELS]
    }
    groups = groups_of(sweep.lines)
    is_fixed = all(group.runs[0].settings.get(f"model.{state}_lr") == 0 for group in groups)
    what = f"{label} is fixed" if is_fixed else f"the axis shows where {label} starts"
    caption = f"{definitions(both)} At the end of training; {what}. {spread_note(groups, 'whisker')}"
    picture = against_state_figure(panels, sweep.values, label if is_fixed else f"initial {label}", measure)
    return Drawn(Figure(state, f"Global and local {measure.label} against the {label}", caption), picture)


def against_state_figure(
    panels: Mapping[str, Sequence[Curve]],
    values: Sequence[float],
    option: str,
    measure: Measure = ACCURACY,
) -> "Picture":
    """A panel per line with both curves, on a logarithmic axis that has a place for 0."""
    picture, axes = new_panels(len(panels), share=True)
    styles = {metric(name).label: style for name, style in styled(measure).items()}
    points = {}
    for panel, curves in zip(axes, panels.values(), strict=True):
        for curve in curves:
            points[curve.label] = draw_points(panel, curve, styles[curve.label])
    show_values(axes[0], values, logarithmic=True)  # shared with the others
    if measure.unit == "share":
        show_shares(axes[0])
    if len(panels) > 1:
        title_panels(axes, panels)
    name_panels(axes, option, measure.label)
    legend_below(picture, {label: points[label] for label in styles})
    return picture


def draw_points(axes: "Axes", curve: Curve, style: Style) -> "Line2D":
    """Marks joined by a line, with whiskers where there is a spread."""
    look = {"color": style.colour, "linestyle": style.dash, "marker": style.marker}
    marks = axes.errorbar(curve.x, curve.mean, curve.std, capsize=2, elinewidth=0.9, **look)
    return marks.lines[0]


# words


def measure_of(sweep: Sweep) -> Measure:
    """What the runs of a sweep are judged by."""
    return sweep.lines[0].groups[0].runs[0].measures[0]


def known_names(sweep: Sweep, forms: Sequence[str]) -> list[str]:
    """The metrics of these forms that all runs of a sweep have."""
    names = [form.format(measure_of(sweep).name) for form in forms]
    return [name for name in names if all_have(sweep, name)]


def both_of(sweep: Sweep) -> dict[str, Style]:
    """The metrics of z and of x_i, with their styles."""
    return styled(measure_of(sweep))


def styled(measure: Measure) -> dict[str, Style]:
    """The same, for a measure."""
    return {f"{group}/{measure.name}": style for group, style in _GLOBAL_AND_LOCAL.items()}


def all_have(sweep: Sweep, name: str) -> bool:
    """Whether a metric was measured in every run of the sweep."""
    return all(has(run, name) for group in groups_of(sweep.lines) for run in group.runs)


def groups_of(lines: Sequence[Line]) -> list[Group]:
    """All groups of these lines."""
    return [group for line in lines for group in line.groups]


def name_of(option: str) -> str:
    """What an axis calls an option."""
    return "number of clients" if option == _CLIENTS else option


def slug(option: str) -> str:
    """An option's name as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "_", option.lower()).strip("_")
