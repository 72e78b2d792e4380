"""Clients as points, from plain arrays to a picture: clouds of two numbers each, and users in the order of accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.report.figures.axes import is_wide, scale, show_shares, show_whole
from fedlit.report.figures.base import Floats
from fedlit.report.figures.style import Style, legend_below, name_panels, needs_width, new_panels, title_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure as Picture
    from matplotlib.lines import Line2D

_MANY_POINTS = 5000  # above, the PDF holds an image of the points instead of each one
_SERVER, _OWN = "#0072b2", "#d55e00"


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points of one group, a client of one run each."""

    label: str
    x: Floats
    y: Floats


@dataclass(frozen=True, eq=False)
class Users:
    """Accuracies on own test data, user by user: under the server's model, and under the user's own."""

    server: Floats
    own: Floats


def clouds_figure(
    panels: Mapping[str, Sequence[Cloud]], styles: Mapping[str, Style], x: str, y: str, *, diagonal: bool = False
) -> "Picture":
    """Small multiples with the same axes, called `x` and `y`; a legend unless titles are the clouds' names.

    Args:
        panels: title -> clouds; a single panel may have an empty title.
        styles: of the clouds' labels.
        x: label of the axis.
        y: label of the axis.
        diagonal: whether to draw the line on which both are equal.
    """
    labels = list(dict.fromkeys(cloud.label for clouds in panels.values() for cloud in clouds))
    is_named = all([title] == [cloud.label for cloud in clouds] for title, clouds in panels.items())
    picture, axes = new_panels(len(panels), share=True, wide=not is_named and needs_width(labels))
    drawn = {}
    for panel, clouds in zip(axes, panels.values(), strict=True):
        for cloud in clouds:
            drawn[cloud.label] = draw_cloud(panel, cloud, styles[cloud.label])
    every = [cloud for clouds in panels.values() for cloud in clouds]
    across, up = np.concatenate([cloud.x for cloud in every]), np.concatenate([cloud.y for cloud in every])
    if diagonal:
        across = up = np.concatenate([across, up])  # the same axis both ways, so that the line is straight
        draw_diagonal(axes, across)
    set_range(axes[0], "x", across)  # shared with the other panels
    set_range(axes[0], "y", up)
    if any(panels):
        title_panels(axes, panels)
    name_panels(axes, x, y)
    if not is_named:
        legend_below(picture, {label: drawn[label] for label in labels})
    return picture


def draw_cloud(axes: "Axes", cloud: Cloud, style: Style) -> "PathCollection":
    """Points that can be seen through."""
    return axes.scatter(
        cloud.x,
        cloud.y,
        s=11,
        marker=style.marker,
        color=style.colour,
        alpha=0.55,
        linewidths=0,
        rasterized=len(cloud.x) > _MANY_POINTS,
    )


def draw_diagonal(axes: Sequence["Axes"], values: Floats) -> None:
    """The line of equal numbers, as far as there are any."""
    low = values.min(initial=1, where=values > 0) if is_wide(values) else 0.0
    high = values.max(initial=0)
    for panel in axes:
        panel.plot([low, high], [low, high], color="#999999", linewidth=0.8, zorder=0)


def set_range(axes: "Axes", which: Literal["x", "y"], values: Floats) -> None:
    """A logarithmic axis where values differ much, else one that includes 0, with some room around the points."""
    scale(axes, which, values)
    if not is_wide(values):
        low, high = values.min(initial=0), values.max(initial=0)
        room = 0.05 * (high - low) or 1
        axes.set(**{f"{which}lim": (low - room, high + room)})


def users_figure(panels: Mapping[str, Users], measure: Measure = ACCURACY) -> "Picture":
    """Small multiples: users from the worst served by z to the best, each with the measure of its own model."""
    picture, axes = new_panels(len(panels), share=True, height=2.0)
    entries: dict[str, Line2D] = {}
    size = 2.5 if max(len(users.server) for users in panels.values()) <= 60 else 1.5
    for panel, users in zip(axes, panels.values(), strict=True):
        sign = 1 if measure.best == "max" else -1
        order = np.argsort(sign * users.server, kind="stable")
        rank, server, own = np.arange(1, len(order) + 1), users.server[order], users.own[order]
        panel.vlines(
            rank, server, own, color=np.where(sign * own < sign * server, _SERVER, _OWN), alpha=0.35, linewidth=0.7
        )
        (entries["server's model z"],) = panel.plot(rank, server, color=_SERVER, marker="o", markersize=size)
        (entries["own model"],) = panel.plot(rank, own, color=_OWN, marker="D", markersize=size, linestyle="")
    if measure.unit == "share":
        show_shares(axes[0], whole=True)
    show_whole(axes[0])
    title_panels(axes, panels, (who_gains(users, measure) for users in panels.values()))
    name_panels(axes, "user, worst served by z first", f"{measure.label} on own test")
    legend_below(picture, entries)
    return picture


def who_gains(users: Users, measure: Measure) -> str:
    """How many users are better off with their own model."""
    known = np.isfinite(users.own)
    better = users.own > users.server if measure.best == "max" else users.own < users.server
    return f"own better for {int(better[known].sum())} of {len(users.server)}"
