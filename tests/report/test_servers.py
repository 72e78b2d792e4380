"""Figures of several servers: bands and bars are what servers.parquet holds."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.patches
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from fedlit import FedAvg, FedBC
from fedlit.metrics.catalogue import CLOCK
from fedlit.report.figures import draw, draw_figures
from fedlit.report.figures.servers import (
    EVENTS,
    MOST_SERVERS,
    Range,
    Span,
    Timeline,
    first_in_a_row,
    range_of,
    ranges_figure,
    timeline_of,
    timelines_figure,
)
from fedlit.report.figures.style import look
from fedlit.results.runs import Run, find_runs, group_runs, read_run
from tests.cloud_runs import run_in_a_cloud
from tests.problems import run, tiny_net
from tests.report.folders import one_group, write_run


@pytest.fixture(autouse=True)
def styled() -> Iterator[None]:
    """As `draw_figures` draws."""
    with look():
        yield


def with_servers(folder: Path, columns: Mapping[str, Sequence[Any]], **options: Any) -> Run:
    """A run with these columns of servers.parquet, the others empty."""
    path = write_run(folder, {"global/acc": [0.5]}, **options)
    count = len(columns["round"])
    usual = {"time_s": [0.0] * count, "rounds": [0] * count, "waited_s": [0.0] * count, "distance": [0.0] * count}
    usual |= {name: [np.nan] * count for name in ("start_s", "finish_s", "acc")}
    usual |= {"clients": [1] * count, "stepped": [True] * count}
    parquet.write_table(pyarrow.table(usual | dict(columns)), path / "servers.parquet")
    return read_run(path)


def test_a_band_is_from_the_worst_server_to_the_best_and_its_ends_are_averaged_over_seeds(tmp_path: Path) -> None:
    places = {"round": [1, 1, 1, 2, 2, 2], "server": [0, 1, 2, 0, 1, 2]}
    runs = [
        with_servers(tmp_path / "0", places | {"acc": [0.1, 0.2, 0.6, 0.5, 0.5, 0.5]}, seed=0),
        with_servers(tmp_path / "1", places | {"acc": [0.3, 0.4, 0.8, 0.7, np.nan, 0.9]}, seed=1),
    ]
    found = range_of(one_group(runs))
    assert found is not None
    assert found.rounds.tolist() == [1, 2]
    assert found.low == pytest.approx([0.2, 0.6])
    assert found.high == pytest.approx([0.7, 0.7])
    assert found.mean == pytest.approx([0.4, 0.65])


def test_bands_and_means_are_drawn_in_a_panel_for_each_group() -> None:
    found = Range(np.array([1.0, 2.0]), np.array([0.4, 0.5]), np.array([0.3, 0.4]), np.array([0.5, 0.8]))
    picture = ranges_figure({"sync": found, "async": found})
    assert [panel.get_title() for panel in picture.axes] == ["sync", "async"]
    assert np.asarray(picture.axes[1].lines[0].get_ydata()).tolist() == [0.4, 0.5]
    corners = np.asarray(picture.axes[1].collections[0].get_paths()[0].vertices)
    assert (corners[:, 1].min(), corners[:, 1].max()) == (0.3, 0.8)


# two servers; server 1 is slower. Events at 3 (server 0 alone), at 5 (both) and at 8 (both).
ROUNDS = {0: [(0, 2), (3, 5), (5, 6)], 1: [(0, 4), (5, 8)]}
EVENTS_OF_TWO = {1: (3.0, [True, False]), 2: (5.0, [True, True]), 3: (8.0, [True, True])}
SPANS = [
    *(Span(0, 0, 2, False), Span(0, 2, 3, True), Span(0, 3, 5, False), Span(0, 5, 6, False), Span(0, 6, 8, True)),
    *(Span(1, 0, 4, False), Span(1, 4, 5, True), Span(1, 5, 8, False)),
]


def two_servers(folder: Path, *, begun: bool, first: int = 0) -> Run:
    """The events above; where a round has `begun`, a server that stepped is recorded with its next round."""
    done = [0, 0]
    rows: list[dict[str, Any]] = []
    for number in range(4):
        time, stepped = EVENTS_OF_TWO.get(number, (0.0, [False, False]))
        for server in (0, 1):
            at = done[server] + (stepped[server] if begun else 0)
            start, finish = ROUNDS[server][at] if at < len(ROUNDS[server]) else (time, time + 9)
            row = {"round": number, "server": server, "time_s": time, "stepped": stepped[server]}
            rows.append(row | {"start_s": float(start), "finish_s": float(finish)})
            done[server] += stepped[server]
    kept = [row for row in rows if row["round"] >= first]
    return with_servers(folder, {name: [row[name] for row in kept] for name in kept[0]})


@pytest.mark.parametrize("begun", [False, True], ids=["the round that ended", "the round that began"])
def test_a_timeline_has_every_round_and_the_waiting_after_it(tmp_path: Path, begun: bool) -> None:
    found = timeline_of(two_servers(tmp_path, begun=begun))
    assert found is not None
    assert list(found.spans) == SPANS
    assert sorted(found.steps) == [(0, 3.0), (0, 5.0), (0, 8.0), (1, 5.0), (1, 8.0)]


def test_a_timeline_that_does_not_begin_at_the_start_begins_at_an_event(tmp_path: Path) -> None:
    found = timeline_of(two_servers(tmp_path, begun=True, first=2))
    assert found is not None
    assert list(found.spans) == [span for span in SPANS if span.start >= 5]


@pytest.mark.parametrize(
    ("rounds", "shown"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 5, 10, 15], []),
        ([0, 5, 6, 7, 10, 11], [5, 6, 7]),
        (range(50), range(EVENTS + 1)),
        (range(1, 50), range(1, EVENTS + 1)),
        ([3], []),
    ],
)
def test_events_are_shown_that_were_recorded_one_after_the_other(rounds: Sequence[int], shown: Sequence[int]) -> None:
    assert first_in_a_row(np.array(rounds, dtype=float)).tolist() == list(shown)


def test_bars_of_a_timeline_are_its_spans_and_dots_its_steps() -> None:
    picture = timelines_figure({"async": Timeline(SPANS, [(0, 3.0), (1, 5.0)])})
    (panel,) = picture.axes
    bars = [patch for patch in panel.patches if isinstance(patch, matplotlib.patches.Rectangle)]
    assert [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars] == [(one.start, one.end) for one in SPANS]
    assert len({bar.get_facecolor() for bar in bars}) == 2
    dots = panel.lines[-1]
    assert list(zip(dots.get_xdata(), dots.get_ydata(), strict=True)) == [(3.0, 0), (5.0, 1)]
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["training", "waiting", "steps"]


def test_a_hundred_servers_stay_a_page_and_the_caption_says_so(tmp_path: Path) -> None:
    client = FedAvg(tiny_net(), batch_size=4)
    path = run_in_a_cloud(client, tmp_path / "run", servers=100, first=40, clients=100, rounds=3)
    figures = {one.name: one for one in draw_figures(group_runs([read_run(path)]), tmp_path, kinds=["timeline"])}
    assert f"The first {MOST_SERVERS} servers of each are shown." in figures["timeline"].caption
    shown = timeline_of(read_run(path))
    assert shown is not None
    picture = timelines_figure({"one": shown})
    assert picture.get_figheight() < 6
    assert max(bar.get_y() for bar in picture.axes[0].patches) < MOST_SERVERS  # type: ignore[attr-defined]  # rectangles


def test_runs_that_were_evaluated_rarely_are_named_or_have_no_timeline(tmp_path: Path) -> None:
    often = two_servers(tmp_path / "often", begun=True)
    columns = {"round": [0, 5], "server": [0, 0], "start_s": [0.0, 4.0], "finish_s": [1.0, 5.0]}
    rare = with_servers(tmp_path / "rare", columns, algorithm="FedBC")
    figures = {one.name: one for one in draw_figures(group_runs([often, rare]), tmp_path / "figures")}
    assert figures["timeline"].caption.endswith("Without two evaluated rounds in a row, and so not shown: FedBC.")
    assert [one.name for one in draw_figures(group_runs([rare]), tmp_path / "alone")] == ["accuracy"]


@pytest.mark.usefixtures("figures_are_not_drawn")
def test_real_runs_with_servers_have_all_figures_of_clouds(
    tmp_path: Path, clouds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(FedBC(tiny_net(), batch_size=4), rounds=4, run=str(tmp_path / "flat"))
    of_clouds = {name: plan for name, plan in draw.PLANS.items() if is_of_clouds(plan)}
    monkeypatch.setattr(draw, "PLANS", of_clouds)  # the others take their time
    figures = draw_figures(group_runs(find_runs([clouds, tmp_path / "flat"])), tmp_path / "figures")
    by_name = {figure.name: figure.caption for figure in figures}
    assert list(by_name) == list(of_clouds)
    assert by_name["server_accuracy"].endswith("Without servers.acc, and so not shown: FedBC.")
    assert "Each end of the band is a mean over 2 seeds." in by_name["server_accuracy"]


def is_of_clouds(plan: draw.Plan) -> bool:
    """Whether it needs a clock or several servers."""
    return any(need == CLOCK or need.startswith(("cloud/", "servers.")) for need in plan.needs)
