"""What a page holds: an index of groups, runs and metrics as plain data, and the numbers of each run as packed text."""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedlit.catalogue import METRICS, RECORD_COLUMNS, metric, state_label
from fedlit.dashboard.packing import packed, spread
from fedlit.errors import RunError
from fedlit.results import Group, Run, group_runs, mixed
from fedlit.run import fingerprint, read_clients

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]  # pyarrow ships no types

log = logging.getLogger("fedlit")

METRIC_VALUES = 1_500_000
"""At most so many values of metrics in one page: 8 MB before compression."""
USER_ROWS = 320_000
"""At most so many rows, client × round, in one page: 15 MB before compression."""


@dataclass(frozen=True)
class Content:
    """The data of one page."""

    index: dict[str, Any]
    """Everything but the numbers, small enough to be read at once."""
    blocks: dict[str, str] = field(default_factory=dict)
    """Packed numbers by the id of the element that holds them: `metrics-<run>`, `users-<run>`."""


def content_of(runs: Sequence[Run]) -> Content:
    """The runs as a page needs them."""
    groups = group_runs(runs)
    names = metric_names(runs)
    content = Content(
        {
            "version": version("fedlit"),
            "made": datetime.now().astimezone().isoformat(timespec="minutes"),
            "remarks": mixed(groups),
            "metrics": [{"name": name, **asdict(metric(name))} for name in names],
            "states": {},
            "groups": [describe_group(group) for group in groups],
            "runs": [],
        }
    )
    shown = dict(zip([run.path for run in runs], run_names(runs), strict=True))
    members = [(number, run) for number, group in enumerate(groups) for run in group.runs]
    for number, run in members:
        add_run(content, run, shown[run.path], number, groups[number], len(members))
    return content


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Everything that any run measured: in the order of the catalogue, then what callbacks declared."""
    measured = dict.fromkeys(name for run in runs for name in run.metrics)
    known = [name for name in METRICS if name in measured]
    return known + [name for name in measured if name not in METRICS]


def describe_group(group: Group) -> dict[str, Any]:
    """A group without its runs; the values of options are texts, as a reader and a filter need them."""
    options = {name: str(value) for name, value in group.options.items() if value is not None}
    return {"label": group.label, "algorithm": group.algorithm, "data": group.data, "options": options}


def run_names(runs: Sequence[Run]) -> list[str]:
    """Each run's folder, relative to the deepest folder that holds them all."""
    if not runs:
        return []
    paths = [run.path.resolve() for run in runs]
    top = Path(os.path.commonpath([path.parent for path in paths]))
    return [path.relative_to(top).as_posix() for path in paths]


def add_run(content: Content, run: Run, name: str, number: int, group: Group, sharers: int) -> None:
    """Add one run of the group with this number; `sharers` runs share the room of the page."""
    key = fingerprint({"run": name})
    kept = add_metrics(content, run, key, METRIC_VALUES // sharers)
    content.index["runs"].append(
        {
            "key": key,
            "name": name,
            "path": str(run.path),
            "title": run_title(run, name, group),
            "group": number,
            "seed": seed_text(run),
            "finished": run.finished,
            "last": run.rounds[-1],
            "rows": len(run.rounds),
            **kept,
            "users": add_users(content, run, key, USER_ROWS // sharers),
        }
    )


def run_title(run: Run, name: str, group: Group) -> str:
    """`FedBC, seed 0`; the folder where a seed occurs twice in the group."""
    unique = sum(other.seed == run.seed for other in group.runs) == 1
    return f"{group.label}, seed {seed_text(run)}" if unique else f"{group.label}, {name}"


def seed_text(run: Run) -> str:
    """The run's seed, with the seed of its data where that is another one than 0."""
    own, data = run.seed
    return f"{own} (data {data})" if data else str(own)


def add_metrics(content: Content, run: Run, key: str, room: int) -> dict[str, Any]:
    """Pack the metrics of a run, at most `room` values; returns how they are to be read."""
    names = run.metrics
    chosen = spread(len(run.rounds), room // max(1, len(names)))
    rows = [run.rows[position] for position in chosen]
    values = np.array([[row.get(name, np.nan) for name in names] for row in rows], dtype=np.float64)
    columns = [("round", np.array(run.rounds)[chosen]), *zip(names, values.T, strict=True)]
    content.blocks[f"metrics-{key}"] = packed(columns)
    return {"kept": len(chosen), "columns": names}


def add_users(content: Content, run: Run, key: str, room: int) -> dict[str, Any] | None:
    """Pack the client records of a run, at most `room` rows; returns how they are to be read, None without any."""
    try:
        table = read_clients(run.path)  # not run.clients, which keeps every table in memory
        rounds = numbers(table, "round").astype(np.int64)
    except (RunError, OSError, ValueError, KeyError) as error:  # pyarrow's errors of a damaged file are ValueErrors
        log.warning(f"{run.path}: without its clients, whose records cannot be read ({error})")
        return None
    evaluated = np.unique(rounds)
    per_round = max(1, len(rounds) // max(1, len(evaluated)))
    kept = evaluated[spread(len(evaluated), room // per_round)]
    wanted = np.isin(rounds, kept)
    groups, columns = user_columns(table.filter(wanted))
    content.index["states"] |= {name: state_label(name) for name in columns if name not in RECORD_COLUMNS}
    content.blocks[f"users-{key}"] = packed(columns.items())
    return {
        "columns": list(columns),
        "groups": groups,
        "rounds": kept.tolist(),
        "starts": [*np.searchsorted(rounds[wanted], kept).tolist(), int(wanted.sum())],
        "evaluated": len(evaluated),
    }


def user_columns(table: "pyarrow.Table") -> tuple[list[str], dict[str, NDArray[np.generic]]]:
    """The names of client groups, and the columns that hold anything; `group` is a position among those names."""
    import pyarrow

    columns: dict[str, NDArray[np.generic]] = {}
    groups: list[str] = []
    for name in table.column_names:
        if name == "group":
            encoded = table[name].combine_chunks().fill_null("").dictionary_encode()
            groups = encoded.dictionary.to_pylist()
            if groups != [""]:
                columns[name] = encoded.indices.to_numpy()
        elif name != "round" and pyarrow.types.is_primitive(table.schema.field(name).type):
            values = numbers(table, name)
            if not np.isnan(values).all():
                columns[name] = values
    return groups, columns


def numbers(table: "pyarrow.Table", name: str) -> NDArray[np.float64]:
    """One column, NaN where it is empty."""
    return np.asarray(table[name].to_numpy(), dtype=np.float64)
