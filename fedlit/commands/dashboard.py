"""`fedlit dashboard`: runs as one HTML file for the browser."""

import argparse
import os
from pathlib import Path

from fedlit.dashboard import write_dashboard
from fedlit.errors import require
from fedlit.results import find_runs, group_runs
from fedlit.run import chosen_by


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit dashboard`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE.html",
        help="the file to write; unless given, dashboard.html in the folder named, or here if several are",
    )


def main(args: argparse.Namespace) -> int:
    """Read, write, say where it is; returns the exit code."""
    out = args.out or (args.runs[0] if len(args.runs) == 1 else Path()) / "dashboard.html"
    runs = find_runs(args.runs)
    with chosen_by("--out FILE.html", out):
        check_writable(out)
        write_dashboard(runs, out)
    groups = len(group_runs(runs))
    print(f"{out}: {counted(len(runs), 'run')} in {counted(groups, 'group')}, {out.stat().st_size / 1e6:.1f} MB.")
    print("Open it in a browser; run this command again to refresh it.")
    return 0


def check_writable(out: Path) -> None:
    """Before anything is packed: the page must have a place to go."""
    require(
        out.parent.is_dir() and os.access(out.parent, os.W_OK) and not out.is_dir(),
        f"--out {out} cannot be written. Give the name of a file in a folder that exists and is writable.",
    )


def counted(number: int, noun: str) -> str:
    """`1 run`, `9 runs`."""
    return f"{number} {noun}{'s' * (number != 1)}"
