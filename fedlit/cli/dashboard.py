"""`fedlit dashboard`: runs as one HTML file for the browser."""

import argparse
from pathlib import Path

from fedlit.metrics.formatting import counted
from fedlit.report.dashboard import write_dashboard
from fedlit.report.finished import left_out
from fedlit.results.folder import check_writable, chosen_by
from fedlit.results.runs import find_runs, group_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit dashboard`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that contain some")
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
        check_writable(out, "--out")
        write_dashboard(runs, out)
    groups = group_runs(runs)
    shown = counted(sum(len(group.runs) for group in groups), "run")
    print(f"{out}: {shown} in {counted(len(groups), 'group')}, {out.stat().st_size / 1e6:.1f} MB.")
    for remark in [*(remark for group in groups for remark in group.repeated), *left_out(groups)]:
        print(remark)
    print("Open it in a browser; run this command again to refresh it.")
    return 0
