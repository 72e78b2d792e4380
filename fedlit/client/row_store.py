"""RowStore: whole models of clients in a file, for federations whose rows exceed the memory.

    file     a header that says what a row is made of, then slots of one size, one row in each
    index    client -> slot and checksum; in memory, and in every checkpoint instead of the rows

A row that a checkpoint needs is never overwritten. The new row goes to another slot, and the old slot is reused when
neither last.ckpt nor previous.ckpt needs it. So a checkpoint only syncs the rows written since the one before and saves
the index, and a killed run finds the rows of both checkpoints unchanged. Nothing here knows an algorithm.

SQLite was tried instead (100 rows of 248 KB per round, a commit every 10 rounds). Reading and writing took 1.7 times as
long, and a commit 4 times, since its log holds every row a second time. A database also has only one state, so that
previous.ckpt would need versions of rows there too.
"""

import json
import os
import secrets
import struct
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlit.client.row_layout import RowLayout
from fedlit.errors import DamagedRowsError, RunError, explained
from fedlit.files import write_bytes
from fedlit.params import Params
from fedlit.ranks import Ranks

_MAGIC = b"fedlitR1"
_HEAD = struct.Struct("<8sII")  # magic, length and checksum of the layout that follows as JSON
_PAGE = 4096
CHUNK = 256
"""Rows per read when all rows are read."""


class Place(NamedTuple):
    """Where a client's row is in the file."""

    slot: int
    checksum: int
    era: int
    """How many checkpoints had been begun when the row was written; only later ones need it."""


