"""Trace: recorded seconds, replayed exactly. The file is a table with one row for each round and client:

round,client,seconds
1,0,3.25
1,1,0.75
2,0,4.5
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlit.clock.distributions import Distribution, Seconds
from fedlit.errors import ConfigError, require
from fedlit.keys import Purpose, Rounds
from fedlit.recorded import ReadFromFile, fingerprint_of, require_fingerprint

_HEADER = "round,client,seconds"
_WORD = np.int64(2**31)
"""Bound on round and client numbers of a trace, so that one int64 holds both."""


@dataclass(frozen=True, eq=False)
class Table:
    """The content of a trace file."""

    keys: NDArray[np.int64]
    """(rows,) round · 2³¹ + client, sorted."""
    seconds: Seconds
    """(rows,)"""


@dataclass(frozen=True)
class Trace(Distribution, ReadFromFile):
    """Recorded seconds, replayed exactly: a number for each round and client, whatever the seed.

    The file is CSV with the header `round,client,seconds` and a row for each round and client, in any order. Rounds
    count from 1, as in metrics.csv, and clients from 0. It is read when the first number is asked for.

    Args:
        file: path of the CSV file
        sha256: fingerprint of the file, as config.yaml of a run has it; a file with another one is refused
    """

    file: str
    sha256: str | None = None

    is_recorded = True

    def __post_init__(self) -> None:
        require(bool(self.file), f"Trace.file is empty. Name a CSV file with the columns {_HEADER}.")

    @cached_property
    def table(self) -> Table:
        """The file, read and checked once."""
        return read_trace(self.path, self.sha256)

    @property
    def path(self) -> Path:
        """Where the file is."""
        return Path(self.file).expanduser()

    def known_by(self) -> dict[str, Any]:
        """The file's name and a fingerprint of its content."""
        return {"file": self.file, "sha256": fingerprint_of(content_of(self.path))}

    def expected(self) -> float:
        """The mean of all recorded numbers."""
        return float(self.table.seconds.mean())

    def quantile(self, u: ArrayLike) -> Seconds:
        """The smallest recorded number that at least a share u of the numbers does not exceed."""
        return np.quantile(self.table.seconds, np.asarray(u, dtype=np.float64), method="inverted_cdf")

    def draw(self, seed: int, purpose: Purpose, round: Rounds, clients: ArrayLike, index: int = 0) -> Seconds:
        """(clients,): the recorded numbers, for any seed."""
        return self.lookup(round, clients)

    def lookup(self, round: Rounds, clients: ArrayLike) -> Seconds:
        """(clients,): the recorded numbers; `round` counts from 0, but from 1 in files."""
        table, ids = self.table, np.atleast_1d(np.asarray(clients, dtype=np.int64))
        rounds = np.broadcast_to(np.asarray(round, dtype=np.int64) + 1, ids.shape)
        wanted = rounds * _WORD + ids
        positions = np.minimum(np.searchsorted(table.keys, wanted), len(table.keys) - 1)
        missing = table.keys[positions] != wanted
        if missing.any():
            number = rounds[missing][0]
            raise ConfigError(
                f"The trace {self.file} is too short: round {number} needs {(rounds == number).sum()} numbers, and "
                f"{(missing & (rounds == number)).sum()} of them are not there, first that of client "
                f"{ids[missing][0]}. Record them, run fewer rounds, or use a distribution."
            )
        return table.seconds[positions]


def content_of(path: Path) -> bytes:
    """The bytes of the file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"The trace {path} cannot be read ({error}). Name a CSV file.") from error


def read_trace(path: Path, sha256: str | None = None) -> Table:
    """The table of a file; ConfigError, with file and line, for anything that is wrong with it."""
    content = content_of(path)
    require_fingerprint(content, sha256, f"The trace {path}", "Trace.sha256")
    lines, rows = read_rows(path, content)
    rounds, clients, seconds = rows.T
    require_rows(is_count(rounds) & (rounds >= 1), path, lines, rows, "Rounds are whole numbers from 1 on")
    require_rows(is_count(clients), path, lines, rows, "Clients are whole numbers from 0 on")
    require_rows(np.isfinite(seconds) & (seconds >= 0), path, lines, rows, "Seconds are finite and 0 or more")
    keys = rounds.astype(np.int64) * _WORD + clients.astype(np.int64)
    order = np.argsort(keys, kind="stable")
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[order[1:]] = np.diff(keys[order]) > 0
    require_rows(is_first, path, lines, rows, "This round and client stand above already: keep one of the two")
    return Table(keys[order], seconds[order])


def read_rows(path: Path, content: bytes) -> tuple[list[int], NDArray[np.float64]]:
    """Line numbers of the rows that are not empty, and their (rows, 3) numbers."""
    try:
        header, *texts = content.decode(encoding="utf-8-sig").splitlines() or [""]
    except UnicodeDecodeError as error:
        raise ConfigError(f"The trace {path} cannot be read ({error}). Name a CSV file.") from error
    require(
        header.replace(" ", "") == _HEADER,
        f"The trace {path} begins with '{header[:80]}'. Its first line must be '{_HEADER}'.",
    )
    lines = {number: text for number, text in enumerate(texts, start=2) if text.strip()}
    require(len(lines) > 0, f"The trace {path} has no row below its header, so no number can be taken from it.")
    return list(lines), np.array([numbers_in(path, number, text) for number, text in lines.items()])


def numbers_in(path: Path, line: int, text: str) -> list[float]:
    """The three numbers of a line."""
    try:
        round, client, seconds = (float(cell) for cell in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"The trace {path} has '{text[:80]}' in line {line}. Give three numbers there: {_HEADER}."
        ) from error
    return [round, client, seconds]


def is_count(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each number is whole, not negative, and small enough for a key."""
    are_counts: NDArray[np.bool_] = (values >= 0) & (values < _WORD) & (np.floor(values) == values)
    return are_counts


def require_rows(
    are_good: NDArray[np.bool_], path: Path, lines: list[int], rows: NDArray[np.float64], rule: str
) -> None:
    """Raise ConfigError for the first row that breaks the rule."""
    if not are_good.all():
        bad = int(np.argmin(are_good))
        shown = ",".join(f"{number:g}" for number in rows[bad])
        raise ConfigError(f"The trace {path} has '{shown}' in line {lines[bad]}. {rule}.")
