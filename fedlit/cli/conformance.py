"""`fedlit conformance`: checks every algorithm, prints the table and writes it as Markdown and JSON."""

import argparse
import importlib
import inspect
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from fedlit import models
from fedlit.client.base import Client
from fedlit.errors import ConfigError, nearest, require
from fedlit.experiments.conformance import Measured
from fedlit.experiments.conformance.checks import FIGURES, figures
from fedlit.experiments.conformance.entries import ENTRIES, WITH_NORM, Entry
from fedlit.experiments.conformance.problem import LOCAL, TINY, Problem
from fedlit.experiments.conformance.travels import page
from fedlit.experiments.fit_arguments import made_parts
from fedlit.files import write_json, write_text
from fedlit.metrics.formatting import counted
from fedlit.results.folder import chosen_by

KNOWN = ENTRIES | WITH_NORM
Results = dict[str, list[Measured]]

_NOT_LOCAL = ("self", "net", "keep_local", "average_kept", "train", "cache", "metrics", "module")
"""Arguments of a client that do not say how it trains."""

HEADER = """# Conformance

Written by `fedlit conformance`: every algorithm on four clients with ragged batches, three of them a round, in float64.
A cell holds the figure that was measured. The head of its column says what the figure must be. `eager` marks an
algorithm whose steps are not compiled. FedBN and the rows that say BatchNorm have a net with BatchNorm. The traces that
each algorithm is checked against are in `tests/oracles`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit conformance`."""
    parser.add_argument(
        "--algorithm",
        action="append",
        metavar="NAME",
        help="what to check, repeatable: a name of the table, or package.module.Class of your own; all unless given",
    )
    parser.add_argument(
        "--net",
        metavar="NET",
        help="the net to train, by name or import path, with --net.OPTION VALUE; softmax regression unless given",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="check the algorithm, the net, weights, server optimiser and callbacks of a config",
    )
    parser.epilog = "--model.OPTION VALUE changes a config, as in fedlit fit."
    parser.allow_abbrev = False
    parser.set_defaults(overrides=[])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table as Markdown to this file")
    parser.add_argument(
        "--travels", type=Path, metavar="FILE", help="write what travels between server and nodes to this file, and end"
    )


def main(args: argparse.Namespace) -> int:
    """Check, print, write; 1 if a check fails."""
    if args.travels is not None:
        with quiet(), chosen_by("--travels FILE", args.travels):
            write_text(args.travels, page())
        return 0
    problem, entries = asked_for(args)
    console = Console()
    results: Results = {name: [] for name in entries}
    measured = (
        (name, one)
        for name, entry in entries.items()
        for one in figures(entry.make, entry.problem or problem, **entry.trainer)
    )
    piped = not console.is_terminal
    with quiet():
        for name, one in track(
            measured, "checking", FIGURES * len(entries), console=console, transient=True, disable=piped
        ):
            results[name].append(one)
            if piped and len(results[name]) == FIGURES:
                print(progress_line(name, results), file=sys.stderr, flush=True)
    console.print(as_table(results)) if console.is_terminal else print("\n".join(table_lines(results)))
    if args.json is not None:
        plain = {name: [asdict(measured) for measured in checks] for name, checks in results.items()}
        with chosen_by("--json FILE", args.json):
            write_json(args.json, plain)
    if args.out is not None:
        with chosen_by("--out FILE", args.out):
            write_text(args.out, as_markdown(results))
    failed = [f"{name}: {one.check}" for name, checks in results.items() for one in checks if not one.passed]
    said = f"{len(failed)} failed: {'; '.join(failed)}" if failed else "all checks passed"
    console.print(f"{counted(len(results), 'algorithm')}: {said}")
    return 1 if failed else 0


