"""A table of a paper made again: our numbers beside the paper's, what agrees, and the commands that make each cell."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from fedlit.experiments.reproduce import grid
from fedlit.experiments.reproduce.reading import Printed
from fedlit.experiments.reproduce.result import Result, count, seconds_spent
from fedlit.experiments.reproduce.runs import Reproduction
from fedlit.experiments.sweep.sweep import readable
from fedlit.metrics.formatting import counted, duration
from fedlit.report.figures.searches import short_names
from fedlit.report.formats import ABSENT, Style, style_of
from fedlit.report.markdown import escape, row


def entries(result: Result, style: Style) -> list[str]:
    """One text for each of the headings."""
    paper = ABSENT
    if result.paper is not None:
        paper = style.number(result.paper[0]) + spread_text(style, result.paper[1])
    point = ABSENT if result.point is None else described(result.point)
    difference = ABSENT if result.difference is None else style.signed(result.difference)
    within = {True: "yes", False: "no", None: ABSENT}[result.is_within]
    names = [result.cell.row.name, result.cell.column.name]
    second = [] if result.second is None else [ours(result.second, style)]
    return [*names, point, paper, ours(result, style), str(len(result.values)), difference, within, *second]


HEADINGS = ("row", "column", "found", "paper", "ours", "n", "difference", "within")
NUMBERS = ("paper", "ours", "n", "difference")
"""Headings of numbers; those of two readings begin with `ours`."""


def headings(results: Sequence[Result]) -> list[str]:
    """Of the table; both readings have their names."""
    if not any(one.second for one in results):
        return list(HEADINGS)
    first, second = (
        " or ".join(dict.fromkeys(one.label for one in readings))
        for readings in ([one.reading for one in results], [one.second.reading for one in results if one.second])
    )
    return [f"ours, {first}" if name == "ours" else name for name in HEADINGS] + [f"ours, {second}"]


def is_number(heading: str) -> bool:
    """Whether a column holds numbers."""
    return heading.split(",")[0] in NUMBERS


def ours(result: Result, style: Style) -> str:
    """`93.62 ± 0.30`."""
    return ABSENT if result.mean is None else style.number(result.mean) + spread_text(style, result.std)


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
    lines += second_lines(results)
    if counts.orders:
        orders = ", ".join(f"{name} {tau:+.2f} ({rows} rows)" for name, (tau, rows) in counts.orders.items())
        lines.append(f"Order of the rows against the paper's, Kendall's τ: {orders}.")
    lines += [*scale_lines(made), *length_lines(made), *evaluation_lines(results)]
    short = [one.cell.name for one in results if len(one.values) < made.seeds]
    if short:
        lines.append(f"Fewer numbers than runs were asked for: {', '.join(short)}.")
    failed = [trial for trial in made.trial_log.with_status("failed") if not trial.parameters["searched"]]
    lines += [f"{trial.name} failed: {trial.reason}" for trial in failed]
    lines.append(f"Machine time of the runs so far: {duration(seconds_spent(made))}.")
    return lines


def second_lines(results: Sequence[Result]) -> list[str]:
    """What the other reading would come to."""
    others = [one.second for one in results if one.second is not None]
    counts = count(others)
    if not counts.answered:
        return []
    named = " or ".join(dict.fromkeys(one.reading.rounds for one in others))
    return [f"In the other reading, {named}, it is {counts.within} of {counts.answered}."]


def length_lines(made: Reproduction) -> list[str]:
    """Columns whose rows have runs of different lengths."""
    lengths = {cell.name: made.rounds_of(made.table.source(cell)) for cell in made.cells}
    columns = dict.fromkeys(cell.column.name for cell in made.cells)
    mixed = [name for name in columns if len({lengths[one.name] for one in made.cells if one.column.name == name}) > 1]
    rows: dict[int, dict[str, None]] = {}
    for cell in made.cells:
        if cell.column.name in mixed:
            rows.setdefault(lengths[cell.name], {})[cell.row.name] = None
    if not mixed:
        return []
    where = "every column" if len(mixed) == len(columns) else ", ".join(mixed)
    said = "; ".join(f"{rounds} rounds: {', '.join(names)}" for rounds, names in rows.items())
    return [f"Runs of different lengths stand side by side in {where} ({said})."]


def evaluation_lines(results: Sequence[Result]) -> list[str]:
    """Cells whose best round is not the best of all rounds."""
    sparse: dict[tuple[int, int], list[str]] = {}
    for one in results:
        has_best = one.reading.best or (one.second is not None and one.second.reading.best)
        if has_best and one.evaluated is not None and one.evaluated[0] < one.evaluated[1]:
            sparse.setdefault(one.evaluated, []).append(one.cell.name)
    return [
        f"The best round is the best of {counted(evaluated, 'evaluated round')} of {rounds} in {', '.join(names)}."
        for (evaluated, rounds), names in sparse.items()
    ]


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
    if table.printed is not None:
        yield from (escape(two_readings(table.printed)), "")
    if grid.fits(table, results):
        yield from grid.grid_lines(results, lambda one: ours(one, style_for(one)), ABSENT)
        yield from ("", *found_lines(results))
        if grid.has_picture(table, results):
            yield from ("", f"![The numbers of the table, a panel for each column]({table.name}.png)")
    else:
        titles = headings(results)
        yield from (row([escape(one) for one in titles]), row(["---:" if is_number(one) else "---" for one in titles]))
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
    yield from miss_lines(made, results)
    yield from ("## Single cells", "", *SINGLE_CELLS, "", "```")
    for command in dict.fromkeys(one.command for one in results if one.command):
        cells = "; ".join(first_number(one) for one in results if one.command == command)
        yield f"{command}  # {cells}"
    yield "```"


def found_lines(results: Sequence[Result]) -> list[str]:
    """The values that searches found, and what is bold, below a table without a place for them."""
    points = {one.cell.row.name: dict[str, None]() for one in results if one.point}
    for one in results:
        if one.point:
            points[one.cell.row.name][described(one.point)] = None
    said = "; ".join(f"{name}: {', '.join(found)}" for name, found in points.items())
    return ["Bold: the best of its column."] + ([f"Found by the search: {escape(said)}."] if said else [])


def two_readings(printed: Printed) -> str:
    """Which reading is the paper's, why we think so, and which one is fair."""
    ways = {True: "best evaluated round of each run", False: "mean of the last evaluated rounds"}
    return (
        f"Two readings stand side by side. We think that the paper printed the {ways[printed.best]}: {printed.why} The "
        "best round is chosen on test data, so it is for the comparison with the paper alone. The mean of the last "
        "rounds is the fair one."
    )


def miss_lines(made: Reproduction, results: Sequence[Result]) -> Iterator[str]:
    """The cells that are not within, and what was tried for them; those with the same words together."""
    missed = [one for one in results if one.is_within is False and one.cell.row.counts]
    if not missed or not made.table.tried:
        return
    by_words: dict[str, list[Result]] = {}
    for one in missed:
        by_words.setdefault(made.table.tried_for(one.cell) or "Nothing was tried.", []).append(one)
    yield from ("## Cells that are not within, and what was tried", "")
    for words, some in by_words.items():
        cells = ", ".join(entries(one, style_for(one))[6] + f" {one.cell.name}" for one in some)
        yield f"- {escape(cells)}. {' '.join(words.split())}"
    yield ""


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
    said += (
        f", in the column{'s' * (len(places) > 1)} {' and '.join(places)}"
        if 0 < len(places) < len(table.columns)
        else ""
    )
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
