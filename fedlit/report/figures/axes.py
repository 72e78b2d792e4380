"""What stands beside an axis: labels from the catalogue, percent, whole rounds, logarithms where values want them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedlit.metrics.catalogue import metric
from fedlit.report.figures.base import Floats
from fedlit.report.figures.style import inches, panel_width, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

WIDE_SPREAD = 20
"""Largest over smallest value from which an axis is logarithmic."""
TIME = "simulated time (s)"
"""The name of an axis."""
STEPS = [1, 2, 2.5, 5, 10]
"""Between ticks, times a power of ten."""


def show_whole(axes: "Axes") -> None:
    """A few whole numbers on the x axis: rounds, users."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def show_seconds(axes: "Axes") -> None:
    """A few numbers on the x axis, as people write them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, steps=STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def label_metric(axes: "Axes", name: str) -> None:
    """The catalogue's label and unit on the y axis."""
    known = metric(name)
    unit = f" ({known.unit})" if known.unit in ("MB", "s") else ""
    axes.set_ylabel(f"{wrapped(known.label, 4)}{unit}")


def show_metric(axes: "Axes", name: str, values: ArrayLike) -> None:
    """Label and range of a metric: percent for shares, a logarithm where a loss falls by far."""
    label_metric(axes, name)
    if metric(name).unit == "share":
        show_shares(axes)
    else:
        scale(axes, "y", values)


def show_shares(axes: "Axes", *, whole: bool = False) -> None:
    """Percent on the y axis, never far outside of 0 to 100; the `whole` range where panels are read side by side."""
    low, high = (-1.0, 2.0) if whole else axes.get_ylim()
    if high - low < 0.02:  # all values alike: what is left must not look like a curve
        low, high = low - 0.01, high + 0.01
    beyond = 0.03 * (min(high, 1) - max(low, 0))  # keeps a line along 0 or 100 % off the frame
    axes.set_ylim(max(low, -beyond), min(high, 1 + beyond))
    show_percent(axes.yaxis)


def show_percent(axis: "Axis") -> None:
    """Ticks of a share: 82.5 %."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(5, steps=STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{number(round(100 * value, 6))} %"))


def is_wide(values: ArrayLike) -> bool:
    """Whether the values are positive and differ so much that they want a logarithmic axis."""
    known = finite(values)
    return bool(len(known) and known.min() > 0 and known.max() >= WIDE_SPREAD * known.min())


def finite(values: ArrayLike) -> Floats:
    """The finite ones, in one row."""
    known: Floats = np.asarray(values, dtype=float).ravel()
    return known[np.isfinite(known)]


def scale(axes: "Axes", which: Literal["x", "y"], values: ArrayLike) -> None:
    """Logarithmic where the values differ much, linear otherwise, with plain numbers as ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    if not is_wide(values):
        axis.set_major_locator(MaxNLocator(5, steps=STEPS))
        return
    known = finite(values)
    axes.set(**{f"{which}scale": "log"})
    between = (1, 2, 5) if known.max() < 100 * known.min() else (1,)
    axis.set_major_locator(LogLocator(10, subs=between))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())


def number(value: Any) -> str:
    """An option's value or a tick as people write it: 1,000, 0.05, 'not set'."""
    if value is None:
        return "not set"
    if not is_number(value):
        return str(value)
    return f"{value:,.10g}" if value == 0 or 1e-4 <= abs(value) < 1e6 else f"{value:g}"


def is_number(value: Any) -> bool:
    """Whether a value can have a place on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def show_values(axes: "Axes", values: Sequence[float], *, logarithmic: bool = False) -> None:
    """The x axis of an option, with a tick at every value that has room for one.

    Args:
        axes: the panel.
        values: all values of the option.
        logarithmic: also where they differ by less than what makes an axis logarithmic.
    """
    from matplotlib.ticker import NullLocator

    x, texts = np.array(values, dtype=float), [number(value) for value in values]
    positive = x[x > 0]
    if len(positive) > 1 and x.min() >= 0 and (logarithmic or is_wide(positive)):
        # 0 has a index too: left of the smallest other value
        axes.set_xscale("symlog", linthresh=positive.min(), linscale=0.5) if x.min() == 0 else axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    kept = with_room(axes, x, texts)
    axes.set_xticks(x[kept], [texts[index] for index in kept])


def with_room(axes: "Axes", x: Floats, texts: Sequence[str]) -> list[int]:
    """Which ticks can be written side by side, taken from the left."""
    scaled = axes.transScale.transform(np.column_stack([x, np.ones_like(x)]))[:, 0]
    per_unit = panel_width(axes) / max(np.ptp(scaled), 1e-300)
    kept: list[int] = []
    for index in np.argsort(scaled, kind="stable").tolist():
        left = kept[-1] if kept else None
        needed = 0.07 + (inches(texts[index]) + inches(texts[left])) / 2 if left is not None else 0
        if left is None or (scaled[index] - scaled[left]) * per_unit >= needed:
            kept.append(index)
    return kept
