"""What a run folder holds of each round and client, read back: metrics.csv, and the client records."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlit.errors import RunError
from fedlit.metrics.catalogue import NEWCOMER
from fedlit.results.client_parts import joined, parts_in, read_part
from fedlit.results.folder import RunFolder

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]  # pyarrow ships no types

_INT = re.compile(r"-?\d+")


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv, empty fields left out. A torn last line is dropped, any other bad line is an error."""
    if not path.is_file():
        raise RunError(f"{path} does not exist. Give the folder of a run that has started.")
    *lines, torn = path.read_bytes().decode(errors="replace").split("\n")
    columns = lines[0].split(",") if lines else []
    if columns[:1] != ["round"]:
        raise RunError(f"{path}, line 1: the header does not start with 'round'. Is it the metrics.csv of a run?")
    if len(set(columns)) < len(columns):
        raise RunError(f"{path}, line 1: a column stands twice. Restore the file, or leave this run out.")
    rows: list[dict[str, float]] = []
    for number, line in enumerate(lines[1:], start=2):
        row = _parse(columns, line)
        if row is not None and rows and row["round"] <= rows[-1]["round"]:
            raise RunError(f"{path}, line {number}: round {row['round']} comes after round {rows[-1]['round']}.")
        if row is not None:
            rows.append(row)
        elif torn or number < len(lines):
            raise RunError(
                f"{path}, line {number}: {line[:80]!r} is not a row of {len(columns)} numbers. "
                "The file was changed by something else: repair or delete that line."
            )
    return rows


def read_clients(folder: Path, *, newcomers: bool = False) -> "pyarrow.Table":
    """The records of the users of a run folder by round and client, or those of its newcomers, who were held back."""
    from pyarrow import compute

    table = all_records(folder)
    if NEWCOMER not in table.column_names:
        return table.slice(0, 0) if newcomers else table
    return table.filter(compute.field(NEWCOMER) == int(newcomers)).drop_columns([NEWCOMER])


def all_records(folder: Path) -> "pyarrow.Table":
    """All client records of a run folder: clients.parquet, or the parts of an unfinished run."""
    run = RunFolder(folder)
    if run.clients.exists():
        return checked_records(run.clients, read_part(run.clients))
    parts = parts_in(run.clients_dir)
    if not parts:
        raise RunError(f"{folder} holds no client records. Give the folder of a run that has evaluated its clients.")
    return joined([read_part(part.path) for part in parts])


def checked_records(path: Path, table: "pyarrow.Table") -> "pyarrow.Table":
    """The table; ValueError where its columns are not those of client records."""
    from pyarrow import types

    absent = [name for name in ("round", "client") if name not in table.column_names]
    if absent:
        raise ValueError(f"{path.name} has no column {', '.join(absent)}")
    for field in table.schema:
        is_right = types.is_string if field.name == "group" else _is_number
        if not is_right(field.type):
            raise ValueError(f"{path.name} has a column {field.name[:40]!r} of {field.type}")
    return table


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind))


def _parse(columns: list[str], line: str) -> dict[str, float] | None:
    """The row in a line, or None if the line is not a row."""
    try:
        fields = zip(columns, line.split(","), strict=True)
        row = {name: int(text) if _INT.fullmatch(text) else float(text) for name, text in fields if text}
    except ValueError:  # not a number, or not as many as there are columns
        return None
    return row if _is_round(row.get("round")) else None


def _is_round(value: float | None) -> bool:
    return isinstance(value, int) and 0 <= value < 2**53
