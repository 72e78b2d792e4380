"""What a page holds: an index of groups, runs and metrics as plain data, and the numbers of each run as packed text."""

import base64
import logging
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedlit.errors import RunError
from fedlit.metrics.catalogue import MEASURES, METRICS, MODELS, RECORD_COLUMNS, is_record_column, metric, state_label
from fedlit.metrics.measures import Measure
from fedlit.report.colours import DIFFERENT, Look, looks_of
from fedlit.report.dashboard.datasets import DataSet, datasets_of
from fedlit.report.dashboard.ranking import ranks_of
from fedlit.report.finished import finished_alone
from fedlit.results.folder import fingerprint
from fedlit.results.records import read_clients
from fedlit.results.runs import Group, Run, group_runs

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]  # pyarrow ships no types

log = logging.getLogger("fedlit")

METRIC_VALUES = 1_500_000
"""At most so many values of metrics in one page: 8 MB before compression."""
USER_ROWS = 320_000
"""At most so many rows, client × round, in one page: 15 MB before compression."""
TOTALS = {"Σ steps": ("train/steps",), "Σ MB": ("comm/up_mb", "comm/down_mb")}
"""What curves can be drawn against beside round and time: sums since the start, and of which metrics."""
INTEGERS = frozenset({"round", "client", "size", "group"})
"""Columns of whole numbers; every other one is a float, NaN where nothing was measured."""


@dataclass(frozen=True)
class Content:
    """The data of one page."""

    index: dict[str, Any]
    """Everything but the numbers, small enough to be read at once."""
    blocks: dict[str, str] = field(default_factory=dict)
    """Packed numbers by the id of the element that holds them: `metrics-<run>`, `users-<run>`."""


def content_of(runs: Sequence[Run]) -> Content:
    """The runs as a page needs them."""
    datasets = datasets_of(group_runs(runs))
    groups = [group for dataset in datasets for group in dataset.groups]
    runs = [run for group in groups for run in group.runs]
    names = metric_names(runs)
    content = Content(
        {
            "version": version("fedlit"),
            "made": datetime.now().astimezone().isoformat(timespec="minutes"),
            "remarks": remarks_of(datasets),
            "metrics": [{"name": name, **asdict(metric(name))} for name in names],
            "states": {},
            "measures": [words_of(measure) for measure in dict.fromkeys(run.measures[0] for run in runs)],
            "datasets": [dataset.name for dataset in datasets],
            "abouts": {dataset.name: dataset.about for dataset in datasets},
            "groups": [described for dataset in datasets for described in describe_groups(dataset)],
            "runs": [],
        }
    )
    shown = dict(zip([run.path for run in runs], run_names(runs), strict=True))
    members = [(number, run) for number, group in enumerate(groups) for run in group.runs]
    for number, run in members:
        add_run(content, run, shown[run.path], number, groups[number], len(members))
    return content


def remarks_of(datasets: Sequence[DataSet]) -> list[str]:
    """What a reader must know before comparing, and of which data set."""
    if len(datasets) == 1:
        return datasets[0].remarks
    return [f"{dataset.name}: {remark}" for dataset in datasets for remark in dataset.remarks]


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Everything that any run measured: in the order of the catalogue, then what callbacks declared."""
    measured = dict.fromkeys(name for run in runs for name in run.metrics)
    like = {name: like_accuracy(name) for name in measured}
    known = [name for entry in METRICS for name in measured if like[name] == entry]
    return known + [name for name in measured if like[name] not in METRICS]


def like_accuracy(name: str) -> str:
    """The metric of accuracy that stands where this one of another measure belongs; other names stay as they are."""
    measure = next((one for one in MEASURES if one != "acc" and re.search(rf"(/|_){one}(_|$)", name)), None)
    return name if measure is None else re.sub(rf"(/|_){measure}(_|$)", r"\1acc\2", name).replace("_p90", "_p10")


def words_of(measure: Measure) -> dict[str, str]:
    """A measure as the page needs it."""
    return {"name": measure.name, "label": measure.label, "unit": measure.unit, "best": measure.best}


def describe_groups(dataset: DataSet) -> list[dict[str, Any]]:
    """The groups of a data set without their runs. No chart has those of two, so each has the looks it has alone."""
    ranks = ranks_of(finished_alone(dataset.groups))
    looked_up = zip(dataset.groups, looks_for([group.algorithm for group in dataset.groups], ranks), ranks, strict=True)
    return [describe_group(group, dataset.name, look, rank) for group, look, rank in looked_up]


def looks_for(algorithms: Sequence[str], ranks: Sequence[int]) -> list[Look]:
    """A report's looks; where there are more groups than looks, those of a chart's first lines differ all the same."""
    if len(algorithms) <= DIFFERENT:
        return looks_of(algorithms)
    best_first = sorted(range(len(ranks)), key=lambda number: ranks[number])
    looks = looks_of([algorithms[number] for number in best_first])
    return [looks[rank] for rank in ranks]


def describe_group(group: Group, data: str, look: Look, rank: int) -> dict[str, Any]:
    """A group without its runs; the values of options are texts, as a reader and a filter need them."""
    options = {name: str(value) for name, value in group.options.items() if value is not None}
    named = {"label": group.label, "algorithm": group.algorithm, "data": data, "options": options}
    return named | {"look": asdict(look), "rank": rank}


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
            "title": f"{group.label}, seed {seed_text(run)}",
            "group": number,
            "seed": seed_text(run),
            "partition": run.partition_hash,
            "finished": run.finished,
            "last": run.rounds[-1],
            "rows": len(run.rounds),
            **kept,
            "users": add_users(content, run, key, USER_ROWS // sharers),
        }
    )


def seed_text(run: Run) -> str:
    """The run's seed, with the seed of its data where that is another one than 0."""
    seed, data = run.seed
    return f"{seed} (data {data})" if data else str(seed)


