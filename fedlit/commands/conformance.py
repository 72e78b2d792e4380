"""`fedlit conformance`: checks every algorithm, prints the table and writes it as Markdown and JSON."""

import argparse
import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedlit.client import Client
from fedlit.conformance import Measured, check
from fedlit.conformance.entries import ENTRIES, Entry
from fedlit.errors import ConfigError, nearest
from fedlit.run import RunFolder, chosen_by

Results = dict[str, list[Measured]]

HEADER = """# Conformance

Written by `fedlit conformance`: every algorithm on four clients with ragged batches, three of them a round, in float64.
A cell holds the figure that was measured; what it must be stands in the head of its column. `eager` marks an algorithm
whose steps are not compiled. The traces that each algorithm is checked against are in `tests/oracles`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit conformance`."""
    parser.add_argument(
        "--algorithm",
        action="append",
        metavar="NAME",
        help="what to check, repeatable: a name of the table, or package.module.Class of your own; all unless given",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table as Markdown to this file")


def main(args: argparse.Namespace) -> int:
    """Check, print, write; 1 if a check fails."""
    entries = {name: find_entry(name) for name in args.algorithm or ENTRIES}
    console = Console()
    results: Results = {}
    with quiet():
        for name, entry in track(entries.items(), "checking", console=console, transient=True):
            results[name] = check(entry.make, **entry.trainer)
    console.print(as_table(results))
    if args.json is not None:
        plain = {name: [asdict(measured) for measured in found] for name, found in results.items()}
        with chosen_by("--json FILE", args.json):
            RunFolder(args.json.parent).write_json(args.json, plain)
    if args.out is not None:
        with chosen_by("--out FILE", args.out):
            RunFolder(args.out.parent).write_text(args.out, as_markdown(results))
    failed = [f"{name}: {one.check}" for name, found in results.items() for one in found if not one.passed]
    console.print(f"{len(failed)} failed: {'; '.join(failed)}" if failed else f"all {len(results)} passed")
    return 1 if failed else 0


@contextmanager
def quiet() -> Iterator[None]:
    """A line per run would drown the table."""
    log = logging.getLogger("fedlit")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def find_entry(name: str) -> Entry:
    """An entry of fedlit's, or a user's class."""
    if name in ENTRIES:
        return ENTRIES[name]
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute) if module else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--algorithm {name} cannot be imported ({error}). Give package.module.Class.") from error
    if not (isinstance(found, type) and issubclass(found, Client)):
        raise ConfigError(
            f"--algorithm {name} is no algorithm. {nearest(name, ENTRIES)}Known: {', '.join(ENTRIES)}; or give the "
            "import path of a Client of your own."
        )
    return Entry(found)


def cell(measured: Measured) -> str:
    """The figure, and what a reader must know of it."""
    if measured.note.startswith(("not measured", "it is")):
        return "–"
    figure = "0" if measured.figure == 0 else f"{measured.figure:.1e}"
    eager = " eager" if "not compiled" in measured.note else ""
    return f"{figure}{eager}" if measured.passed else f"{figure}{eager} ✗"


def columns(results: Results) -> list[str]:
    """Check and demand of each column."""
    return [f"{one.check} ({one.demand})" for one in next(iter(results.values()))]


def as_table(results: Results) -> Table:
    """For the terminal."""
    table = Table("algorithm", *columns(results))
    for name, found in results.items():
        table.add_row(name, *(cell(one) for one in found))
    return table


def as_markdown(results: Results) -> str:
    """For docs/conformance.md."""
    head = ["algorithm", *columns(results)]
    rows: list[list[str]] = [head, ["---"] * len(head)]
    rows += [[name, *(cell(one) for one in found)] for name, found in results.items()]
    notes: dict[str, Any] = {
        name: [one.note for one in found if "not compiled" in one.note] for name, found in results.items()
    }
    eager = [f"- {name}: {found[0]}" for name, found in notes.items() if found]
    lines = [HEADER, *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, "", "Not compiled:", "", *eager, ""] if eager else [*lines, ""])
