"""Runs read back from their folders, for tables, figures, the dashboard and comparisons.

A run is what `fit` left in a folder, finished or not. `groups.py` puts runs together; its public names are here too.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlit.errors import ConfigError, RunError
from fedlit.metrics.catalogue import MEASURES, STATES, ShownState, declare, declare_measure, first_measure, measures_in
from fedlit.metrics.measures import Measure, unknown
from fedlit.results.config_file import flatten, read_config, result_settings
from fedlit.results.consistency import check_consistent
from fedlit.results.folder import RunFolder
from fedlit.results.groups import SEEDS, Group, group_runs, mixed, named_data
from fedlit.results.records import read_clients, read_metrics

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]  # pyarrow ships no types

__all__ = [
    "SEEDS",
    "SERVER_COLUMNS",
    "Group",
    "Run",
    "declare_states",
    "dotted",
    "find_runs",
    "group_runs",
    "mixed",
    "named_data",
    "plain_settings",
    "read_json",
    "read_run",
    "read_servers",
]
log = logging.getLogger("fedlit")

SERVERS = "servers.parquet"
SERVER_COLUMNS = (
    *("round", "server", "time_s", "rounds", "start_s", "finish_s", "waited_s"),
    *("distance", "clients", "stepped"),
)
"""Columns of servers.parquet, beside that of the first measure; docs/metrics.md says what they mean."""


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path
    settings: dict[str, Any]
    """The settings that decide its results, by dotted name: `trainer.clients_per_round`, `model.lr`, `data.alpha`, …"""
    rounds: list[int]
    rows: list[dict[str, float]]
    """The metrics of each of these rounds; a metric that was not measured is absent."""
    summary: dict[str, Any]
    """summary.json; empty while the run is unfinished."""
    partition: dict[str, Any]
    """partition.json: who holds which samples."""

    @property
    def algorithm(self) -> str:
        """The client's class: `FedBC`."""
        return str(self.settings["model"])

    @property
    def data(self) -> str:
        """The data module's class: `Synthetic`."""
        return str(self.settings["data"])

    @property
    def seed(self) -> tuple[int, int]:
        """(seed of the run, seed of the data): runs with the same one are paired."""
        seed = self.settings.get("seed_everything") or self.settings.get("trainer.seed")  # the latter: from Python
        return int(seed or 0), int(self.settings.get("data.seed") or 0)

    @property
    def finished(self) -> bool:
        """Whether the run reached its last round."""
        return bool(self.summary.get("finished"))

    @property
    def written(self) -> int:
        """When its last row was written, in nanoseconds since 1970."""
        return RunFolder(self.path).metrics.stat().st_mtime_ns

    @property
    def partition_hash(self) -> str | None:
        """Equal for runs that had the same clients with the same samples."""
        return self.partition.get("hash")

    @property
    def metrics(self) -> list[str]:
        """Names of everything that was measured at least once, in the order of metrics.csv."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def measures(self) -> list[Measure]:
        """The measures of its task; it is judged by the first."""
        return measures_in(self.metrics) or [first_measure(())]

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """(rounds, values) of one metric, where it was measured."""
        known = [(r, row[name]) for r, row in zip(self.rounds, self.rows, strict=True) if name in row]
        return [r for r, _ in known], [value for _, value in known]

    def final(self, name: str, last: int = 1) -> float | None:
        """The metric at the end of the run: the mean of its `last` newest values, or None if it was never measured."""
        _, values = self.series(name)
        newest = values[-last:]
        return sum(newest) / len(newest) if newest else None

    @cached_property
    def clients(self) -> "pyarrow.Table":
        """One row per user and evaluated round; RunError where there are none, or where they are damaged."""
        return self._records(newcomers=False)

    def _records(self, *, newcomers: bool) -> "pyarrow.Table":
        try:
            return read_clients(self.path, newcomers=newcomers)
        except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
            why = " ".join(str(error).split())
            raise RunError(
                f"The client records in {self.path} cannot be read ({why}). Delete clients.parquet there, or the "
                "damaged one of the files in clients/, which hold the same rows."
            ) from error

    @cached_property
    def newcomers(self) -> "pyarrow.Table":
        """One row per newcomer and round after which they were measured; none in a run that held nobody back."""
        return self._records(newcomers=True)

    @cached_property
    def servers(self) -> "pyarrow.Table":
        """One row per server and evaluated round; RunError where there are none, or where they are damaged."""
        return read_servers(self.path)


def read_run(folder: Path) -> Run:
    """One run, or a RunError that says what is missing."""
    files = RunFolder(folder)
    if not files.config.is_file():
        raise RunError(
            f"{folder} is not a run folder: it has no config.yaml. Give a folder that 'fedlit fit' has written."
        )
    rows = read_metrics(files.metrics)
    if not any(row["round"] >= 1 for row in rows):
        raise RunError(f"{folder} has no finished round. Continue it with 'fedlit fit … --resume', or leave it out.")
    rounds = [int(row.pop("round")) for row in rows]
    settings = plain_settings(read_settings(files.config))
    summary = read_json(files.summary)
    check_consistent(files, rounds, rows, summary)
    declare_states(summary, files.summary)
    run = Run(folder, settings, rounds, rows, summary, read_json(files.partition))
    check_seeds(run)
    return run


def check_seeds(run: Run) -> None:
    """RunError where the seeds or the hash of the partition are not what fedlit writes."""
    try:
        is_right = min(run.seed) >= 0
    except (TypeError, ValueError):
        is_right = False
    if not is_right:
        raise RunError(f"{run.path / 'config.yaml'} has a seed that is not a whole number. Restore it.")
    if not isinstance(run.partition_hash, str | None):
        raise RunError(f"{run.path / 'partition.json'} has a hash that is not a text. Restore it, or delete the file.")


def read_servers(folder: Path) -> "pyarrow.Table":
    """servers.parquet of a run with several servers, by round and server."""
    from pyarrow import parquet

    path = folder / SERVERS
    if not path.is_file():
        raise RunError(f"{folder} holds no server records. Give the folder of a run with several servers.")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
        why = " ".join(str(error).split())
        raise RunError(f"{path} cannot be read ({why}). Restore it, or delete it to do without its servers.") from error
    absent = [name for name in SERVER_COLUMNS if name not in table.column_names]
    absent += [] if any(name in MEASURES for name in table.column_names) else ["acc"]
    if absent:
        raise RunError(f"{path} has no column {', '.join(absent)}. Restore it, or delete it to do without its servers.")
    return table.sort_by([("round", "ascending"), ("server", "ascending")])


def declare_states(summary: dict[str, Any], path: Path) -> None:
    """Add the labels of a run's states and measures to the catalogue, unless a class of this process did."""
    try:
        for name, words in summary.get("measures", {}).items():
            declare_measure(Measure(name, rows=unknown, **words))
        states = {name: ShownState(**words) for name, words in summary.get("states", {}).items() if name not in STATES}
        declare(states)
    except (AttributeError, TypeError, ConfigError) as error:
        raise RunError(
            f"{path}: its 'states' or 'measures' cannot be read ({error}). Delete them there, or the file."
        ) from error


