"""`fedlit bench`: measures the workloads, prints a table for each and writes the figures."""

import argparse
import os
import platform
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedlit.bench.measure import MAX_OTHER_LOAD, Result, measure, warmed_up
from fedlit.bench.workloads import WORKLOADS, Workload
from fedlit.errors import ConfigError, nearest, require
from fedlit.run import RunFolder, chosen_by
from fedlit.summary import versions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit bench`."""
    parser.add_argument(
        "--workload",
        action="append",
        metavar="NAME",
        help=f"what to measure, repeatable: {', '.join(WORKLOADS)}; all unless given",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions, of which the median is shown (3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each entry in a repetition (3)")


def main(args: argparse.Namespace) -> int:
    """Measure, print, write; returns the exit code."""
    workloads = [find_workload(name) for name in args.workload or WORKLOADS]
    require(args.repeats >= 1, f"--repeats is {args.repeats}; give 1 or more.")
    require(args.seconds > 0, f"--seconds is {args.seconds:g}; give a number above 0.")
    if args.json is not None:
        with chosen_by("--json FILE", args.json):
            check_writable(args.json)
    console = Console()
    results = {}
    for workload in workloads:
        results[workload.name] = measure_one(workload, args.repeats, args.seconds, console)
        show(workload, results[workload.name], console)
    if args.json is not None:
        with chosen_by("--json FILE", args.json):
            RunFolder(args.json.parent).write_json(args.json, as_json(args.repeats, results))
    return 0


def find_workload(name: str) -> Workload:
    """The workload of this name, or a clear error."""
    if name not in WORKLOADS:
        raise ConfigError(f"--workload {name} does not exist. {nearest(name, WORKLOADS)}Known: {', '.join(WORKLOADS)}.")
    return WORKLOADS[name]


def check_writable(path: Path) -> None:
    """Before minutes of measuring: the figures must have a place to go."""
    folder = path.parent
    require(
        folder.is_dir() and os.access(folder, os.W_OK) and not path.is_dir(),
        f"--json {path} cannot be written. Give the name of a file in a folder that exists and is writable.",
    )


def measure_one(workload: Workload, repeats: int, seconds: float, console: Console) -> list[Result]:
    """Measure one workload with a line that says what is running."""
    # The line is drawn only when it changes: a thread that animates it would take time from what is measured.
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def report(what: str) -> None:
            live.update(Text(f"{workload.name}  {what}"), refresh=True)

        return measure(warmed_up(workload, report), repeats, seconds, report)


def show(workload: Workload, results: list[Result], console: Console) -> None:
    """The table of a workload and the remarks that belong to it."""
    console.print(f"{workload.name}: {workload.title}", style="bold", highlight=False)
    console.print(table(results))
    for line in remarks(results):
        console.print(line, highlight=False)
    console.print()


def table(results: list[Result]) -> Table:
    """Steps per second of every entry, with the ratio to the first; 80 columns wide at most."""
    grid = Table(box=None, padding=(0, 2, 0, 0))
    grid.add_column("whole\nrounds", no_wrap=True)
    for heading in ("threads", "lanes", "steps/s", "spread", "ratio", "other\nload", "first\nround"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        entry, rates, load = result.entry, result.rates, result.other_load
        grid.add_row(
            entry.name,
            str(entry.threads),
            str(entry.lanes),
            f"{median(rates):,.0f}",
            f"{min(rates):,.0f}-{max(rates):,.0f}",
            ratio_of(result),
            "unknown" if load is None else f"{load:.2f}",
            f"{entry.first_round_s:.1f} s",
        )
    return grid


def ratio_of(result: Result) -> str:
    """The ratio, with a mark if no run was undisturbed."""
    return f"{result.ratio:.2f}" + ("*" if result.is_void else "")


def remarks(results: list[Result]) -> list[str]:
    """What the table cannot show: FedBC against FedAvg, and what was left out."""
    lines = []
    fedavg = [result for result in results if result.entry.name == "vectorized"][-1:]
    fedbc = [result for result in results if result.entry.name == "fedbc"]
    for one, other in zip(fedbc, fedavg, strict=False):
        beside = replace(one, base=other.spans)
        lines.append(f"FedBC / FedAvg: {ratio_of(beside)} (steps/s, {other.entry.label})")
    disturbed = sum(len(result.spans) - len(result.undisturbed) for result in results)
    if disturbed:
        total = sum(len(result.spans) for result in results)
        lines.append(
            f"The machine was busy: {disturbed} of {total} runs, or the first entry, which they are compared with, "
            f"lost more than {MAX_OTHER_LOAD:g} cores to something else and are left out."
        )
    if any(result.is_void for result in results):
        lines.append("* no undisturbed run: not to be trusted. Repeat it on an idle machine.")
    return lines


def as_json(repeats: int, workloads: dict[str, list[Result]]) -> dict[str, Any]:
    """The content of `fedlit bench --json FILE`."""
    return {
        "machine": machine(),
        "versions": versions(),
        "repeats": repeats,
        "workloads": {name: [result.as_json() for result in results] for name, results in workloads.items()},
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu_model(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "system": platform.platform(),
    }


def cpu_model() -> str:
    """The processor's name as Linux gives it, or the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
