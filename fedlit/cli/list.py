"""`fedlit list`: what there is, each with a line."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedlit.cli.class_sources import Place, ancestors, exported, first_line
from fedlit.config.files import shipped_configs, shipped_sweeps, shipped_tables
from fedlit.errors import ConfigError, nearest
from fedlit.metrics.catalogue import METRICS, MIN_MAX_METRICS, SHIPPED_MEASURES, SUMMARY_METRICS
from fedlit.metrics.measures import ACCURACY

KINDS = {
    "algorithms": Place("fedlit.client.base", "Client"),
    "data": Place("fedlit.data.base", "FederatedDataModule"),
    "networks": Place("torch.nn", "Module"),
    "partitions": Place("fedlit.data.partition.base", "Partition"),
    "samplers": Place("fedlit.server.sampling", "Sampler"),
    "weights": Place("fedlit.server.weights", "Weighting"),
    "server_optimizers": Place("fedlit.server.optimizers", "ServerOptimizer"),
    "mixings": Place("fedlit.server.cloud", "Mixing"),
    "distributions": Place("fedlit.clock.distributions", "Distribution"),
}
"""Name of a list -> what its public classes are built on."""
FILES = {"configs": shipped_configs, "sweeps": shipped_sweeps, "tables": shipped_tables}
LISTS = (*KINDS, *FILES, "metrics")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fedlit list`."""
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join(LISTS)}; all unless given")


def main(args: argparse.Namespace) -> int:
    """Print the lists; returns the exit code."""
    for name in args.what:
        if name not in LISTS:
            raise ConfigError(f"There is no list of '{name}'. {nearest(name, LISTS)}Lists: {', '.join(LISTS)}.")
    console = Console()
    for name in args.what or LISTS:
        console.print(table(name, entries(name)))
        console.print()
    return 0


def entries(name: str) -> dict[str, str]:
    """Name -> its line."""
    if name in FILES:
        return {file: first_comment(path) for file, path in FILES[name]().items()}
    if name == "metrics":
        known = METRICS | SUMMARY_METRICS | MIN_MAX_METRICS
        others = [measure for measure in SHIPPED_MEASURES if measure is not ACCURACY]
        return {metric: f"{entry.label}: {entry.definition}" for metric, entry in known.items()} | {
            f"*/{measure.name}": f"{measure.label}: the same names with {measure.name} for acc, where the task has it"
            for measure in others
        }
    return {public.name: first_line(public) for public in public_classes(KINDS[name])}


def public_classes(kind: Place) -> list[Place]:
    """fedlit's own classes of a kind, by name."""
    modules = ("fedlit", "fedlit.clock")  # Uniform of fedlit.clock has the name of something else in fedlit
    public = dict.fromkeys(place for module in modules for place in exported(module))
    return [place for place in public if kind in ancestors(place)]


def first_comment(path: Path) -> str:
    """The line with which a config, a sweep or a table begins."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def table(name: str, lines: dict[str, str]) -> Table:
    """Names beside their lines."""
    grid = Table(title=name.replace("_", " "), title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    for entry, line in lines.items():
        grid.add_row(Text(entry), Text(line))
    return grid
