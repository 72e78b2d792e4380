"""What a figure is, and the plain arrays that figures are drawn from: runs in, arrays out."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedlit.errors import RunError
from fedlit.metrics.catalogue import CLOCK, is_record_column, metric
from fedlit.results.runs import Group, Run

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]  # pyarrow ships no types
    from matplotlib.figure import Figure as Picture

Floats = NDArray[np.float64]

MOST_PANELS = 12
"""Small multiples up to what fits a page."""
CLIENT_COLUMN, SERVER_COLUMN = "clients.", "servers."
"""A figure needs a metric, `global/acc`, or a column of clients.parquet or servers.parquet: `clients.weight`."""


@dataclass(frozen=True)
class Figure:
    """A figure that was drawn: <name>.png and <name>.pdf. Title and caption are plain text that holds users' labels."""

    name: str
    title: str
    caption: str


@dataclass(frozen=True)
class Drawn:
    """A figure together with its picture, not yet on disk."""

    figure: Figure
    picture: "Picture"


@dataclass(frozen=True, eq=False)
class Curve:
    """One line: its mean over seeds at each x, and the standard deviation where there are several seeds."""

    label: str
    x: Floats
    mean: Floats
    std: Floats | None = None
    window: int = 1
    """Above 1, the line is a running mean over so many points, and the points themselves are drawn faintly."""
    is_timed: bool = False
    """Whether x is simulated time instead of rounds; each value then holds until the next one."""


def curve_of(group: Group, name: str, label: str | None = None) -> Curve | None:
    """A metric by round, in the rounds that all runs of the group have measured; None if there are none."""
    measured = [finite_series(run, name) for run in group.runs]
    common = sorted(set.intersection(*(set(values) for values in measured)))
    if not common:
        return None
    values = np.array([[values[round] for round in common] for values in measured])
    return averaged(label or group.label, np.array(common, dtype=float), values)


def curve_by_time(group: Group, name: str) -> Curve | None:
    """A metric by simulated time, while all runs of the group are on their way; None if none of that was measured.

    Seeds have other times, so each is read as a staircase: what was measured holds until the next measurement. The mean
    of staircases steps at the times of any of them, and these are the grid.
    """
    measured = [timed_series(run, name) for run in group.runs]
    if not all(times.size for times, _ in measured):
        return None
    first, last = max(times[0] for times, _ in measured), min(times[-1] for times, _ in measured)
    every = np.unique(np.concatenate([times for times, _ in measured]))
    grid = every[(every >= first) & (every <= last)]
    values = np.array([curve[np.searchsorted(times, grid, side="right") - 1] for times, curve in measured])
    return replace(averaged(group.label, grid, values), is_timed=True) if grid.size else None


def timed_series(run: Run, name: str) -> tuple[Floats, Floats]:
    """Simulated times and values, in the rounds that have both."""
    times, values = finite_series(run, CLOCK), finite_series(run, name)
    both = [round for round in values if round in times]
    return np.array([times[round] for round in both]), np.array([values[round] for round in both])


def averaged(label: str, x: Floats, values: Floats) -> Curve:
    """The curve of values (seeds, x); the spread is that of a sample, n - 1."""
    return Curve(label, x, values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None)


def finite_series(run: Run, name: str) -> dict[int, float]:
    """Round -> value, without what is infinite or not a number."""
    rounds, values = run.series(name)
    return {round: value for round, value in zip(rounds, values, strict=True) if np.isfinite(value)}


def final_values(group: Group, name: str) -> Floats:
    """The metric at the end of each run of the group that has it, (seeds,); NaN, as in tables, where it is infinite."""
    ends = np.array([end for run in group.runs if (end := run.final(name)) is not None], dtype=float)
    return np.where(np.isfinite(ends), ends, np.nan)


def column(run: Run, name: str, of: Literal["clients", "servers"] = "clients") -> Floats:
    """A column of the records as numbers, NaN where there is nothing; empty if the run has no such records."""
    values = stored_column(run, name, of)
    return np.array([], dtype=float) if values is None else np.asarray(values.to_numpy(), dtype=float)


def texts(run: Run, name: str) -> NDArray[np.str_]:
    """A column of clients.parquet as texts; empty if the run has no such records."""
    values = stored_column(run, name)
    return np.array([] if values is None else [str(text or "") for text in values.to_pylist()], dtype=np.str_)


def stored_column(run: Run, name: str, of: Literal["clients", "servers"] = "clients") -> Any:
    """The column itself, or None where the run has none."""
    try:
        table = run.clients if of == "clients" else run.servers
    except RunError:  # the run has no such records: figures of users, or of servers, do without it
        return None
    return table[name] if name in table.column_names else None


def states_of(groups: Sequence[Group]) -> list[str]:
    """The numbers that clients keep in any of these runs: the columns of clients.parquet that not every run has."""
    columns: dict[str, None] = {}
    for run in (run for group in groups for run in group.runs):
        with suppress(RunError):  # the run has evaluated no clients
            columns |= dict.fromkeys(number_columns(run.clients))
    return [name for name in columns if not is_record_column(name) and name.isidentifier()]


def number_columns(table: "pyarrow.Table") -> list[str]:
    """The columns that hold numbers."""
    import pyarrow

    return [field.name for field in table.schema if pyarrow.types.is_floating(field.type)]


def has(run: Run, need: str) -> bool:
    """Whether the run has at least one finite value of a metric or a column of its clients or servers."""
    if need.startswith(CLIENT_COLUMN):
        return bool(np.isfinite(column(run, need.removeprefix(CLIENT_COLUMN))).any())
    if need.startswith(SERVER_COLUMN):
        return bool(np.isfinite(column(run, need.removeprefix(SERVER_COLUMN), "servers")).any())
    return bool(finite_series(run, need))


def have_all(groups: Sequence[Group], needs: Sequence[str]) -> Iterator[Group]:
    """The groups all of whose runs have everything that is needed."""
    for group in groups:
        if all(has(run, need) for need in needs for run in group.runs):
            yield group


def seeds_of(groups: Sequence[Group]) -> str:
    """'3 seeds', '1 to 3 seeds': how many runs are behind a line."""
    counts = sorted({len(group.runs) for group in groups})
    many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{many} seed{'s' * (counts[-1] > 1)}"


def spread_note(groups: Sequence[Group], drawn_as: str = "band", is_drawn: bool = True) -> str:
    """The sentence of a caption that says what a line and its band are."""
    if all(len(group.runs) == 1 for group in groups):
        return "One seed each, so no spread is shown."
    band = f"; {drawn_as}: ± one standard deviation" if is_drawn else ""
    return f"Mean over {seeds_of(groups)}{band}."


def panels_note(groups: Sequence[Group]) -> str:
    """The sentence of a caption about groups that have no panel, where there are any."""
    return f" The first {MOST_PANELS} of {len(groups)} groups are shown." if len(groups) > MOST_PANELS else ""


def definitions(names: Iterable[str]) -> str:
    """What the metrics are, as one sentence."""
    text = "; ".join(f"{metric(name).label}: {metric(name).definition}" for name in names)
    return f"{text[0].upper()}{text[1:]}."
