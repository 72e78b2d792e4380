"""Client records in parts: clients/<first>-<last>.parquet, the rounds between two checkpoints in each.

A part names the run that wrote it, and a checkpoint holds the checksums of all parts before it. A resumed run checks
its parts before it trains. If one is missing, damaged or of another run, a line says that its rows are lost, and the
run goes on.
"""

import logging
import os
import re
import secrets
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedlit.files import write_bytes

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]  # pyarrow ships no types

log = logging.getLogger("fedlit")

_NAME = re.compile(r"(\d{8})-(\d{8})\.parquet")  # first and last round, both included
_RUN = b"fedlit.results.folder"
_SHOWN = 3
"""Most files that a log line names."""


class Part(NamedTuple):
    """A file with the rounds that its name says."""

    first: int
    last: int
    path: Path


def parts_in(folder: Path) -> list[Part]:
    """All files that are named like a part, in order."""
    matches = ((_NAME.fullmatch(path.name), path) for path in sorted(folder.glob("*.parquet")))
    return [Part(int(match[1]), int(match[2]), path) for match, path in matches if match]


class ClientParts:
    """The parts of one run.

    Args:
        folder: of the parts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = secrets.token_hex(8)
        self.checksums: dict[str, int] = {}
        """File name -> checksum, of every part of the run."""

    def state_dict(self) -> dict[str, Any]:
        """The entry of a checkpoint."""
        return {"run": self.run, "checksums": dict(self.checksums)}

    def add(self, table: "pyarrow.Table") -> None:
        """Write the rounds of a table as one part."""
        first, last = table["round"][0].as_py(), table["round"][-1].as_py()
        self._put(self.folder / name_of(first, last), table)

    def keep_until(self, round: int, state: Mapping[str, Any] | None) -> None:
        """At resume: keep the run's parts up to a round, delete its later ones, and set foreign ones aside.

        Args:
            round: of the checkpoint; -1 if there is none.
            state: the checkpoint's entry; None in checkpoints of early versions.
        """
        if state is None:
            self._adopt(round)
            return
        self.run, self.checksums = state["run"], dict(state["checksums"])
        others = [part for part in parts_in(self.folder) if part.path.name not in self.checksums]
        later = [part.path for part in others if part.first > round and self._wrote(part.path)]
        for path in later:
            path.unlink()
        self._sort_out([part.path for part in others if part.path not in later])

    def tables(self) -> list["pyarrow.Table"]:
        """The rows of all undamaged parts."""
        self._sort_out()
        return [read_part(self.folder / name) for name in sorted(self.checksums)]

    def _adopt(self, round: int) -> None:
        """Without an entry in a checkpoint, take every readable part as the run's."""
        aside = []
        for first, last, path in parts_in(self.folder):
            content = content_of(path)
            if content is not None and first > round:
                path.unlink()
            elif content is None or not is_readable(content):
                aside.append(path)
            elif last > round:
                self._cut(path, first, round)
            else:
                self.checksums[path.name] = zlib.crc32(content)
        self._sort_out(aside)

    def _cut(self, path: Path, first: int, round: int) -> None:
        """Remove later rounds from a part. It is replaced, then renamed, so that no row is ever there twice."""
        from pyarrow import compute

        self._put(path, read_part(path).filter(compute.field("round") <= round))
        os.replace(path, self.folder / name_of(first, round))
        self.checksums[name_of(first, round)] = self.checksums.pop(path.name)

    def _put(self, path: Path, table: "pyarrow.Table") -> None:
        content = encoded(table.replace_schema_metadata({_RUN: self.run.encode()}))
        write_bytes(path, content)
        self.checksums[path.name] = zlib.crc32(content)

    def _sort_out(self, foreign: Sequence[Path] = ()) -> None:
        """Check every part of the run; set the damaged ones aside, together with the foreign ones."""
        known = [self.folder / name for name in self.checksums]
        gone = [path for path in known if not path.exists()]
        changed = [path for path in known if path not in gone and not self._is_whole(path)]
        for path in (*gone, *changed):
            del self.checksums[path.name]
        aside = [*changed, *foreign]
        for path in aside:
            set_aside(path)
        facts = [f"{listed(gone)} is gone"] if gone else []
        facts += [f"{listed(aside)} is damaged or of another run, and was set aside as NAME.aside"] if aside else []
        if facts:
            log.warning(f"{self.folder}: {'; '.join(facts)}. clients.parquet lacks what was in there; the run goes on.")

    def _is_whole(self, path: Path) -> bool:
        content = content_of(path)
        return content is not None and zlib.crc32(content) == self.checksums[path.name]

    def _wrote(self, path: Path) -> bool:
        """Whether this run wrote a part that no checkpoint lists."""
        content = content_of(path)
        if content is None or not is_readable(content):
            return False
        return (decoded(content).schema.metadata or {}).get(_RUN) == self.run.encode()


def name_of(first: int, last: int) -> str:
    """The file name of a part with these rounds."""
    return f"{first:08d}-{last:08d}.parquet"


def listed(paths: Sequence[Path]) -> str:
    """A few names, and how many more there are."""
    more = f" (and {len(paths) - _SHOWN} more)" if len(paths) > _SHOWN else ""
    return ", ".join(path.name for path in paths[:_SHOWN]) + more


def set_aside(path: Path) -> None:
    """Rename a file to NAME.aside, or to the next free name of that kind."""
    names = (path.with_name(f"{path.name}.aside{number or ''}") for number in range(10**6))
    path.rename(next(free for free in names if not os.path.lexists(free)))


def content_of(path: Path) -> bytes | None:
    """The bytes of a file, None where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def is_readable(content: bytes) -> bool:
    """Whether these bytes are client records."""
    try:
        return {"round", "client"} <= set(decoded(content).column_names)
    except (OSError, ValueError):  # pyarrow's errors are of these kinds
        return False


def read_part(path: Path) -> "pyarrow.Table":
    """The rows of a part, as they were passed to `add`."""
    return decoded(path.read_bytes()).replace_schema_metadata(None)


def decoded(content: bytes) -> "pyarrow.Table":
    """The table in a parquet file's bytes. No threads: pyarrow hangs if memory does not allow one to start."""
    import pyarrow
    from pyarrow import parquet

    return parquet.ParquetFile(pyarrow.BufferReader(content)).read(use_threads=False)


def encoded(table: "pyarrow.Table") -> bytes:
    """The inverse of `decoded`."""
    import pyarrow
    from pyarrow import parquet

    out = pyarrow.BufferOutputStream()
    parquet.write_table(table, out)
    return bytes(out.getvalue())


def joined(tables: Sequence["pyarrow.Table"]) -> "pyarrow.Table":
    """The rows of all parts by round and client."""
    import pyarrow
    from pyarrow import compute

    table = pyarrow.concat_tables(tables, promote_options="default")  # a column that a part lacks is null there
    order = compute.sort_indices(table, sort_keys=[("round", "ascending"), ("client", "ascending")])
    return table.take(order).combine_chunks()