def read_settings(path: Path) -> dict[str, Any]:
    """config.yaml of a run; RunError if it is damaged or does not say what was trained on what."""
    config = read_config(path)
    absent = [name for name in ("model", "data") if not config.get(name)]
    if absent:
        raise RunError(f"{path} does not name {' and '.join(absent)}. Restore it, or leave this run out.")
    return config


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file, empty if there is none; RunError if it is damaged."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({error}). Delete it and continue the run with --resume.") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} holds no keys. Delete it and continue the run with --resume.")
    return content


def find_runs(places: Iterable[Path]) -> list[Run]:
    """The runs in these folders, in the order of names: run folders, or folders that hold some at any depth.

    A named run folder must be readable; an unreadable one inside a named folder is left out, and a line says why.
    """
    runs: dict[Path, Run] = {}
    for folder in places:
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder. Give run folders, or a folder that holds some (such as 'runs').")
        if RunFolder(folder).config.is_file():
            runs[folder.resolve()] = read_run(folder)
            continue
        for config in sorted(folder.rglob("config.yaml")):
            try:
                runs[config.parent.resolve()] = read_run(config.parent)
            except RunError as error:
                log.warning(f"left out: {error}")
    if not runs:
        where = ", ".join(str(folder) for folder in places)
        raise RunError(f"There is no run with a finished round in {where}. Run 'fedlit fit' or 'fedlit compare' first.")
    return list(runs.values())


def plain_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a config that decide results, by dotted name."""
    return dotted(result_settings(config))


def dotted(config: dict[str, Any]) -> dict[str, Any]:
    """Settings by their names on the command line: `model` is the class, `model.lr` its option.

    A class that is not fedlit's also gets a `module`: another package's FedAvg is another algorithm.
    """
    flat: dict[str, Any] = {}
    for name, value in flatten(config).items():
        short = ".".join(part for part in name.split(".") if part not in ("init_args", "class_path"))
        module, _, kind = (
            value.rpartition(".") if name.endswith("class_path") and isinstance(value, str) else ("", "", "")
        )
        flat[short] = kind or value
        if module not in ("", "fedlit"):
            flat[f"{short}.module"] = module
    return flat
