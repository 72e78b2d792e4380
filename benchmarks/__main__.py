"""`python -m benchmarks`: measures the workloads, prints a table for each and writes the figures."""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import benchmarks
from benchmarks.growth import GROWTH
from benchmarks.measure import MAX_OTHER_LOAD, Result, measure, warmed_up
from benchmarks.peer import PACKAGES, Choice, beside
from benchmarks.same_work import CHECK_ROUNDS, LAYERS, Outcome, layers_of
from benchmarks.workloads import WORKLOADS, Workload
from fedlit.errors import ConfigError, FedlitError, nearest, require
from fedlit.files import write_json
from fedlit.results.folder import check_writable, chosen_by
from fedlit.trainer.summary import versions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m benchmarks`."""
    parser.add_argument(
        "--workload",
        action="append",
        metavar="NAME",
        help=f"what to measure, repeatable: {', '.join(WORKLOADS)}; all unless given",
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help=f"measure another framework too, in the interpreter that has it, repeatable: {', '.join(PACKAGES)}; "
        f"does {', '.join(LAYERS)} unless --workload names some of them",
    )
    parser.add_argument(
        "--growth", action="store_true", help="instead: how cost grows with cohort, net, local steps and clients"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions, of which the median is shown (3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each entry in a repetition (3)")


def run() -> int:
    """The command: its exit code; what is wrong with the input is said in a paragraph."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    add_arguments(parser)
    try:
        return main(parser.parse_args())
    except FedlitError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code


def main(args: argparse.Namespace) -> int:
    """Measure, print, write; returns the exit code."""
    peers = [Choice.parse(text) for text in args.peer]
    workloads = chosen_workloads(args.workload or [], peers, args.growth)
    require(args.repeats >= 1, f"--repeats is {args.repeats}; give 1 or more.")
    require(args.seconds > 0, f"--seconds is {args.seconds:g}; give a number above 0.")
    if args.json is not None:
        with chosen_by("--json FILE", args.json):
            check_writable(args.json, "--json")
    console = Console()
    results: dict[str, list[Result]] = {}
    outcomes: dict[str, dict[str, Outcome]] = {}
    for workload in workloads:
        name = workload.name
        results[name], outcomes[name] = measure_one(workload, peers, args.repeats, args.seconds, console)
        show(workload, results[name], outcomes[name], console)
        if args.json is not None:  # after each, so that what is stopped has not measured for nothing
            with chosen_by("--json FILE", args.json):
                write_json(args.json, as_json(args.repeats, results, outcomes))
    return 0


def chosen_workloads(names: Sequence[str], peers: Sequence[Choice], growth: bool) -> list[Workload]:
    """What to measure, or why the options contradict each other."""
    if growth:
        require(not names, f"--growth has workloads of its own. Leave out --workload {' '.join(names)}, or --growth.")
        require(not peers, "--growth measures fedlit and the hand-written loop alone. Leave out --peer, or --growth.")
        return list(GROWTH.values())
    workloads = [find_workload(name) for name in names or (LAYERS if peers else WORKLOADS)]
    for workload in workloads if peers else ():
        layers_of(workload)
    return workloads


def find_workload(name: str) -> Workload:
    """The workload of this name, or a clear error."""
    if name not in WORKLOADS:
        raise ConfigError(f"--workload {name} does not exist. {nearest(name, WORKLOADS)}Known: {', '.join(WORKLOADS)}.")
    return WORKLOADS[name]


def measure_one(
    workload: Workload, peers: Sequence[Choice], repeats: int, seconds: float, console: Console
) -> tuple[list[Result], dict[str, Outcome]]:
    """Measure one workload with a line that says what is running; with peers, also what everyone's rounds came to."""
    # The line is drawn only when it changes: a thread that animates it would take time from what is measured.
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def report(what: str) -> None:
            live.update(Text(f"{workload.name}  {what}"), refresh=True)

        report("making the data")
        data = workload.data()
        data.setup()
        if not peers:
            return measure(warmed_up(workload, data, report), repeats, seconds, report), {}
        with beside(workload, data, peers, report) as (others, outcomes):
            return measure([*warmed_up(workload, data, report), *others], repeats, seconds, report), outcomes


def show(workload: Workload, results: list[Result], outcomes: dict[str, Outcome], console: Console) -> None:
    """The table of a workload and the remarks that belong to it."""
    console.print(f"{workload.name}: {workload.title}", style="bold", highlight=False)
    console.print(table(results))
    for line in [*remarks(results), *same_work(outcomes)]:
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
            str(entry.threads * entry.processes),
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
    """What the table cannot show: what was expected, FedBC against FedAvg, and what was left out."""
    lines = [expectation(result) for result in results if result.entry.estimated is not None]
    for result in results:
        if (rival := result.entry.rival) is not None:
            mark = "" if result.quiet_turns else "*"
            turns = f"steps/s in turns of a few rounds, {rival.label}"
            lines.append(f"FedBC / FedAvg: {result.in_turns:.3f}{mark} ({turns})")
    disturbed = sum(len(result.spans) - len(result.undisturbed) for result in results)
    if disturbed:
        total = sum(len(result.spans) for result in results)
        lines.append(
            f"The machine was busy: {disturbed} of {total} runs, or the first entry, which they are compared with, "
            f"lost more than {MAX_OTHER_LOAD:g} cores to something else and are left out."
        )
    if any(result.is_void or (result.turns and not result.quiet_turns) for result in results):
        lines.append("* no undisturbed run: not to be trusted. Repeat it on an idle machine.")
    return lines


def expectation(result: Result) -> str:
    """What `auto` expected of an entry, beside what was measured."""
    measured, estimated = median(result.rates), result.entry.estimated or 0.0
    factor = max(measured, estimated) / min(measured, estimated)
    verdict = "" if factor <= 2 else f": off by {factor:.1f} times, and auto decides by it"
    return f"{result.entry.name}: {measured:,.0f} steps/s measured, {estimated:,.0f} estimated by auto{verdict}"


def same_work(outcomes: dict[str, Outcome]) -> list[str]:
    """What was compared before the measuring, where there are peers."""
    falls = ", ".join(f"{name} {outcome.fall:.4g}" for name, outcome in outcomes.items())
    steps = {f"{outcome.steps:,}" for outcome in outcomes.values()}
    return (
        [f"Fall of the training loss in {CHECK_ROUNDS} rounds, {', '.join(steps)} steps: {falls}"] if outcomes else []
    )


def as_json(
    repeats: int, workloads: dict[str, list[Result]], outcomes: dict[str, dict[str, Outcome]]
) -> dict[str, Any]:
    """The content of `python -m benchmarks --json FILE`; with peers also what the compared rounds came to."""
    compared = {name: {who: asdict(one) for who, one in seen.items()} for name, seen in outcomes.items() if seen}
    return {
        "machine": machine(),
        "versions": versions(),
        "repeats": repeats,
        "workloads": {name: [result.as_json() for result in results] for name, results in workloads.items()},
        **({"same_work": compared} if compared else {}),
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


if __name__ == "__main__":
    sys.exit(run())