class RowStore:
    """Rows of clients in a file. `discard` undoes the last `write` until `commit` makes it final.

    With several processes on one machine the first one writes, and the others read the same file.

    Args:
        path: the file.
        layout: what a row is made of.
        ranks: the processes that share it.
    """

    def __init__(self, path: Path, layout: RowLayout, ranks: Ranks) -> None:
        self.path = path
        self.layout = layout
        self.ranks = ranks
        self._fd = self._open(os.O_RDONLY)
        self._writing_fd: int | None = None  # opened by the first write, since a folder may be read-only
        self._start = _whole_pages(len(_header(layout)))
        self._stride = _whole_pages(layout.width)
        self._places: dict[int, Place] = {}
        self._before: dict[int, Place | None] = {}
        self._slots = 0  # slots in use or free; the file may end before the last of them
        self._free: list[int] = []
        self._latest: tuple[int, Params] | None = None  # the last row of `part`, which is called name by name
        # Numbers of the checkpoints that last.ckpt and previous.ckpt may hold; 0 is the one that was loaded.
        self._era = 0
        self._last, self._previous = [0], list[int]()
        self._retired: dict[int, list[int]] = {}  # era -> slots that no checkpoint after that number needs
        self._is_lost = False

    @classmethod
    def create(cls, folder: Path, layout: RowLayout, ranks: Ranks) -> "RowStore":
        """Create a new file in the folder, with a name of its own."""
        path = folder / ranks.broadcast(f"rows-{secrets.token_hex(4)}.bin")
        if ranks.is_first:
            write_bytes(path, _header(layout))
        ranks.all_gather(None)
        return cls(path, layout, ranks)

    @classmethod
    def load(cls, folder: Path, index: Mapping[str, Any], ranks: Ranks) -> "RowStore":
        """Open the rows of a checkpoint in the folder; `index` is the checkpoint's index of them."""
        path = folder / index["file"]
        store = cls(path, _read_header(path), ranks)
        columns = (index[name].tolist() for name in ("clients", "slots", "checksums"))
        store._places = {client: Place(slot, checksum, -1) for client, slot, checksum in zip(*columns, strict=True)}
        used = {place.slot for place in store._places.values()}
        # Rounded up: the file ends with its last row, not with that row's slot.
        in_file = max(0, -(-(path.stat().st_size - store._start) // store._stride))
        for client, place in store._places.items():
            if not 0 <= place.slot < in_file:
                raise DamagedRowsError(path, f"the row of client {client} is not in it")
        if len(used) < len(store._places):
            raise DamagedRowsError(path, "two clients have the same row")
        store._slots = in_file
        unused = [slot for slot in range(store._slots) if slot not in used]  # another checkpoint may need them
        store._retired = {0: unused}
        return store

    @property
    def clients(self) -> list[int]:
        """Ids of the clients that have a row."""
        return list(self._places)

    def holds(self, name: str) -> bool:
        """Whether rows hold a tensor of this name."""
        return name in self.layout.shapes

    def read(self, clients: Sequence[int]) -> Params:
        """Stacked: the rows of these clients."""
        flat = torch.empty(len(clients), self.layout.width, dtype=torch.uint8)
        self._announce(clients)
        for row, client in zip(flat, clients, strict=True):
            self._get(row, client)
        return self.layout.read(flat)

    def part(self, name: str, client: int) -> Tensor:
        """One tensor of a client's row."""
        if self._latest is None or self._latest[0] != client:
            self._latest = client, self.read([client])
        return self._latest[1][name][0]

    def write(self, clients: Sequence[int], rows: Mapping[str, Tensor]) -> None:
        """Store the stacked rows of these clients; everyone else is untouched."""
        self.commit()
        self._check_form(rows)
        written = self.ranks.broadcast(self._put(clients, rows) if self.ranks.is_first else [])
        self._before = {client: self._places.get(client) for client in clients}
        self._places.update(zip(clients, (Place(*place) for place in written), strict=True))

    def commit(self) -> None:
        """Make the last write final; the rows that it replaced are freed as soon as no checkpoint needs them."""
        for place in self._before.values():
            if place is not None:
                self._retire(place)
        self._before, self._latest = {}, None

    def discard(self) -> None:
        """Undo the last write, if it is not committed yet."""
        for client, place in self._before.items():
            self._free.append(self._places.pop(client).slot)
            if place is not None:
                self._places[client] = place
        self._before, self._latest = {}, None

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def index(self) -> dict[str, Any]:
        """Sync the rows to disk, and return the index that a checkpoint holds instead of them."""
        self._sync()
        self._era += 1
        self._previous, self._last = [*self._previous, *self._last], [*self._last, self._era]
        slots, checksums = ([place[k] for place in self._places.values()] for k in (0, 1))
        columns = {"clients": list(self._places), "slots": slots, "checksums": checksums}
        return {"file": self.path.name} | {name: torch.tensor(column) for name, column in columns.items()}

    def saved(self) -> None:
        """The checkpoint with the latest index is now last.ckpt, and the former last.ckpt is previous.ckpt."""
        *self._previous, latest = self._last
        self._last = [latest]
        oldest = min([*self._previous, latest])
        for era in [era for era in self._retired if era < oldest]:
            self._free += self._retired.pop(era)

    def check(self) -> None:
        """Read every row; DamagedRowsError if one is not what was written."""
        row = torch.empty(self.layout.width, dtype=torch.uint8)
        for client in self._places:
            self._get(row, client)

    def _retire(self, place: Place) -> None:
        if not self.ranks.is_first:
            return  # only the process that writes chooses slots
        if place.era == self._era:
            self._free.append(place.slot)
        else:
            self._retired.setdefault(self._era, []).append(place.slot)

    def _sync(self) -> None:
        """Sync the file. After one failure every later sync fails: the system may have dropped the unwritten rows."""
        if self._is_lost:
            raise RunError(f"{self.path} could not be written; the last complete checkpoint is untouched.")
        if self._writing_fd is None:
            return
        try:
            with explained(self.path):
                os.fsync(self._writing_fd)
        except RunError:
            self._is_lost = True
            raise
        self._drop_cache()

    def _drop_cache(self) -> None:
        """Drop the written rows from the system's cache: they would fill the memory, and are read only rounds later.

        The next rows then reuse that memory, which takes half the time or less.
        """
        if self._writing_fd is not None:
            _advise(self._writing_fd, 0, 0, "DONTNEED")

    # ---- the file --------------------------------------------------------------------------------------------------

    def _put(self, clients: Sequence[int], rows: Mapping[str, Tensor]) -> list[tuple[int, int, int]]:
        """Write the rows into free slots; returns their places."""
        flat = torch.empty(len(clients), self.layout.width, dtype=torch.uint8)
        self.layout.write(dict(rows), flat)
        slots = self._take(len(clients))
        try:
            with explained(self.path):
                if self._writing_fd is None:
                    self._writing_fd = self._open(os.O_WRONLY)
                for slot, row in zip(slots, flat.numpy(), strict=True):
                    _write_all(self._writing_fd, memoryview(row), self._offset(slot))
        except BaseException:
            self._free += slots
            raise
        return [(slot, zlib.crc32(memoryview(row)), self._era) for slot, row in zip(slots, flat.numpy(), strict=True)]

    def _take(self, count: int) -> list[int]:
        reused = self._free[:count]
        self._free = self._free[count:]
        new = range(self._slots, self._slots + count - len(reused))
        self._slots = new.stop
        return [*reused, *new]

    def _announce(self, clients: Sequence[int]) -> None:
        """Let the disk fetch these rows together: rows that are not cached take half the time or less."""
        for client in clients:
            _advise(self._fd, self._offset(self._places[client].slot), self.layout.width, "WILLNEED")

    def _get(self, row: Tensor, client: int) -> None:
        place, buffer = self._places[client], row.numpy().data
        try:
            got = os.preadv(self._fd, [buffer], self._offset(place.slot))
        except OSError as error:
            what = f"the row of client {client} cannot be read ({error.strerror})"
            raise DamagedRowsError(self.path, what) from error
        if got != len(buffer) or zlib.crc32(buffer) != place.checksum:
            raise DamagedRowsError(self.path, f"the row of client {client} is not what was written")

    def _open(self, flags: int) -> int:
        fd = os.open(self.path, flags)
        weakref.finalize(self, os.close, fd)
        return fd

    def _offset(self, slot: int) -> int:
        return self._start + slot * self._stride

    def _check_form(self, rows: Mapping[str, Tensor]) -> None:
        shapes = {name: tuple(rows[name].shape[1:]) for name in sorted(rows)}
        if shapes != self.layout.shapes:
            raise RunError(
                f"{self.path} holds rows of {described(self.layout.shapes)}, but clients now keep {described(shapes)}. "
                "Rows on disk keep the form of the first round's: let callbacks change values only, or set "
                "trainer.states to memory."
            )


def chunks(clients: Sequence[int]) -> Iterator[list[int]]:
    """The clients in groups of at most `CHUNK`."""
    for first in range(0, len(clients), CHUNK):
        yield list(clients[first : first + CHUNK])


def described(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Names and shapes as text."""
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def _header(layout: RowLayout) -> bytes:
    text = json.dumps([[name, *entry] for name, entry in layout.to_json().items()]).encode()
    return _HEAD.pack(_MAGIC, len(text), zlib.crc32(text)) + text


def _read_header(path: Path) -> RowLayout:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
            magic, length, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0)
            text = file.read(length)
    except OSError as error:
        raise DamagedRowsError(path, f"it cannot be read ({error.strerror})") from error
    if magic != _MAGIC or len(text) != length or zlib.crc32(text) != checksum:
        raise DamagedRowsError(path, "its beginning is not that of client rows")
    try:
        layout = RowLayout.from_json({name: entry for name, *entry in json.loads(text)})
        is_possible = 0 < layout.width <= path.stat().st_size
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedRowsError(path, f"its beginning does not say what a row is ({error})") from error
    if not is_possible:
        raise DamagedRowsError(path, f"its beginning says that a row has {layout.width} bytes")
    return layout


def _whole_pages(size: int) -> int:
    """Round up to whole pages, so that no page of the file holds rows of two clients."""
    return -(-size // _PAGE) * _PAGE


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    """Write all bytes. A write may end early when the disk becomes full; the next one then raises."""
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _advise(fd: int, offset: int, size: int, advice: str) -> None:
    """Advise the system on its cache. If it refuses, or knows no advice (macOS), reading is only slower."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(fd, offset, size, getattr(os, f"POSIX_FADV_{advice}"))
