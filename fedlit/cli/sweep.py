"""`fedlit sweep`: runs a W&B sweep file without a server, ranks its trials and draws them."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedlit.errors import require
from fedlit.experiments.fit_arguments import add_runner_arguments
from fedlit.experiments.sweep.file import SweepFile, find_sweep, read_sweep
from fedlit.experiments.sweep.objective import remarks
from fedlit.experiments.sweep.parallel_plot import draw_parallel
from fedlit.experiments.sweep.search import make_search
from fedlit.experiments.sweep.search_plot import draw_search
from fedlit.experiments.sweep.sweep import Sweep, check_sweep, definition, readable
from fedlit.experiments.trials import TrialLog
from fedlit.metrics.catalogue import format_value
from fedlit.metrics.formatting import counted
from fedlit.results.folder import chosen_by, fingerprint

_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit sweep`."""
    parser.add_argument("file", metavar="FILE", help="a sweep file in W&B's format, by path or by name")
    parser.add_argument(
        "--runs", type=int, metavar="N", help="number of trials; unless given, all of a grid, or run_cap of the file"
    )
    parser.add_argument(
        "--seed", type=int, help="seed of the draws of random and bayes; computed from the file's content unless given"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder; runs/sweep-<name>-<hash> unless given")
    add_runner_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Check, run, rank; the exit code is 1 if no trial has finished."""
    require(args.jobs >= 1, f"--jobs is {args.jobs}; give 1 or more.")
    require(args.runs is None or args.runs >= 1, f"--runs is {args.runs}; give 1 or more.")
    require(args.seed is None or args.seed >= 0, f"--seed is {args.seed}; give 0 or more.")
    console = Console(markup=False, emoji=False, highlight=False)  # names and reasons are anybody's
    file = read_sweep(find_sweep(args.file))
    rounds = check_sweep(file, args.overrides)
    about = definition(file, args.overrides)
    seed = int(fingerprint(about), 16) if args.seed is None else args.seed
    search = make_search(file, args.runs, seed)
    if file.method != "grid":
        about["seed"] = seed
    folder = args.out or Path("runs") / f"sweep-{file.path.stem}-{fingerprint(about)}"
    with chosen_by("--out DIR", folder):
        trial_log = TrialLog.open(folder / "sweep.json", about)
        trial_log.make_folder()
    sweep = Sweep(file, search, trial_log, args.overrides, rounds)
    announce(sweep, args.jobs, console)
    if not sweep.run(console, args.jobs, retry_failed=args.retry_failed):
        return 130
    conclude(sweep, console)
    return 0 if sweep.ranked() else 1


def announce(sweep: Sweep, jobs: int, console: Console) -> None:
    """What is about to happen, and what to know about it."""
    file = sweep.file
    at_a_time = f", {jobs} at a time" if jobs > 1 else ""
    console.print(
        f"{file.path.name}: {file.method}, {sweep.total} trials{at_a_time}, {file.goal} {file.metric}", soft_wrap=True
    )
    console.print(f"folder: {sweep.folder}", soft_wrap=True)
    for line in [*remarks(file.metric, file.goal), *ignored(file)]:
        console.print(line, soft_wrap=True)


def ignored(file: SweepFile) -> list[str]:
    """What the file says in vain."""
    if not file.ignored:
        return []
    return [f"Only W&B's server knows what to do with {', '.join(file.ignored)}: every trial runs to its end here."]


def conclude(sweep: Sweep, console: Console) -> None:
    """The ranking, the failures, the pictures and the best command."""
    ranked = sweep.ranked()
    if ranked:
        console.print(ranking(sweep))
    if len(ranked) > _SHOWN:
        console.print(f"… and {len(ranked) - _SHOWN} more in {sweep.trial_log.path}", soft_wrap=True)
    for trial in sweep.trial_log.with_status("failed"):
        console.print(f"failed: {trial.name} ({sweep.described(trial.parameters)}): {trial.reason}", soft_wrap=True)
    for pictures in (draw_search(sweep), draw_parallel(sweep)):
        if pictures:
            console.print(f"picture: {' and '.join(map(str, pictures))}", soft_wrap=True)
    if ranked:
        tied = sweep.ranks().count(1) - 1
        if tied:
            console.print(
                f"{counted(tied, 'more trial')} reached the same value as {ranked[0].name}, the first of them."
            )
        best = sweep.job(ranked[0].name, ranked[0].parameters)
        console.print(f"best: {best.command}", soft_wrap=True)


def ranking(sweep: Sweep) -> Table:
    """The best trials with their values, and on test data where validation chose; those of one value share a rank."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    shown = sweep.ranked()[:_SHOWN]
    tested = {trial.name: sweep.tested(trial) for trial in shown} if sweep.test_metric else {}
    tests = [sweep.test_metric] if any(tested.values()) else []
    for heading in ("rank", "trial", *sweep.labels.values(), sweep.file.metric, *tests):
        table.add_column(heading, justify="left" if heading == "trial" else "right", no_wrap=heading != "trial")
    for rank, trial in zip(sweep.ranks(), shown, strict=False):
        assert trial.value is not None, "a finished trial is rated"
        values = [readable(trial.parameters[name]) for name in sweep.labels]
        scores = [format_value(sweep.file.metric, trial.value), *(tested[trial.name] for _ in tests)]
        table.add_row(str(rank), trial.name, *values, *scores)
    return table