def progress_line(name: str, results: Results) -> str:
    """What is said of an algorithm whose checks are over, where no bar can be shown."""
    done = sum(len(checks) == FIGURES for checks in results.values())
    failed = [one.check for one in results[name] if not one.passed]
    said = f"failed: {', '.join(failed)}" if failed else "all checks passed"
    return f"checked {done} of {len(results)}: {name}, {said}"


def asked_for(args: argparse.Namespace) -> tuple[Problem, dict[str, Entry]]:
    """The net with its samples, and what is checked on it."""
    require(args.config is None or args.algorithm is None, "--config and --algorithm both say what to check. Give one.")
    require(args.config is None or args.net is None, "--config names a net. Change it with --model.net, without --net.")
    require(
        bool(args.config or args.net) or not args.overrides,
        f"{' '.join(args.overrides)} needs --net or --config, because it is an option of a net.",
    )
    if args.config is not None:
        return from_config(["--config", args.config, *args.overrides, "--model.batch_size", str(LOCAL["batch_size"])])
    entries = {name: find_entry(name) for name in args.algorithm or KNOWN}
    if args.net is None:
        return TINY, entries
    net_options = [word.replace("--net.", "--model.net.", 1) for word in args.overrides]
    name = f"fedlit.{args.net}" if args.net in models.__all__ else args.net
    problem, _ = from_config(["--model", "FedAvg", "--model.net", name, *net_options, "--data", "Synthetic"])
    return replace(problem, local=dict(LOCAL)), entries


def from_config(words: list[str]) -> tuple[Problem, dict[str, Entry]]:
    """The net and the algorithm that a command line of `fit` describes, each made anew as often as it is asked for."""
    parts = made_parts(words)
    client = parts.model

    def make(net: nn.Module, **local: Any) -> Client:
        model: Client = made_parts(words).model
        model.net = net
        return model

    asked = {name: parts.trainer[name] for name in ("weights", "server_optimizer")}
    kept = {name: value for name, value in asked.items() if value not in (None, "SGD")}  # plain averaging without
    kept |= {"make_callbacks": lambda: made_parts(words).trainer.callbacks} if parts.trainer.callbacks else {}
    known = inspect.signature(Client.__init__).parameters.values()
    options = [one.name for one in known if one.kind is one.KEYWORD_ONLY and one.name not in _NOT_LOCAL]
    local = {name: getattr(client, name) for name in options}
    problem = Problem(lambda: made_parts(words).model.net, local)
    return problem, {type(client).__name__: Entry(make, kept)}


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
    if name in KNOWN:
        return KNOWN[name]
    module, _, attribute = name.rpartition(".")
    try:
        named = getattr(importlib.import_module(module), attribute) if module else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--algorithm {name} cannot be imported ({error}). Give package.module.Class.") from error
    if not (isinstance(named, type) and issubclass(named, Client)):
        raise ConfigError(
            f"--algorithm {name} is not an algorithm. {nearest(name, KNOWN)}Known: {', '.join(KNOWN)}; or give the "
            "import path of a Client of your own."
        )
    return Entry(named)


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
    for name, checks in results.items():
        table.add_row(name, *(cell(one) for one in checks))
    return table


def table_lines(results: Results) -> list[str]:
    """The table in Markdown, whose lines a pipe, a file and a narrow terminal leave as they are."""
    head = ["algorithm", *columns(results)]
    rows: list[list[str]] = [head, ["---"] * len(head)]
    rows += [[name, *(cell(one) for one in checks)] for name, checks in results.items()]
    return [f"| {' | '.join(row)} |" for row in rows]


def as_markdown(results: Results) -> str:
    """For docs/conformance.md."""
    notes: dict[str, Any] = {
        name: [one.note for one in checks if "not compiled" in one.note] for name, checks in results.items()
    }
    eager = [f"- {name}: {of_it[0]}" for name, of_it in notes.items() if of_it]
    lines = [HEADER, *table_lines(results)]
    return "\n".join([*lines, "", "Not compiled:", "", *eager, ""] if eager else [*lines, ""])
