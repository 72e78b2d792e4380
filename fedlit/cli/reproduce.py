"""`fedlit reproduce`: makes a paper's table again from its file, and prints our numbers beside the paper's."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from fedlit.config.files import shipped_tables
from fedlit.errors import ConfigError, RunError, require
from fedlit.experiments.reproduce.grid import has_picture
from fedlit.experiments.reproduce.page import entries, headings, is_number, page, style_for, summary_lines
from fedlit.experiments.reproduce.picture import save_picture
from fedlit.experiments.reproduce.result import Result, collect
from fedlit.experiments.reproduce.runs import Reproduction
from fedlit.experiments.reproduce.summary import HEADINGS as SUMMARY_HEADINGS
from fedlit.experiments.reproduce.summary import OWN_PAGE, read_records, record_of, record_path, summary_page
from fedlit.experiments.reproduce.table import TableFile, choose_cells
from fedlit.experiments.reproduce.table_file import find_table, read_table_file
from fedlit.experiments.trials import TrialLog
from fedlit.files import write_text
from fedlit.metrics.formatting import duration
from fedlit.results.folder import chosen_by


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit reproduce`."""
    parser.add_argument("table", metavar="NAME", help="a table by name or by path, `list`, or `summary`")
    parser.add_argument(
        "--cells", default="", metavar="A,B", help="only these: ROW:COLUMN, a row or a column, with commas"
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="runs of each cell, with seeds 0 to N-1; the file's unless given"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="for a smaller trial; the file's unless given")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time; they share the cores (1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder; runs/reproduce-<name> unless given")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="write the page there too, such as NAME.md, and NAME.json for `summary`",
    )
    parser.add_argument("--show", action="store_true", help="print the table of what is finished, and run nothing")
    parser.add_argument("--retry-failed", action="store_true", help="also run what failed before")


def main(args: argparse.Namespace) -> int:
    """List, or check, run and print; the exit code is 1 if a run of the table has failed."""
    require(
        args.page is None or args.page.suffix == ".md",
        f"--page is {args.page}; give a file that ends in .md. Its numbers go to a .json file beside it.",
    )
    console = Console(markup=False, emoji=False, highlight=False)  # names and reasons are anybody's
    if args.table == "list":
        console.print(listing())
        return 0
    if args.table == "summary":
        summarise(args.out or Path("runs"), args.page, console)
        return 0
    made = prepare(args)
    if args.show:
        conclude(made, args.page, console)
        return 0
    made.check()
    announce(made, args.jobs, console)
    made.trial_log.make_folder()
    if not made.run(console, args.jobs, retry_failed=args.retry_failed):
        return 130
    conclude(made, args.page, console)
    return 0 if made.is_whole() else 1


def prepare(args: argparse.Namespace) -> Reproduction:
    """The table, the cells that are asked for, and their record."""
    require(args.jobs >= 1, f"--jobs is {args.jobs}; give 1 or more.")
    require(args.seeds is None or args.seeds >= 1, f"--seeds is {args.seeds}; give 1 or more.")
    require(args.rounds is None or args.rounds >= 1, f"--rounds is {args.rounds}; give 1 or more.")
    table = read_table_file(find_table(args.table))
    cells = choose_cells(table, [name.strip() for name in args.cells.split(",") if name.strip()])
    seeds, rounds = args.seeds or table.seeds, args.rounds or table.rounds
    if table.tuning is not None and seeds > table.tuning.seed:
        raise ConfigError(
            f"--seeds is {seeds}, but {table.name} is tuned with seed {table.tuning.seed}, which must not be one of "
            f"them. Give {table.tuning.seed} or less."
        )
    scaled = f"-{rounds}-rounds" if rounds != table.rounds else ""
    folder = args.out or Path("runs") / f"reproduce-{table.runs_name}{scaled}"
    if args.show and not (folder / "reproduce.json").is_file():
        raise RunError(f"{folder} holds no runs of {table.name}. Run it first, or say where they are with --out DIR.")
    with chosen_by("--out DIR", folder):
        trial_log = TrialLog.open(
            folder / "reproduce.json", {"command": "reproduce", "table": table.runs_name, "rounds": rounds}
        )
    return Reproduction(table, cells, seeds, rounds, trial_log)


def announce(made: Reproduction, jobs: int, console: Console) -> None:
    """What is about to happen, and about how long it takes."""
    search = f"{made.tries} runs to find values, then " if made.tries else ""
    at_a_time = f", {jobs} at a time" if jobs > 1 else ""
    console.print(
        f"{made.table.name}: {len(made.cells)} cells; {search}{made.total - made.tries} runs{at_a_time}: about "
        f"{duration(made.cost / jobs)} in all on two cores that do nothing else",
        soft_wrap=True,
    )
    console.print(f"folder: {made.folder}", soft_wrap=True)


def conclude(made: Reproduction, copy: Path | None, console: Console) -> None:
    """Print the table and write the page."""
    results = collect(made)
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings(results):
        right = is_number(heading)
        add_column(grid, heading, right=right, no_wrap=right)
    for one in results:
        grid.add_row(*entries(one, style_for(one)))
    console.print(grid)
    for line in summary_lines(made, results):
        console.print(line, soft_wrap=True)
    write_page(made, results, copy, console)


def write_page(made: Reproduction, results: Sequence[Result], copy: Path | None, console: Console) -> None:
    """The page and its record, in the folder of the runs and where it was asked for."""
    text, record = page(made, results), record_of(made, results).text()
    page_name = OWN_PAGE if made.table.runs is None else made.table.name
    for path in (made.folder / f"{page_name}.md", *([copy] if copy else [])):
        write(text, path, console)
        write(record, record_path(path))
        if has_picture(made.table, results):
            save_picture(path.parent / f"{made.table.name}.png", results, style_for)


def write(text: str, path: Path, console: Console | None = None) -> None:
    """One file, and a line that names it if there is a console."""
    with chosen_by("--page FILE", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    if console is not None:
        console.print(f"page: {path}", soft_wrap=True)


def summarise(folder: Path, copy: Path | None, console: Console) -> None:
    """Print what all tables came to that have pages in this folder."""
    records = read_records(folder)
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for heading in SUMMARY_HEADINGS:
        add_column(grid, heading, right=heading != "table")
    for one in records.values():
        grid.add_row(*one.entries())
    console.print(grid)
    if copy is not None:
        write(summary_page(records), copy, console)


def add_column(grid: Table, heading: str, *, right: bool, no_wrap: bool = False) -> None:
    """A column whose heading is broken at its commas; what is too long goes on in the next line."""
    justify: Literal["left", "right"] = "right" if right else "left"
    grid.add_column(heading.replace(", ", ",\n"), justify=justify, no_wrap=no_wrap, overflow="fold")


def listing() -> Table:
    """Every table with its size and its cost."""
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "cells", "runs", "two cores", "what"):
        add_column(grid, heading, right=heading in ("cells", "runs"), no_wrap=heading != "what")
    for name, path in shipped_tables().items():
        table = read_table_file(path)
        whole = whole_table(table)
        grid.add_row(name, str(len(table.cells)), str(whole.total), duration(whole.cost), table.title)
    return grid


def whole_table(table: TableFile) -> Reproduction:
    """All of it, for its size."""
    return Reproduction(table, table.cells, table.seeds, table.rounds, TrialLog(Path("reproduce.json"), {}))
