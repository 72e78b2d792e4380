"""`fedlit list`: what there is, each with a line."""

import argparse
import inspect
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

import fedlit
from fedlit.catalogue import METRICS, SUMMARY_METRICS
from fedlit.client import Client
from fedlit.clock import Distribution
from fedlit.commandline.configs import shipped_configs
from fedlit.data.base import FederatedDataModule
from fedlit.data.partition.base import Partition
from fedlit.errors import ConfigError, nearest
from fedlit.experiments.sweepfile import shipped_sweeps
from fedlit.experiments.tablefile import shipped_tables
from fedlit.server.cloud import Mixing
from fedlit.server.optimizers import ServerOptimizer
from fedlit.server.sampling import Sampler
from fedlit.server.weights import Weighting

KINDS = {
    "algorithms": Client,
    "data": FederatedDataModule,
    "networks": nn.Module,
    "partitions": Partition,
    "samplers": Sampler,
    "weights": Weighting,
    "server_optimizers": ServerOptimizer,
    "mixings": Mixing,
    "distributions": Distribution,
}
"""Name of a list -> what its public classes are."""
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
        known = METRICS | SUMMARY_METRICS
        return {metric: f"{entry.label}: {entry.definition}" for metric, entry in known.items()}
    return {public.__name__: first_line(public) for public in public_classes(KINDS[name])}


def public_classes(kind: type) -> list[type]:
    """fedlit's own classes of a kind, by name, without the kind itself; a client is no network."""
    places = (fedlit, fedlit.clock)  # a distribution of fedlit.clock may have the name of something else in fedlit
    public = dict.fromkeys(getattr(place, name) for place in places for name in sorted(place.__all__))
    own = [one for one in public if inspect.isclass(one) and issubclass(one, kind) and one is not kind]
    return [one for one in own if kind is not nn.Module or not issubclass(one, Client)]


def first_line(documented: type) -> str:
    """Of its docstring."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


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
