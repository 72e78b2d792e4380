"""`fedlit report`: tables and figures of finished runs, in the terminal and as files."""

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedlit.report.grids import BY_INTERVAL, BY_TEST, Grid
from fedlit.report.page import Report, build_report
from fedlit.report.write import write_files
from fedlit.results.runs import find_runs

WIDTH = 80
LABEL = 24
"""Columns of the terminal, and of a group's label."""
LINES = 12
"""Clear differences that are listed; the report has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit report`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that contain some")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (report in the folder if one is given, else ./report)"
    )
    parser.add_argument(
        "--against", metavar="TABLE", help="a paper's table to print beside ours, by name, or a CSV file of your own"
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="a column, repeatable; unless given, the usual ones",
    )
    parser.add_argument(
        "--last", type=int, default=1, metavar="N", help="mean over the N last evaluated rounds of each run (1)"
    )
    parser.add_argument(
        "--reference", metavar="LABEL", help="the group that others are compared with (FedAvg, else the first)"
    )
    parser.add_argument(
        "--search",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="folder of a sweep, or of a table made again, that chose the runs' hyper-parameters; repeatable",
    )


def main(args: argparse.Namespace) -> int:
    """Read, write, print; returns the exit code."""
    runs = find_runs(args.runs)
    out = args.out or (args.runs[0] / "report" if len(args.runs) == 1 else Path("report"))
    report = build_report(
        runs,
        out,
        against=args.against,
        metrics=args.metric,
        last=args.last,
        reference=args.reference,
        searches=args.search,
    )
    console = Console()
    # The line is drawn only when it changes: there is no thread that animates it.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        written = write_files(report, lambda figure: live.update(Text(f"drawing {figure}"), refresh=True))
    show(report, console)
    console.print(f"{len(written)} files in {out}; open {written[0]}", highlight=False, markup=False, soft_wrap=True)
    return 0


def show(report: Report, console: Console) -> None:
    """What a reader must know, then for each data set its results and every difference that is clear."""
    for remark in report.remarks:
        console.print(Text(f"! {remark}", style="yellow"), width=WIDTH)
    for section in report.sections:
        console.print(Text(f"\n{section.data}", style="bold"))
        for grid in section.grids:
            if grid.name.endswith("-hyperparameters"):  # for a paper, not for the terminal
                continue
            if grid.name.endswith("-differences"):
                lines = clear_differences(grid)
            else:
                lines = list(grid.notes)
                for table in tables(grid):
                    console.print(table, width=min(WIDTH, console.width))
            for line in lines:
                console.print(Text(line), width=WIDTH)
            console.print()


def clear_differences(grid: Grid) -> list[str]:
    """One line for each interval without 0, with what the test says of it; then what tests cannot say."""
    names = [heading.text for heading in grid.headings]
    rows = [dict(zip(names, entries, strict=True)) for entries in grid.rows]
    clear = [{name: entry.text for name, entry in row.items()} for row in rows if row[BY_INTERVAL].bold]
    if not clear:
        nothing = f"{grid.title}: no difference is clear: 0 lies in every 95 % interval, or there is no interval."
        return [nothing, *grid.notes]
    said = [f"  {clear_line(row)}" for row in clear]
    more = [f"  and {len(said) - LINES} more"] * (len(said) > LINES)
    return [f"{grid.title}, where 0 lies outside the 95 % interval:", *said[:LINES], *more, *grid.notes]


def clear_line(row: Mapping[str, str]) -> str:
    """A difference with its interval, its pairs and its test."""
    measured = f"{row['algorithm']}: {row['metric']} {row['difference']}"
    interval = f"({row['95 % interval']}; {row['pairs']} pairs), {row[BY_INTERVAL]}"
    verdict = "" if row[BY_TEST].startswith("too few") else f": {row[BY_TEST]}"  # of too few pairs a note speaks once
    return f"{measured} {interval}; Wilcoxon p {row['Wilcoxon p']}, Holm {row['after Holm']}{verdict}"


def tables(grid: Grid) -> Iterator[Table]:
    """A grid in as many tables as are needed for the width; words may wrap, numbers not."""
    widths = [column_width(grid, number) for number in range(len(grid.headings))]
    words = [number for number, heading in enumerate(grid.headings) if heading.is_text]
    room = WIDTH - sum(min(widths[number], LABEL // len(words)) for number in words)
    chunk: list[int] = []
    for number in (number for number in range(len(grid.headings)) if number not in words):
        if chunk and sum(widths[other] for other in chunk) + widths[number] > room:
            yield table(grid, [*words, *chunk])
            chunk = chunk[:0]
        chunk.append(number)
    if grid.rows:
        yield table(grid, [*words, *chunk])


def column_width(grid: Grid, number: int) -> int:
    """Columns of the terminal that a column of the grid takes, with the gap behind it."""
    cells = max((len(entries[number].text) for entries in grid.rows), default=0)
    longest_word = max(map(len, grid.headings[number].text.split(" ")))
    return max(min(cells, LABEL) if grid.headings[number].is_text else cells, longest_word) + 2


def table(grid: Grid, columns: Sequence[int]) -> Table:
    """These columns of a grid."""
    shown = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    for number in columns:
        heading, width = grid.headings[number], column_width(grid, number) - 2
        shown.add_column(
            Text("\n".join(textwrap.wrap(heading.text, width, break_long_words=False))),
            justify="left" if heading.is_text else "right",
            no_wrap=not heading.is_text,
            overflow="fold",
            max_width=width,
        )
    for entries in grid.rows:
        shown.add_row(*(Text(entries[number].text, style="bold" * entries[number].bold) for number in columns))
    return shown
