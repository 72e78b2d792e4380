"""Figures of several servers: how good each one's model is, and who waits for whom."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.report.figures.axes import TIME, show_seconds, show_shares, show_whole
from fedlit.report.figures.base import MOST_PANELS, Drawn, Figure, Floats, column, panels_note, seeds_of
from fedlit.report.figures.rounds import named, opening
from fedlit.report.figures.style import WIDE, Style, legend_below, name_panels, new_panels, title_panels
from fedlit.results.runs import SERVER_COLUMNS, Group, Run

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

EVENTS = 10
"""That a timeline shows at most."""
MOST_TIMELINES = 4
MOST_SERVERS = 20
_SERVERS = "#0072b2"
_TRAINING, _WAITING, _STEP = "#009e73", "#d0d0d0", "#222222"

Rows = dict[str, Floats]
"""Columns of servers.parquet."""


@dataclass(frozen=True, eq=False)
class Range:
    """Mean, lowest and highest over servers by round."""

    rounds: Floats
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Span:
    """What one server does from one time to another."""

    server: int
    start: float
    end: float
    waits: bool


@dataclass(frozen=True)
class Timeline:
    """Servers over some events: what each one does, and (server, time) of every step."""

    spans: Sequence[Span]
    steps: Sequence[tuple[int, float]]

    @property
    def servers(self) -> int:
        """How many there are."""
        return 1 + max(span.server for span in self.spans)


def server_accuracy(
    groups: Sequence[Group], styles: Mapping[str, Style], measure: Measure = ACCURACY
) -> Iterator[Drawn]:
    """Accuracy of each server's model on the pooled test, from the worst server to the best."""
    ranges = {group.label: scores for group in groups if (scores := range_of(group, measure))}
    if not ranges:
        return
    several = f" Each end of the band is a mean over {seeds_of(groups)}." * any(len(group.runs) > 1 for group in groups)
    caption = (
        "Each server's model z_n on the pooled test; line: mean over servers, band: from the worst server to the best."
        f"{several}{panels_note(groups)}"
    )
    shown = dict(list(ranges.items())[:MOST_PANELS])
    title = f"{opening(measure)} of the servers' models"
    yield Drawn(Figure(named("server_accuracy", measure), title, caption), ranges_figure(shown, measure))


