"""Searches over hyper-parameters, read off the folders that `fedlit sweep` and `fedlit reproduce` write."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlit.errors import ConfigError, RunError
from fedlit.metrics.formatting import counted
from fedlit.results.runs import Group, Run, read_json, read_run

log = logging.getLogger("fedlit")

RECORDS = ("sweep.json", "reproduce.json")
"""What the two commands write beside the folders of their runs."""


@dataclass(frozen=True)
class Search:
    """What was tried for an algorithm."""

    folder: Path
    searched: Mapping[str, str]
    """Dotted name of a setting -> the values or the range that were tried."""
    trials: frozenset[str]
    """Folders of the runs that were made to choose."""
    chosen: str | None = None
    """The one of them that a sweep found to be best."""
    told: str = ""
    """How it was searched, in a sentence without a subject."""


@dataclass(frozen=True)
class Record:
    """A record of a sweep or of a table."""

    folder: Path
    about: Mapping[str, Any]
    trials: Sequence[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_sweep(self) -> bool:
        """Whether all of its runs are trials of one search."""
        return "parameters" in self.about

    def search_of(self, run: str) -> Search | None:
        """The search behind the run in this folder; None where the record does not know it."""
        known = next((trial for trial in self.trials if trial.get("run") == run), None)
        if known is None:
            return None
        return self.sweep() if self.is_sweep else self.of_row(row_of(known))

    def sweep(self) -> Search:
        """All trials of a sweep."""
        metric, goal = self.about["metric"]
        finished = [one for one in self.trials if one.get("status") == "finished" and one.get("value") is not None]
        best = (max if goal == "maximize" else min)(finished, key=lambda one: float(one["value"]), default=None)
        ranges = {plain_name(name): range_text(keys) for name, keys in self.about["parameters"].items()}
        searched = {name: text for name, text in ranges.items() if text is not None}
        names = frozenset(str(one["run"]) for one in self.trials)
        how = f"{self.about['method']} search of {counted(len(self.trials), 'trial')}, ranked by {metric}"
        return Search(self.folder, searched, names, str(best["run"]) if best else None, how)

    def of_row(self, row: str) -> Search:
        """The runs that chose the values of a table's row, in any of its columns."""
        trials = [one for one in self.trials if row_of(one) == row and one.get("parameters", {}).get("searched")]
        tried: dict[str, dict[str, None]] = {}
        for one in trials:
            for name, value in one["parameters"].items():
                if name not in ("cell", "searched"):
                    tried.setdefault(plain_name(name), {})[value_text(value)] = None
        searched = {name: ", ".join(values) for name, values in tried.items()}
        how = f"{counted(len(trials), 'run')} of the search of {self.about.get('table', 'the table')}" if trials else ""
        return Search(self.folder, searched, frozenset(str(one["run"]) for one in trials), None, how)


def row_of(trial: Mapping[str, Any]) -> str:
    """`FedBC` of the cell `FedBC:C=1 s=1.1`."""
    return str(trial.get("parameters", {}).get("cell", "")).partition(":")[0]


def plain_name(name: str) -> str:
    """A dotted name as in a run's settings: without `init_args` in between."""
    return ".".join(part for part in name.split(".") if part != "init_args")


def range_text(keys: Mapping[str, Any]) -> str | None:
    """A parameter of a sweep in words; None for one that is the same in all trials."""
    if "values" in keys:
        return ", ".join(value_text(value) for value in keys["values"])
    if "min" not in keys:
        return None
    ends = f"{value_text(keys['min'])} to {value_text(keys['max'])}"
    steps = f" in steps of {value_text(keys['q'])}" if "q" in keys else ""
    return f"{ends}{steps}{', logarithmic' if 'log' in str(keys.get('distribution')) else ''}"


def value_text(value: Any) -> str:
    """`0.01`, `1e-7`: a number without zeros that say nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:.6g}".replace("e-0", "e-").replace("e+0", "e")


def searches_of(groups: Sequence[Group], named: Sequence[Path] = ()) -> dict[str, Search]:
    """Group's label -> the search for its values: in the folder around its runs, else in one of those named."""
    records = {folder: record for folder in folders_of(groups) if (record := read_record(folder)) is not None}
    others = [(record, algorithms_in(record)) for record in map(named_record, named)]
    searches = {}
    for group in groups:
        run = group.runs[0]
        search = records[run.path.parent].search_of(run.path.name) if run.path.parent in records else None
        for record, runs in others:
            if search is None and (members := runs.get((group.algorithm, group.data))):
                search = record.search_of(members)
        if search is not None and search.searched:
            searches[group.label] = search
    return searches


def folders_of(groups: Iterable[Group]) -> set[Path]:
    """The folders around the runs."""
    return {run.path.parent for group in groups for run in group.runs}


def read_record(folder: Path) -> Record | None:
    """The record in a folder; None without one, and, with a line, where it is damaged."""
    try:
        for name in RECORDS:
            if (folder / name).is_file():
                content = read_json(folder / name)
                record = Record(folder, content["about"], content["trials"])
                for trial in record.trials:
                    record.search_of(str(trial["run"]))  # whatever is wrong with it is known now
                return record
    except (RunError, KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning(f"{folder}: without its search, whose record cannot be read ({error})")
    return None


def named_record(folder: Path) -> Record:
    """The record in a folder that a user named."""
    record = read_record(folder)
    if record is None:
        raise ConfigError(
            f"--search {folder} holds no search that can be read. Give a folder of 'fedlit sweep' or 'fedlit "
            f"reproduce', with {' or '.join(RECORDS)} in it."
        )
    return record


def algorithms_in(record: Record) -> dict[tuple[str, str], str]:
    """(algorithm, data) -> the folder of a run of the search with them, as far as its runs are still there."""
    algorithms: dict[tuple[str, str], str] = {}
    for trial in record.trials:
        run = readable_run(record.folder / str(trial["run"]))
        if run is not None:
            algorithms.setdefault((run.algorithm, run.data), str(trial["run"]))
    return algorithms


def readable_run(folder: Path) -> Run | None:
    """A run, None where its folder is gone or damaged."""
    try:
        return read_run(folder)
    except RunError:
        return None
