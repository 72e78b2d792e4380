"""Lines by round or time, from plain arrays to a picture: a panel per metric, or small multiples with the same axes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedlit.report.figures.axes import TIME, show_metric, show_seconds, show_shares, show_whole
from fedlit.report.figures.base import Curve, Floats
from fedlit.report.figures.style import Style, legend_below, name_panels, needs_width, new_panels, title_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture
    from matplotlib.lines import Line2D

MOST_BANDS = 8
"""Above so many lines in a panel bands hide each other and are left out."""
_MARKED = 15  # up to so many points, each is marked


def curves_figure(panels: Mapping[str, Sequence[Curve]], styles: Mapping[str, Style]) -> "Picture":
    """Curves, one panel for each metric, a legend for all."""
    labels = list(dict.fromkeys(curve.label for curves in panels.values() for curve in curves))
    picture, axes = new_panels(len(panels), columns=len(panels), wide=needs_width(labels))
    lines: dict[str, Line2D] = {}
    for panel, (name, curves) in zip(axes, panels.items(), strict=True):
        lines |= draw_curves(panel, curves, styles)
        panel.set_xlabel(TIME if curves[0].is_timed else "round")
        show_metric(panel, name, np.concatenate([curve.mean for curve in curves]))
    legend_below(picture, {label: lines[label] for label in labels})
    return picture


def group_panels_figure(
    panels: Mapping[str, Sequence[Curve]], styles: Mapping[str, Style], label: str, *, percent: bool
) -> "Picture":
    """Small multiples with the same axes; `label` stands beside the y axis, which is 0 to 100 % or starts at 0."""
    picture, axes = new_panels(len(panels), share=True)
    lines: dict[str, Line2D] = {}
    for panel, curves in zip(axes, panels.values(), strict=True):
        lines |= draw_curves(panel, curves, styles)
    if percent:
        show_shares(axes[0], whole=True)  # shared with the others
    else:
        axes[0].set_ylim(bottom=0)
    title_panels(axes, panels)
    name_panels(axes, "round", label)
    legend_below(picture, {name: lines[name] for name in styles if name in lines})
    return picture


def draw_curves(axes: "Axes", curves: Sequence[Curve], styles: Mapping[str, Style]) -> dict[str, "Line2D"]:
    """All curves of a panel; returns the line of each label."""
    lines = {}
    for curve in curves:
        lines[curve.label] = draw_curve(axes, curve, styles[curve.label], banded=len(curves) <= MOST_BANDS)
    if any(curve.is_timed for curve in curves):
        show_seconds(axes)
    else:
        show_whole(axes)
    return lines


def draw_curve(axes: "Axes", curve: Curve, style: Style, *, banded: bool) -> "Line2D":
    """A line with its band, or with its running mean on top; a few points are marked, so that one can be seen."""
    mean = curve.mean
    corners: Literal["steps-post", "default"] = "steps-post" if curve.is_timed else "default"
    if curve.window > 1:
        mean = running_mean(curve.mean, curve.window)
        axes.plot(curve.x, curve.mean, color=style.colour, linestyle=style.dash, linewidth=0.6, alpha=0.35)
    elif banded and curve.std is not None:
        low, high = curve.mean - curve.std, curve.mean + curve.std
        step: Literal["post"] | None = "post" if curve.is_timed else None
        axes.fill_between(curve.x, low, high, step=step, color=style.colour, alpha=0.16, linewidth=0)
    marker = style.marker if len(curve.x) <= _MARKED else ""
    (line,) = axes.plot(curve.x, mean, color=style.colour, linestyle=style.dash, marker=marker, drawstyle=corners)
    return line


def running_mean(values: Floats, window: int) -> Floats:
    """The mean over the `window` (odd) points around each one; at the ends over those that exist."""
    kernel, first = np.ones(window), window // 2
    total = np.convolve(values, kernel)[first : first + len(values)]
    count = np.convolve(np.ones(len(values)), kernel)[first : first + len(values)]
    mean: Floats = total / count
    return mean
