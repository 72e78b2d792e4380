"""Bars: how unequal users are at the end of training, group by group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedlit.metrics.catalogue import metric
from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.report.figures.axes import STEPS, show_percent
from fedlit.report.figures.base import Drawn, Figure, final_values, spread_note
from fedlit.report.figures.rounds import named
from fedlit.report.figures.style import WIDE, Style, inches, wrapped
from fedlit.results.runs import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture


@dataclass(frozen=True)
class Bar:
    """A group's mean over seeds; no spread with one seed."""

    label: str
    mean: float
    std: float | None = None


def variance(groups: Sequence[Group], styles: Mapping[str, Style], measure: Measure = ACCURACY) -> Iterator[Drawn]:
    """FedBC's Fig. 3d, 14, 15: the variance of users' accuracies."""
    panels = {name: bars_of(groups, name) for name in (f"users/{measure.name}_var", f"personal/{measure.name}_var")}
    panels = {name: bars for name, bars in panels.items() if bars}
    shares = ", accuracies in [0, 1] (papers that count in percent show 10⁴ times as much)"
    caption = (
        f"Variance over users of the {measure.label} on their own test data at the end of training"
        f"{shares if measure.name == 'acc' else ''}; lower is fairer. {spread_note(groups, 'whisker')}"
    )
    yield Drawn(Figure(named("variance", measure), "Variance over users", caption), bars_figure(panels, styles))


def bars_of(groups: Sequence[Group], name: str) -> list[Bar]:
    """The metric's end of each group that has it."""
    return [bar for group in groups if (bar := bar_of(group, name, group.label))]


def bar_of(group: Group, name: str, label: str) -> Bar | None:
    """The metric at the end of training, if the group has it."""
    values = final_values(group, name)
    if not len(values):
        return None
    return Bar(label, float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None)


def bars_figure(panels: Mapping[str, Sequence[Bar]], styles: Mapping[str, Style]) -> "Picture":
    """Lying bars from 0 with their names at the left, the first on top; a panel per metric."""
    from matplotlib.figure import Figure as Picture
    from matplotlib.ticker import MaxNLocator

    labels = list(dict.fromkeys(bar.label for bars in panels.values() for bar in bars))
    names = [wrapped(label, 3.0) for label in labels]
    room = WIDE - 0.5 - max(inches(line) for name in names for line in name.split("\n"))
    lines = sum(name.count("\n") + 1 for name in names)
    picture = Picture(figsize=(WIDE, 0.6 + 0.15 * lines + 0.08 * len(names)), layout="constrained")
    axes = picture.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for panel, (name, bars) in zip(axes, panels.items(), strict=True):
        draw_bars(panel, bars, [labels.index(bar.label) for bar in bars], [styles[bar.label].colour for bar in bars])
        panel.set_xlabel(metric(name).label)
        if metric(name).unit == "share":
            show_percent(panel.xaxis)
        panel.xaxis.set_major_locator(MaxNLocator(max(2, int(room / len(panels) / 0.5)), steps=STEPS))
    axes[0].set_yticks(range(len(labels)), names)
    axes[0].set_ylim(len(labels) - 0.4, -0.6)
    return picture


def draw_bars(axes: "Axes", bars: Sequence[Bar], positions: Sequence[int], colours: Sequence[str]) -> None:
    """Bars at these places, with whiskers where there is a spread."""
    means = [bar.mean for bar in bars]
    spread = [np.nan if bar.std is None else bar.std for bar in bars]
    axes.barh(positions, means, height=0.62, color=colours)
    axes.errorbar(means, positions, xerr=spread, fmt="none", ecolor="#222222", elinewidth=0.9)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
