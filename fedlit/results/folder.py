"""The run folder: names of its files, and writing them so that a kill loses nothing. `records.py` reads them back.

Whole files are replaced (`fedlit/files.py`); metrics.csv grows by one line in one system call. A checkpoint is written
by a function that the caller passes, so torch is not needed here.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from numpy.typing import ArrayLike

from fedlit.errors import RunError, explained, require
from fedlit.files import remove, sync, write_bytes, write_text, writing
from fedlit.results.client_parts import ClientParts, encoded, joined
from fedlit.results.events import Recorded, event_line
from fedlit.results.growing_file import GrowingFile
from fedlit.results.lock import FolderLock

_DTYPES = {"round": "int64", "client": "int64", "size": "int64", "group": "str"}  # any other column: float64


class RunFolder:
    """The files of one run, written so that a kill at any moment loses nothing that a checkpoint needs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.csv"
        self.events = path / "events.jsonl"
        self.clients_dir = path / "clients"
        self.clients = path / "clients.parquet"
        self.servers = path / "servers.parquet"
        self.summary = path / "summary.json"
        self.partition = path / "partition.json"
        self.partition_picture = path / "partition.png"
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.ckpt"
        self.previous = self.checkpoints / "previous.ckpt"
        self.best = self.checkpoints / "best.ckpt"
        self.frozen = self.checkpoints / "frozen.pt"
        self.adapter = path / "adapter_config.json"
        self.log = path / "log.txt"
        self._lock = FolderLock(path, "--run DIR")
        self._columns: list[str] = []  # of metrics.csv, `round` first
        self._rows = GrowingFile(self.metrics)
        self._events = GrowingFile(self.events)
        self._run = ""  # names the run in events.jsonl
        self._evaluated: list[dict[str, np.ndarray]] = []  # client records not yet on disk, one entry per round
        self.parts = ClientParts(self.clients_dir)

    def holds_run(self) -> bool:
        """Whether a run was started here before."""
        with explained(self.path):
            return any(path.exists() for path in (self.config, self.metrics, self.last))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder and lock it against other runs; RunError names the one that has it."""
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.take()
        try:
            yield
        finally:
            self._lock.give_back()

    @property
    def is_claimed(self) -> bool:
        """Whether this run may write in the folder."""
        return self._lock.is_held

    @property
    def was_not_left(self) -> bool:
        """Whether a run is still writing in the folder, or was killed there."""
        return self._lock.path.exists()

    def create(self, config: dict[str, Any]) -> None:
        """Make the folders and write config.yaml; RunError if that is not possible."""
        with explained(self.path):
            for folder in (self.path, self.clients_dir, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
        write_text(self.config, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))

    def clear(self) -> None:
        """Remove the files that fedlit wrote, and nothing else.

        Checkpoints are removed first and config.yaml last: after a kill in between, the folder still counts as a run,
        but cannot be resumed with half of its records.
        """
        with explained(self.path):
            remove(self.last, self.previous, self.best, self.frozen, self.adapter)
            self.drop_rows()
            self.drop_clients_after(-1)
            remove(
                *(self.metrics, self.events, self.servers, self.summary, self.partition, self.partition_picture),
                *(self.log, self.config),
            )

    # whole files

    def write_partition(self, described: dict[str, Any]) -> None:
        """Write partition.json; for more than 10,000 clients without spaces, which takes a tenth of the time."""
        many = described["num_clients"] > 10_000
        text = json.dumps(described, separators=(",", ":")) if many else json.dumps(described, indent=2)
        write_text(self.partition, text + "\n")

    def rotate_checkpoint(self, write: Callable[[Path], object]) -> None:
        """Write a new last.ckpt; the old one becomes previous.ckpt. last.ckpt is complete at every instant."""
        for file in (self._rows, self._events):
            file.sync()  # no checkpoint may be newer than the rows that resume keeps
        with writing(self.last) as tmp:
            write(tmp)
            sync(tmp)  # the old previous.ckpt is given up only once the new checkpoint is on the disk
            if self.last.exists():
                with writing(self.previous) as copy:
                    _duplicate(self.last, copy)

    def drop_rows(self, keep: Iterable[Path | None] = ()) -> None:
        """Remove files with rows of clients, except those that a checkpoint needs."""
        with explained(self.checkpoints):
            remove(*(path for path in self.checkpoints.glob("rows-*.bin") if path not in keep))

    # metrics.csv

    def start_metrics(self, columns: list[str], rows: Iterable[Mapping[str, float]]) -> None:
        """Write metrics.csv anew with these rows (at resume: those up to the checkpoint) and keep it open."""
        self.close()
        self._columns = ["round", *columns]
        header = ",".join(self._columns) + "\n"
        if header.count(",") + 1 != len(set(self._columns)) or header.count("\n") != 1:
            raise RunError(f"{self.metrics} cannot hold {columns}. Name each metric once, without comma or line end.")
        self._rows.start([header, *(self._line(row) for row in rows)])

    def append_metrics(self, round: int, values: Mapping[str, float]) -> None:
        """Append the row of one round: a missing column stays empty, an unknown one is an error."""
        self._rows.append(round, self._line({"round": round, **values}))

    def _line(self, row: Mapping[str, float]) -> str:
        unknown = sorted(row.keys() - set(self._columns))
        if unknown:
            raise RunError(
                f"{self.metrics} has no column for {', '.join(unknown)}: its columns are fixed when a run starts. "
                "Name every metric at the start, or begin a new run with --overwrite or --run DIR."
            )
        return ",".join(_format(row[name]) if name in row else "" for name in self._columns) + "\n"

    # events.jsonl

    def start_events(self, recorded: Recorded, rounds: Iterable[Mapping[str, Any]]) -> None:
        """Write events.jsonl anew with these rounds (at resume: those up to the checkpoint) and keep it open."""
        self._run = recorded.run
        self._events.start([event_line(recorded.plain()), *(event_line(plain, self._run) for plain in rounds)])

    def append_event(self, round: int, plain: Mapping[str, Any]) -> None:
        """Append what happened in one round."""
        self._events.append(round, event_line(plain, self._run))

    # client records

    def append_clients(self, round: int, columns: Mapping[str, ArrayLike]) -> None:
        """Keep copies of one evaluated round until the next flush: columns of equal length, one of them `client`."""
        rounds = np.full(np.size(columns["client"]), round, dtype=np.int64)
        copies = {name: np.array(values, _DTYPES.get(name, "float64")) for name, values in columns.items()}
        self._evaluated.append({"round": rounds} | copies)

    def forget_after(self, round: int) -> None:
        """Drop what an unfinished round wrote: its row of metrics.csv, its event, and its client records in memory."""
        self._evaluated = [columns for columns in self._evaluated if (columns["round"] <= round).all()]
        with ExitStack() as steps:  # each, even if the other cannot
            for file in (self._rows, self._events):
                steps.callback(file.forget_after, round)

    def flush_clients(self) -> None:
        """Write the client records in memory as one part; to be called before every checkpoint."""
        import pyarrow  # type: ignore[import-untyped]  # pyarrow ships no types

        filled = [columns for columns in self._evaluated if len(columns["round"])]
        if filled:
            tables = [pyarrow.table(columns) for columns in filled]
            self.parts.add(pyarrow.concat_tables(tables, promote_options="default"))
        self._evaluated = []

    def drop_clients_after(self, round: int, parts: Mapping[str, Any] | None = None) -> None:
        """Remove the client records of later rounds, which a resumed run makes again.

        clients.parquet is removed too: the parts have its rows, and readers would prefer it to them.

        Args:
            round: of the checkpoint.
            parts: the checkpoint's entry about the parts.
        """
        with explained(self.clients_dir):
            remove(self.clients, *self.clients_dir.glob("*.parquet.tmp"))
            self.parts.keep_until(round, parts)

    def finish_clients(self) -> None:
        """Join all parts into clients.parquet, sorted by round and client; the parts stay for a later resume."""
        self.flush_clients()
        with explained(self.clients_dir):
            tables = self.parts.tables()
        if tables:
            write_bytes(self.clients, encoded(joined(tables)))

    def write_servers(self, columns: Mapping[str, np.ndarray]) -> None:
        """Write servers.parquet anew: its rows are few, and every checkpoint holds them."""
        import pyarrow

        write_bytes(self.servers, encoded(pyarrow.table(dict(columns))))

    def close(self) -> None:
        """Close growing files; client records that were not flushed belong to no checkpoint and are not written."""
        for file in (self._rows, self._events):
            file.close()


def run_name(data: str, algorithm: str, seed: int, fingerprint: str) -> str:
    """The default name of a run folder: `<data>-<algorithm>-<seed>-<short hash>`."""
    return f"{data}-{algorithm}-{seed}-{fingerprint}".lower()


def fingerprint(config: Mapping[str, Any]) -> str:
    """Eight hex digits that depend on the content of the mapping, not on the order of its keys."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def make_folder(folder: Path, option: str) -> None:
    """Make a folder that can be written; RunError says what prevents it and which option chooses another."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made a folder ({error.strerror}). Choose another with {option}.") from error
    if not os.access(folder, os.W_OK):
        raise RunError(f"{folder} is read-only for this user. Make it writable, or choose another with {option}.")


def check_writable(file: Path, option: str) -> None:
    """Check, before minutes of work, that its output file can be written."""
    require(
        file.parent.is_dir() and os.access(file.parent, os.W_OK) and not file.is_dir(),
        f"{option} {file} cannot be written. Give the name of a file in a folder that exists and is writable.",
    )


@contextmanager
def chosen_by(option: str, path: Path) -> Iterator[None]:
    """Around a command's writing: an error names the option that chooses another place.

    The errors of a RunFolder name --run and --resume, which such a command does not have.
    """
    try:
        yield
    except (OSError, RunError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise RunError(
            f"{path} cannot be written ({cause.strerror or cause}). Choose another place with {option}."
        ) from error


def _duplicate(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # some file systems have no hard links
        shutil.copyfile(source, target)


def _format(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))