def timeline(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """FedBCD's Fig. 2 of real events: who trains, who waits for whom."""
    timelines = {group.label: timeline_of(group.runs[0]) for group in groups}
    known = {label: one for label, one in timelines.items() if one is not None}
    if not known:
        return
    rare = [label for label in timelines if label not in known]
    caption = (
        f"The first events, {EVENTS} at most, of the first seed of each group. A server that has finished its round "
        "waits until an event in which it steps; thin lines: events, dots: the servers that step in them."
    )
    caption += f" The first {MOST_TIMELINES} of {len(known)} groups are shown." if len(known) > MOST_TIMELINES else ""
    if any(one.servers > MOST_SERVERS for one in known.values()):
        caption += f" The first {MOST_SERVERS} servers of each are shown."
    caption += f" Without two evaluated rounds in a row, and so not shown: {', '.join(rare)}." if rare else ""
    picture = timelines_figure(dict(list(known.items())[:MOST_TIMELINES]))
    yield Drawn(Figure("timeline", "Who waits for whom", caption), picture)


# from servers.parquet to arrays


def rows_of(run: Run) -> Rows:
    """The numbers of every server and evaluated round."""
    return {name: column(run, name, "servers") for name in SERVER_COLUMNS}


def range_of(group: Group, measure: Measure = ACCURACY) -> Range | None:
    """A measure over servers in the rounds that all runs have evaluated, averaged over seeds; None without any."""
    measured = [values_by_round(run, measure) for run in group.runs]
    common = sorted(set.intersection(*(set(scores) for scores in measured)))
    if not common:
        return None
    both = np.array([[summary(scores[round]) for round in common] for scores in measured])
    mean, low, high = both.mean(0).T
    return Range(np.array(common, dtype=float), mean, low, high)


def values_by_round(run: Run, measure: Measure) -> dict[int, Floats]:
    """Round -> the measure of the servers, (servers,), as far as it was measured."""
    all_rounds, all_values = (column(run, name, "servers") for name in ("round", measure.name))
    known = np.isfinite(all_values)
    rounds, values = all_rounds[known].astype(int), all_values[known]
    return {round: values[rounds == round] for round in np.unique(rounds).tolist()}


def summary(values: Floats) -> tuple[float, float, float]:
    """Mean, lowest and highest."""
    return float(values.mean()), float(values.min()), float(values.max())


def timeline_of(run: Run) -> Timeline | None:
    """The first events that were recorded one after the other; None where no two rounds in a row were evaluated."""
    rows = rows_of(run)
    rounds = first_in_a_row(np.unique(rows["round"]))
    if len(rounds) < 2:
        return None
    shown = {name: values[np.isin(rows["round"], rounds)] for name, values in rows.items()}
    # a run that was not evaluated from its beginning is shown from an event on: what was before it is not known of all
    begin = shown["start_s"].min() if rounds[0] <= 1 else shown["time_s"][shown["round"] == rounds[0]].max()
    end = shown["time_s"].max()
    spans = [span for server in np.unique(shown["server"]) for span in spans_of(shown, server, begin, end)]
    stepped = shown["stepped"].astype(bool) & (shown["time_s"] >= begin)
    steps = zip(shown["server"][stepped].astype(int).tolist(), shown["time_s"][stepped].tolist(), strict=True)
    return Timeline(spans, list(steps)) if spans else None


def first_in_a_row(rounds: Floats) -> Floats:
    """The first rounds that follow each other, up to EVENTS of them after round 0."""
    starts = np.flatnonzero(np.diff(rounds) == 1)
    if not starts.size:
        return rounds[:0]
    later = rounds[starts[0] :]
    row: Floats = later[later == later[0] + np.arange(len(later))]
    return row[: EVENTS + int(later[0] == 0)]


def spans_of(rows: Rows, server: float, begin: float, end: float) -> list[Span]:
    """A server's rounds, each with the waiting after it, as far as they lie between two times.

    Records of one round of a server are alike, however many events it lasts. It waits from its end to the next one's
    start.
    """
    selected = (rows["server"] == server) & np.isfinite(rows["start_s"]) & np.isfinite(rows["finish_s"])
    starts, where = np.unique(rows["start_s"][selected], return_index=True)
    finishes = rows["finish_s"][selected][where]
    spans = []
    for start, finish, after in zip(starts, finishes, [*starts[1:], end], strict=True):
        for first, last, waits in ((start, finish, False), (finish, after, True)):
            first, last = max(first, begin), min(last, end)
            spans += [Span(int(server), float(first), float(last), waits)] if first < last else []
    return spans


# pictures


def ranges_figure(panels: Mapping[str, Range], measure: Measure = ACCURACY) -> "Picture":
    """Small multiples with the same axes: a line with a band for each group."""
    picture, axes = new_panels(len(panels), share=True)
    entries: dict[str, Artist] = {}
    for panel, scores in zip(axes, panels.values(), strict=True):
        band = panel.fill_between(scores.rounds, scores.low, scores.high, color=_SERVERS, alpha=0.2, linewidth=0)
        (line,) = panel.plot(scores.rounds, scores.mean, color=_SERVERS)
        entries = {"mean over servers": line, "worst to best server": band}
    if measure.unit == "share":
        show_shares(axes[0])  # shared with the others
    show_whole(axes[0])
    title_panels(axes, panels)
    name_panels(axes, "round", f"{measure.label} on pooled test")
    legend_below(picture, entries)
    return picture


def timelines_figure(panels: Mapping[str, Timeline]) -> "Picture":
    """A panel below the other for each group, with its own axis of time; in it a row for each server."""
    from matplotlib.figure import Figure as Picture

    rows = [min(one.servers, MOST_SERVERS) for one in panels.values()]
    picture = Picture(figsize=(WIDE, 0.3 + sum(0.5 + 0.16 * count for count in rows)), layout="constrained")
    heights = {"height_ratios": [2 + count for count in rows]}
    axes = list(picture.subplots(len(panels), 1, squeeze=False, gridspec_kw=heights).flat)
    entries: dict[str, Artist] = {}
    for panel, one, count in zip(axes, panels.values(), rows, strict=True):
        entries = draw_timeline(panel, one, count)
        panel.set_ylim(count - 0.4, -0.6)
        panel.set_yticks(range(0, count, 1 if count <= 10 else 5))
        panel.grid(visible=False, axis="y")
        panel.margins(x=0.01)
        show_seconds(panel)
    title_panels(axes, panels)
    name_panels(axes, TIME, "server")
    legend_below(picture, entries)
    return picture


def draw_timeline(axes: "Axes", one: Timeline, count: int) -> dict[str, "Artist"]:
    """Bars of the first `count` servers, a thin line at every event, a dot on each server that steps."""
    from matplotlib.patches import Patch

    for span in (span for span in one.spans if span.server < count):
        colour = _WAITING if span.waits else _TRAINING
        height = 0.28 if span.waits else 0.7  # told apart without colours too
        lasts = span.end - span.start
        axes.barh(span.server, lasts, height, span.start, color=colour, edgecolor="white", linewidth=0.6)
    for time in sorted({time for _, time in one.steps}):
        axes.axvline(time, color=_STEP, linewidth=0.5, alpha=0.5)
    steps = [(server, time) for server, time in one.steps if server < count]
    servers, times = [server for server, _ in steps], [time for _, time in steps]
    (dots,) = axes.plot(times, servers, color=_STEP, marker="o", markersize=3.0, linestyle="")
    return {"training": Patch(color=_TRAINING), "waiting": Patch(color=_WAITING), "steps": dots}