def add_metrics(content: Content, run: Run, key: str, room: int) -> dict[str, Any]:
    """Pack the metrics of a run and its totals, at most `room` values; returns how they are to be read."""
    names, totals = run.metrics, totals_of(run)
    chosen = spread(len(run.rounds), room // max(1, len(names) + len(totals)))
    rows = [run.rows[position] for position in chosen]
    values = np.array([[row.get(name, np.nan) for name in names] for row in rows], dtype=np.float64)
    columns = [("round", np.array(run.rounds)[chosen]), *zip(names, values.T, strict=True)]
    content.blocks[f"metrics-{key}"] = packed([*columns, *((name, sums[chosen]) for name, sums in totals.items())])
    return {"kept": len(chosen), "columns": names, "totals": list(totals)}


def totals_of(run: Run) -> dict[str, NDArray[np.float64]]:
    """The sums since the start, by round; only those whose metrics every round has, or a sum would be too small."""
    known = {
        name: parts
        for name, parts in TOTALS.items()
        if all(part in row for round, row in zip(run.rounds, run.rows, strict=True) if round > 0 for part in parts)
    }
    return {
        name: np.cumsum([sum(row.get(part, 0.0) for part in parts) for row in run.rows])
        for name, parts in known.items()
    }


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
    first = run.measures[0]
    columns = {in_page(name, first): values for name, values in columns.items()}
    shown = [name for name in columns if name not in (*RECORD_COLUMNS, *(f"acc_{model}" for model in MODELS))]
    content.index["states"] |= {name: column_label(name) for name in shown}
    content.blocks[f"users-{key}"] = packed(columns.items())
    return {
        "measure": words_of(first),
        "columns": list(columns),
        "groups": groups,
        "rounds": kept.tolist(),
        "starts": [*np.searchsorted(rounds[wanted], kept).tolist(), int(wanted.sum())],
        "evaluated": len(evaluated),
    }


def in_page(name: str, first: Measure) -> str:
    """The first measure's columns have one name in the page, `acc_global` and so on, whatever it is."""
    return name.replace(first.name, "acc", 1) if name in [f"{first.name}_{model}" for model in MODELS] else name


def column_label(name: str) -> str:
    """What the page calls a further number of clients: a state, or another measure."""
    measure, _, model = name.rpartition("_")
    if not is_record_column(name):
        return state_label(name)
    return f"{MEASURES[measure].label} {'under z' if model == 'global' else f'of {model} model'}"


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


def packed(columns: Iterable[tuple[str, NDArray[np.generic]]]) -> str:
    """The columns one after the other, little-endian; js/data.js reads them back."""
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is infinite, which the page leaves out
        raw = b"".join(values.astype(kind_of(name), casting="unsafe").tobytes() for name, values in columns)
    squeeze = zlib.compressobj(wbits=-zlib.MAX_WBITS)  # without header: the browser's "deflate-raw"
    return base64.b64encode(squeeze.compress(raw) + squeeze.flush()).decode("ascii")


def kind_of(name: str) -> str:
    """NumPy's name of the column's type."""
    return "<i4" if name in INTEGERS else "<f4"


def spread(count: int, most: int) -> NDArray[np.int64]:
    """Positions of at most `most` of `count` things, evenly spaced, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, max(2, most)).round().astype(np.int64)
