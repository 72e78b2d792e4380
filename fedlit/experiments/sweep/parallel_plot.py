"""The parallel-coordinates picture of a sweep: an axis for each parameter, a line for each trial, its colour the value.

Dark is good. The best trial, or all that share its rank, are drawn last and in a colour of their own.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from fedlit.experiments.sweep.axes import Axis, axis_of, spaced
from fedlit.experiments.sweep.sweep import Sweep
from fedlit.experiments.trials import Trial
from fedlit.files import writing
from fedlit.metrics.catalogue import format_value, metric
from fedlit.metrics.formatting import counted
from fedlit.report.figures.search_figures import BEST
from fedlit.report.figures.style import good_is_dark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.path import Path as Curve

_BEND = 0.4  # how far a line leaves an axis level, so that lines through one point can be told apart
_STRIP = 0.07  # width of the strip of colours at the last axis
_LONG = 14  # letters of a name that fit between two axes
_MANY = 30  # from so many trials on, lines are thin


def draw_parallel(sweep: Sweep) -> list[Path]:
    """Write parallel.png and parallel.pdf; nothing where no trial has finished or nothing varies."""
    trials = sweep.ranked()
    if not trials or not sweep.labels:
        return []
    figure = picture(sweep, trials)
    png, pdf = sweep.folder / "parallel.png", sweep.folder / "parallel.pdf"
    for path in (png, pdf):
        with writing(path) as draft:
            figure.savefig(draft, format=path.suffix[1:], dpi=150)
    return [png, pdf]


def picture(sweep: Sweep, trials: Sequence[Trial]) -> "Figure":
    """The figure of the finished trials, of which the best comes first."""
    from matplotlib.figure import Figure

    axes = [*parameter_axes(sweep, trials), value_axis(sweep, trials)]
    points = [[*(trial.parameters[name] for name in sweep.labels), trial.value] for trial in trials]
    places = [[axis.place(value) for axis, value in zip(axes, row, strict=True)] for row in points]
    width = 1.8 + 1.45 * len(axes)
    figure = Figure(figsize=(width, 4.8), layout="constrained")
    canvas = figure.subplots()
    colours = good_is_dark(sweep.file.goal)
    draw_lines(canvas, places, colours, best=sum(rank == 1 for rank in sweep.ranks()))
    draw_axes(canvas, axes, colours)
    letters = int(13 * width)  # in a line
    figure.suptitle(fill(headline(sweep, trials), letters), x=0.01, ha="left", fontsize=10)
    figure.supxlabel(fill(failures(sweep), letters), x=0.01, ha="left", fontsize=8, color="0.35")
    return figure


def parameter_axes(sweep: Sweep, trials: Sequence[Trial]) -> list[Axis]:
    """The axes of the parameters that vary, in their order."""
    axes = []
    for parameter in sweep.file.parameters:
        if not parameter.is_constant:
            values = [trial.parameters[parameter.name] for trial in trials]
            listed = [value for value in parameter.keys.get("values", []) if value in values]  # in the file's order
            axes.append(axis_of(broken(parameter.name), listed or values, is_log=parameter.is_log))
    return axes


def broken(name: str) -> str:
    """A long name in two lines."""
    group, dot, end = name.rpartition(".")
    return f"{group}{dot}\n{end}" if len(name) > _LONG else name


def value_axis(sweep: Sweep, trials: Sequence[Trial]) -> Axis:
    """The axis of the objective, on the right."""
    known = metric(sweep.file.metric)
    in_percent = known.unit == "share"
    unit = "%" if in_percent else known.unit
    title = f"{sweep.file.metric}\n{unit}".strip()
    values = [trial.value or 0.0 for trial in trials]
    axis = axis_of(title, values, factor=100.0 if in_percent else 1.0)
    ends = axis_of(title, [min(values), max(values)], factor=100.0 if in_percent else 1.0)
    return replace(axis, ticks=spaced(axis.ticks, first=ends.ticks))


def draw_lines(canvas: "Axes", places: Sequence[Sequence[float]], colours: "Colormap", best: int) -> None:
    """A line for each trial, those of the first rank, `best` in number, on top of all."""
    from matplotlib.patches import PathPatch
    from matplotlib.patheffects import Normal, Stroke

    width, alpha = (1.5, 0.85) if len(places) < _MANY else (0.9, 0.6)
    for row in reversed(places[best:]):
        canvas.add_patch(
            PathPatch(curve(row), fill=False, lw=width, alpha=alpha, ec=colours(row[-1]), capstyle="round")
        )
    for row in places[:best]:
        line = PathPatch(curve(row), fill=False, lw=3, ec=BEST, capstyle="round", zorder=3)
        line.set_path_effects([Stroke(linewidth=5, foreground="white"), Normal()])
        canvas.add_patch(line)
        canvas.plot(range(len(row)), row, "o", color=BEST, mec="white", ms=7, zorder=5)


def curve(row: Sequence[float]) -> "Curve":
    """A smooth line through the places on all axes, level where it crosses one."""
    from matplotlib.path import Path as Curve

    points, codes = [(0.0, row[0])], [Curve.MOVETO]
    for x, (left, right) in enumerate(zip(row[:-1], row[1:], strict=True)):
        points += [(x + _BEND, left), (x + 1 - _BEND, right), (x + 1, right)]
        codes += [Curve.CURVE4] * 3
    return Curve(points, codes)


def draw_axes(canvas: "Axes", axes: Sequence[Axis], colours: "Colormap") -> None:
    """The vertical lines with their labels; at the last one the strip of colours."""
    from matplotlib.patheffects import withStroke

    for x, axis in enumerate(axes):
        is_last = x == len(axes) - 1
        canvas.plot([x, x], [0, 1], color="0.2", lw=1, zorder=2)
        for position, text in axis.ticks:
            at = x + _STRIP + 0.05 if is_last else x - 0.05
            side = "left" if is_last else "right"
            label = canvas.text(at, position, text, fontsize=8, ha=side, va="center", zorder=4)
            label.set_path_effects([withStroke(linewidth=3, foreground="white")])  # lines pass behind it
    last = len(axes) - 1
    shades = [[k / 255] for k in range(256)]
    canvas.imshow(shades, extent=(last, last + _STRIP, 0, 1), aspect="auto", origin="lower", cmap=colours, zorder=1)
    canvas.set_xlim(-0.45, last + 0.45)
    canvas.set_ylim(-0.04, 1.04)
    canvas.set_xticks(range(len(axes)), [axis.title for axis in axes], fontsize=9)
    canvas.set_yticks([])
    canvas.tick_params(length=0)
    for spine in canvas.spines.values():
        spine.set_visible(False)


def headline(sweep: Sweep, trials: Sequence[Trial]) -> str:
    """How many, and the best of them."""
    best = trials[0]
    value = "" if best.value is None else format_value(sweep.file.metric, best.value)
    count = counted(len(trials), "trial")
    tied = sweep.ranks().count(1) - 1
    shared = f" (and {tied} more with that value)" if tied else ""
    return f"{sweep.file.path.name}: {count}; best {best.name}{shared}, {value} with {sweep.described(best.parameters)}"


def failures(sweep: Sweep) -> str:
    """The trials that are not drawn."""
    failed = sweep.trial_log.with_status("failed")
    is_short = len(sweep.labels) <= 3
    named = [f"{trial.name} ({sweep.described(trial.parameters)})" if is_short else trial.name for trial in failed[:4]]
    more = f" and {len(failed) - 4} more" if len(failed) > 4 else ""
    return f"not drawn, failed: {', '.join(named)}{more}" if failed else ""
