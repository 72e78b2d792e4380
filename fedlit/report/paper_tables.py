"""The papers' tables: CSV files that ship with the package, or a user's own, read as rows of one number each.

One rule for units: tables give shares in percent. A value of a metric whose unit is `share` is divided by 100, one in
`share²` by 10,000, any other (rounds, seconds) is taken as it is.
"""

import csv
import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlit.errors import ConfigError, nearest
from fedlit.metrics.catalogue import metric

FOLDER = Path(__file__).parent / "papers"
_PERCENT = {"share": 100.0, "share²": 10_000.0}


@dataclass(frozen=True)
class PaperRow:
    """One number of a table."""

    line: int
    """Of the CSV file."""
    fields: dict[str, str]
    """All columns but mean and std; empty ones are left out."""
    mean: float
    std: float | None


@dataclass(frozen=True)
class PaperTable:
    """One table of a paper."""

    name: str
    rows: Sequence[PaperRow]
    is_shipped: bool = True
    """Not a user's own."""


def shipped_tables() -> list[str]:
    """Names of the tables that ship with fedlit."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def read_table(name: str) -> PaperTable:
    """A table by its name, or a user's CSV file by its path; ConfigError with the names there are."""
    shipped = shipped_tables()
    if name in shipped:
        return read_csv(FOLDER / f"{name}.csv")
    if Path(name).is_file():
        return read_csv(Path(name))
    begin = [known for known in shipped if letters(known).startswith(letters(name))]
    beginnings = {known[: len(name)]: known for known in reversed(shipped)}
    near = difflib.get_close_matches(name, beginnings, n=1)
    likely = begin or [beginnings[close] for close in near]
    meant = f"Did you mean '{likely[0]}'? " if likely else nearest(name, shipped)
    raise ConfigError(
        f"--against {name} is neither a file nor a table that fedlit ships. {meant}Tables: {', '.join(shipped)}."
    )


def letters(name: str) -> str:
    """A name without what people write differently: `FedBC_table_2` as `fedbctable2`."""
    return re.sub(r"[\W_]", "", name).lower()


def read_csv(path: Path) -> PaperTable:
    """The rows of a CSV file with the columns algorithm (or backbone), metric, mean, and std where it is known."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or [])
            check_columns(path, columns)
            rows = [read_row(path, reader.line_num, fields) for fields in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is not a CSV file ({error}). Save it as UTF-8 text with commas.") from error
    if not rows:
        raise ConfigError(f"{path} has no row below its header. Give at least one: algorithm,metric,mean,std.")
    return PaperTable(path.stem, rows, is_shipped=path.parent == FOLDER)


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """What cannot be done without."""
    needed = ["metric", "mean"] if path.parent == FOLDER else ["algorithm", "metric", "mean"]
    absent = [name for name in needed if name not in columns]
    if absent:
        raise ConfigError(
            f"{path}, line 1: there is no column {' and no column '.join(absent)}. A table has the columns algorithm, "
            "metric, mean and, if known, std; others are compared with the runs' settings."
        )


def read_row(path: Path, line: int, fields: dict[str, str | None]) -> PaperRow:
    """One row, or an error that names its line."""
    texts = {name: (text or "").strip() for name, text in fields.items() if isinstance(name, str)}
    try:
        mean = float(texts.pop("mean"))
        std = texts.pop("std", "")
        spread = float(std) if std else None
        if not math.isfinite(mean) or not math.isfinite(spread or 0):
            raise ValueError("NaN or infinite")
        return PaperRow(line, {name: text for name, text in texts.items() if text}, mean, spread)
    except ValueError as error:
        raise ConfigError(f"{path}, line {line}: mean and std must be numbers ({error}).") from error


def in_our_unit(name: str, value: float) -> float:
    """A table's number in the unit of our metric: shares are given in percent."""
    return value / _PERCENT.get(metric(name).unit, 1.0)
