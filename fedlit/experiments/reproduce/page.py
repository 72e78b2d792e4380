"""A table of a paper made again: our numbers beside the paper's, what agrees, and the commands that make each cell."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from fedlit.errors import RunError
from fedlit.experiments.jobs import Job
from fedlit.experiments.reproduce.runs import Reproduction, value_of
from fedlit.experiments.reproduce.table import Cell, Reading
from fedlit.experiments.sweep.sweep import readable, short_names
from fedlit.metrics.formatting import counted, duration
from fedlit.report.formats import ABSENT, Style, style_of
from fedlit.report.markdown import escape, row
from fedlit.report.tables import deviation, mean
from fedlit.results.runs import read_run


@dataclass(frozen=True)
class Result:
    """One cell, made."""

    cell: Cell
    reading: Reading
    values: Sequence[float]
    """One for each finished run."""
    point: dict[str, Any] | None
    """The values that the search found; None while it runs."""
    paper: tuple[float, float | None] | None
    """Mean and standard deviation, in our unit."""
    command: str
    """Of its first run; empty while its values are not known."""
    first: float | None = None
    """What is read off that run; None while it is not finished."""

    @property
    def mean(self) -> float | None:
        """Over the runs."""
        return mean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Over the runs, divided by n − 1; None with fewer than two."""
        return deviation(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper[0]

    @property
    def is_within(self) -> bool | None:
        """|d| ≤ 2 √(s₁² + s₂²); a spread that is not known counts as 0, and without any there is no answer."""
        if self.difference is None or self.paper is None:
            return None
        spreads = [spread for spread in (self.std, self.paper[1]) if spread is not None]
        return abs(self.difference) <= 2 * math.hypot(*spreads) if spreads else None


@dataclass(frozen=True)
class Counts:
    """What agrees."""

    compared: int
    answered: int
    """Cells where at least one spread is known."""
    within: int
    orders: dict[str, tuple[float, int]]
    """Column -> (Kendall's τ between our order and the paper's, rows in it)."""


def collect(made: Reproduction) -> list[Result]:
    """Every cell that was asked for, as far as its runs are finished."""
    results = []
    for cell in made.cells:
        reading, jobs = made.table.reading_of(cell), made.seed_jobs(cell)
        each = [read_job(made, job, reading) for job in jobs]
        values = [value for value in each if value is not None]
        command, first = (jobs[0].command, each[0]) if jobs else ("", None)
        results.append(Result(cell, reading, values, made.found(cell), made.table.paper_number(cell), command, first))
    return results


def read_job(made: Reproduction, job: Job, reading: Reading) -> float | None:
    """What is read off a run; None where it is not finished, or somebody took its folder away."""
    if not made.is_finished(job):
        return None
    try:
        return value_of(read_run(job.folder), reading)
    except RunError:
        return None


def count(results: Sequence[Result]) -> Counts:
    """Over the rows that count."""
    own = [one for one in results if one.cell.row.counts and one.difference is not None]
    answers = [one.is_within for one in own if one.is_within is not None]
    orders = {}
    for column in dict.fromkeys(one.cell.column.name for one in own):
        pairs = [(one.mean, one.paper[0]) for one in own if one.cell.column.name == column and one.paper]
        if len(pairs) > 1:
            orders[column] = (kendall([(a, b) for a, b in pairs if a is not None]), len(pairs))
    return Counts(len(own), len(answers), sum(answers), orders)


def kendall(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's τ: pairs in the same order less pairs in the other, over all; ties are neither."""
    signs = [sign((a - b) * (c - d)) for (a, c), (b, d) in combinations(pairs, 2)]
    return sum(signs) / len(signs)


def sign(value: float) -> int:
    """−1, 0 or 1."""
    return (value > 0) - (value < 0)


def entries(result: Result, style: Style) -> list[str]:
    """Row, column, values found, paper, ours, n, difference, within."""
    paper = ABSENT
    if result.paper is not None:
        paper = style.number(result.paper[0]) + spread_text(style, result.paper[1])
    ours = ABSENT if result.mean is None else style.number(result.mean) + spread_text(style, result.std)
    found = ABSENT if result.point is None else described(result.point)
    difference = ABSENT if result.difference is None else style.signed(result.difference)
    within = {True: "yes", False: "no", None: ABSENT}[result.is_within]
    place = [result.cell.row.name, result.cell.column.name]
    return [*place, found, paper, ours, str(len(result.values)), difference, within]


HEADINGS = ("row", "column", "found", "paper", "ours", "n", "difference", "within")


def spread_text(style: Style, spread: float | None) -> str:
    """` ± 0.35`, or nothing."""
    return "" if spread is None else f" ± {style.number(spread)}"


def described(point: dict[str, Any]) -> str:
    """`lr=0.1 mu=0.01`."""
    labels = short_names(list(point))
    return " ".join(f"{labels[name]}={readable(value)}" for name, value in point.items()) or "as in the config"


def style_for(result: Result) -> Style:
    """How its numbers are written."""
    if result.reading.domain is not None:
        return Style(100.0, 2)
    if result.reading.weight_of is not None:
        return Style(1.0, 4)
    return style_of(result.reading.metric, [result.mean, result.paper[0] if result.paper else None])


def summary_lines(made: Reproduction, results: Sequence[Result]) -> list[str]:
    """What agrees, what it took, and what is missing."""
    counts = count(results)
    lines = []
    if counts.answered:
        lines.append(
            f"{counts.within} of {counts.answered} cells lie within both spreads, |difference| ≤ 2 √(s₁² + s₂²); a "
            "spread that is not known counts as 0."
        )
    uncounted = dict.fromkeys(one.cell.row.name for one in results if not one.cell.row.counts)
    if uncounted:
        lines.append(f"Not counted, since they are a second form of a number: {', '.join(uncounted)}.")
    if counts.orders:
        orders = ", ".join(f"{name} {tau:+.2f} ({rows} rows)" for name, (tau, rows) in counts.orders.items())
        lines.append(f"Order of the rows against the paper's, Kendall's τ: {orders}.")
    lines += scale_lines(made)
    short = [one.cell.name for one in results if len(one.values) < made.seeds]
    if short:
        lines.append(f"Fewer numbers than runs were asked for: {', '.join(short)}.")
    failed = [trial for trial in made.trial_log.with_status("failed") if not trial.parameters["searched"]]
    lines += [f"{trial.name} failed: {trial.reason}" for trial in failed]
    lines.append(f"Machine time of the runs so far: {duration(seconds_spent(made))}.")
    return lines


def seconds_spent(made: Reproduction) -> float:
    """Of all runs, those of the search too."""
    return sum(trial.seconds for trial in made.trial_log.trials.values())


def scale_lines(made: Reproduction) -> list[str]:
    """Where this is less than the file asks for."""
    table = made.table
    smaller = [f"{made.rounds} rounds instead of {table.rounds}"] if made.rounds != table.rounds else []
    smaller += [f"{counted(made.seeds, 'run')} a cell instead of {table.seeds}"] if made.seeds != table.seeds else []
    left = len(table.cells) - len(made.cells)
    smaller += [f"{left} of {len(table.cells)} cells left out"] if left else []
    return [f"Scaled: {', '.join(smaller)}."] if smaller else []


def page(made: Reproduction, results: Sequence[Result]) -> str:
    """The table as a page of Markdown."""
    return "\n".join(page_lines(made, results)) + "\n"


def page_lines(made: Reproduction, results: Sequence[Result]) -> Iterator[str]:
    """What, how, the table, what agrees, notes, commands."""
    table = made.table
    yield from (f"# {escape(table.title)}", "")
    yield from ("This command makes this page:", "", "```", table_command(made), "```", "")
    yield from (f"{escape(how(made))} {escape(readings(results))}", "")
    yield from (row(list(HEADINGS)), row(["---"] * 3 + ["---:"] * 4 + ["---"]))
    for one in results:
        yield row([escape(field) for field in entries(one, style_for(one))])
    yield ""
    for line in summary_lines(made, results):
        yield f"- {escape(line)}"
    yield ""
    if table.notes:
        yield from ("## What to know", "")
        yield from (f"- {' '.join(note.split())}" for note in table.notes)
        yield ""
    yield from ("## Single cells", "", *SINGLE_CELLS, "", "```")
    for command in dict.fromkeys(one.command for one in results if one.command):
        cells = "; ".join(first_number(one) for one in results if one.command == command)
        yield f"{command}  # {cells}"
    yield "```"


SINGLE_CELLS = (
    "The first run of each cell, with the number that is read off it. `fedlit fit` ends with a table of the last",
    "round; `fedlit report RUN --last K` has the means of the last K evaluated rounds, and `metrics.csv` in the folder",
    "of the run has every round, for the best one. The line above the table says which of them a cell is. Another",
    "`--seed_everything` gives the other runs of a cell. Data sets are looked for in `FEDLIT_DATA`, else `./data`.",
    "Another processor, engine or version of fedlit rounds sums in another way, so a single run may end with another",
    "number there, the more so the larger its rate.",
)


def first_number(result: Result) -> str:
    """`FedAvg:E=1 83.58`."""
    return result.cell.name if result.first is None else f"{result.cell.name} {style_for(result).number(result.first)}"


def readings(results: Sequence[Result]) -> str:
    """How cells are read; where not all alike, which rows, or else which columns, in which way."""
    by_row = {(one.cell.row.name, one.reading.words) for one in results}
    rows_tell = len(by_row) == len({name for name, _ in by_row})
    named: dict[str, dict[str, None]] = {}
    for one in results:
        name = one.cell.row.name if rows_tell else one.cell.column.name
        named.setdefault(one.reading.words, {})[name] = None
    if len(named) == 1:
        return f"A cell: {next(iter(named))}."
    ways = [f"{words} ({', '.join(names)})" for words, names in named.items()]
    return f"Cells: {'; '.join(ways)}."


def table_command(made: Reproduction) -> str:
    """The command that makes this table."""
    table = made.table
    words = ["fedlit", "reproduce", table.name]
    if len(made.cells) < len(table.cells):
        words += ["--cells", ",".join(chosen(made))]
    words += ["--seeds", str(made.seeds)] if made.seeds != table.seeds else []
    words += ["--rounds", str(made.rounds)] if made.rounds != table.rounds else []
    return shlex.join(words)


def chosen(made: Reproduction) -> dict[str, None]:
    """The cells as `--cells` takes them, in order; a whole row by its name."""
    made_cells = {cell.name for cell in made.cells}
    in_part = {cell.row.name for cell in made.table.cells if cell.name not in made_cells}
    return dict.fromkeys(cell.name if cell.row.name in in_part else cell.row.name for cell in made.cells)


def how(made: Reproduction) -> str:
    """Runs, rounds and the search, in sentences."""
    table, tuning = made.table, made.table.tuning
    rounds = " or ".join(dict.fromkeys(str(made.rounds_of(cell)) for cell in made.sources))
    said = f"{counted(made.seeds, 'run')} of {rounds} rounds for each cell, mean ± standard deviation (n − 1)."
    stages = next((made.stages(cell) for cell in made.searches if made.stages(cell)), [])
    if tuning is None or not stages:
        return said
    manner = "best round" if tuning.best else f"mean of the last {tuning.last}"
    said += f" Values are searched on {tuning.metric} ({manner}) with seed {tuning.seed}"
    places = dict.fromkeys(cell.column.name for cell in made.searches if not cell.row.own_values)
    said += f", in the column {' and '.join(places)}" if 0 < len(places) < len(table.columns) else ""
    everywhere = dict.fromkeys(cell.row.name for cell in made.searches if cell.row.own_values)
    said += f"; {' and '.join(everywhere)} in every column" if everywhere else ""
    if stages[0].name == "look":
        said += f": every point runs for {stages[0].rounds} rounds"
        said += f", the best {tuning.keep} for {stages[1].rounds}" if len(stages) > 1 else ", and the best is taken"
    grids = "; ".join(
        f"{one.name}: {', '.join(f'{name} {list(values)}' for name, values in one.grid.items())}"
        for one in table.rows.values()
        if one.grid and any(cell.row is one for cell in made.sources)
    )
    return f"{said}. Grids: {grids}."
