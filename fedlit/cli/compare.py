"""`fedlit compare`: several configs with several seeds in one command, then a table, a report and a dashboard."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedlit.errors import require
from fedlit.experiments.compare import Comparison, default_folder, described, read_configs
from fedlit.experiments.fit_arguments import add_runner_arguments
from fedlit.experiments.trials import TrialLog
from fedlit.metrics.catalogue import metric
from fedlit.metrics.formatting import counted
from fedlit.results.folder import chosen_by
from fedlit.results.runs import Run

_ONLY_IN_REPORTS = ("_worst10", "/gini")
"""Ends of metrics that a report's table has, and the terminal's has no room for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit compare`."""
    parser.add_argument("--configs", required=True, metavar="A,B,C", help="configs by path or by name, with commas")
    parser.add_argument(
        "--seeds", type=int, default=5, metavar="N", help="runs of each config, with seeds 0 to N-1 (5)"
    )
    parser.add_argument(
        "--data_seeds", action="store_true", help="data.seed follows the seed: each seed has another partition"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder; runs/compare-<hash> unless given")
    add_runner_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Check, run, show; the exit code is 1 if a run has failed."""
    require(args.jobs >= 1, f"--jobs is {args.jobs}; give 1 or more.")
    require(args.seeds >= 1, f"--seeds is {args.seeds}; give 1 or more.")
    stray = next((word for word in args.overrides[:1] if not word.startswith("-")), None)
    require(
        stray is None,
        f"'{stray}' belongs to no option. Join configs by commas, without spaces: --configs {args.configs},{stray}.",
    )
    names = [name.strip() for name in args.configs.split(",")]
    configs = read_configs(names, args.overrides, data_seeds=args.data_seeds)
    folder = args.out or default_folder(configs, args.overrides, data_seeds=args.data_seeds)
    with chosen_by("--out DIR", folder):
        about = described(configs, args.overrides, data_seeds=args.data_seeds)
        trial_log = TrialLog.open(folder / "compare.json", about)
        trial_log.make_folder()
    comparison = Comparison(configs, args.seeds, args.overrides, trial_log, data_seeds=args.data_seeds)
    console = Console(markup=False, emoji=False, highlight=False)  # names and reasons are anybody's
    at_a_time = f", {args.jobs} at a time" if args.jobs > 1 else ""
    size = f"{counted(len(configs), 'config')} with {counted(args.seeds, 'seed')}"
    console.print(f"{size}: {counted(comparison.total, 'run')}{at_a_time}", soft_wrap=True)
    console.print(f"folder: {folder}", soft_wrap=True)
    if not comparison.run(console, args.jobs, retry_failed=args.retry_failed):
        return 130
    failed = [job for job in comparison.jobs() if trial_log.trials[job.name].status == "failed"]
    for job in failed:
        console.print(f"failed: {job.name}: {trial_log.trials[job.name].reason}", soft_wrap=True)
    conclude(comparison.runs(), folder, console)
    return 1 if failed else 0


def conclude(runs: Mapping[str, Sequence[Run]], folder: Path, console: Console) -> None:
    """The table, the report and the dashboard of what has finished."""
    finished = [run for of_config in runs.values() for run in of_config]
    if not finished:
        return
    from fedlit.report import write_report
    from fedlit.report.dashboard import write_dashboard  # both take their time to import

    console.print(means(runs))
    written = write_report(finished, folder / "report")
    write_dashboard(finished, folder / "dashboard.html")
    console.print(f"report: {written[0] if written else folder / 'report'}", soft_wrap=True)
    console.print(f"dashboard: {folder / 'dashboard.html'}", soft_wrap=True)


def means(runs: Mapping[str, Sequence[Run]]) -> Table:
    """Mean ± standard deviation over the seeds, at the end of the runs; accuracies in percent."""
    from fedlit.report.tables import default_metrics, is_repetition

    finished = [run for of_config in runs.values() for run in of_config]
    measured = {name for run in finished for name in run.metrics}
    usual = [name for name in default_metrics(finished) if not name.endswith(_ONLY_IN_REPORTS) and "/user_" not in name]
    columns = [name for name in usual if name in measured and not is_repetition(finished, name)]
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("config", overflow="fold")
    table.add_column("seeds", justify="right")
    for name in columns:
        percent = " %" if metric(name).unit == "share" else ""
        table.add_column(f"{metric(name).label}{percent}".replace(" ", "\n"), justify="right", overflow="fold")
    for config, of_config in runs.items():
        table.add_row(config, str(len(of_config)), *(mean_text(name, of_config) for name in columns))
    return table


def mean_text(name: str, runs: Sequence[Run]) -> str:
    """`83.42 ± 0.61`; without a spread where there is one seed, a dash where there is none."""
    from fedlit.report.tables import deviation, mean

    values = [value for run in runs if (value := run.final(name)) is not None]
    if not values:
        return "-"
    factor, digits = (100, 2) if metric(name).unit == "share" else (1, 4)
    spread = f" ± {factor * deviation(values):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * mean(values):.{digits}f}{spread}"
