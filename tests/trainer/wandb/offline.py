"""An offline W&B run read back from its .wandb file, with W&B's own messages. wandb 0.31 has no reader in Python."""

import json
import struct
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # generated when it is imported

BLOCK = 32768
HEADER = 7
"""A LevelDB log: blocks of 32 KB; each piece has a checksum (4 bytes), its length (2) and its kind (1)."""
WHOLE, LAST = 1, 4


def records(path: Path) -> Iterator[Record]:
    """The messages of a .wandb file, in order."""
    message = b""
    for kind, piece in pieces(written(path)):
        message += piece
        if kind in (WHOLE, LAST):
            yield Record.FromString(message)
            message = b""


def pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and content of each piece; the last may be cut off."""
    assert data[:4] == b":W&B"
    at = HEADER
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        yield kind, data[at + HEADER : at + HEADER + length]
        at += HEADER + length


def written(path: Path) -> bytes:
    """The file once W&B's own process, which writes it, has come to the end of the run."""
    for _ in range(100):
        data = path.read_bytes()
        if data == path.read_bytes() and is_ended(data):
            break
        time.sleep(0.1)
    return data


def is_ended(data: bytes) -> bool:
    """Whether nothing is cut off: the last piece ends where the file does."""
    at = HEADER
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        at += left if left < HEADER else HEADER + struct.unpack_from("<H", data, at + 4)[0]
    return at == len(data)


def items(pairs: Any) -> dict[str, Any]:
    """{"a": {"b": 1}} of items whose key is "a" or the path ("a", "b")."""
    found: dict[str, Any] = {}
    for pair in pairs:
        *outer, last = list(pair.nested_key) or [pair.key]
        place = found
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = json.loads(pair.value_json)
    return found


class Offline:
    """What one offline run holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = list(records(path))

    def of(self, kind: str) -> list[Any]:
        """The messages of a kind, such as `history`."""
        return [getattr(record, kind) for record in self.records if record.WhichOneof("record_type") == kind]

    @cached_property
    def run(self) -> Any:
        """Its name, group, job type, tags, ..."""
        return self.of("run")[0]

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The logged rows."""
        return [items(row.item) for row in self.of("history")]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The values that stand beside the run, as the last update left them."""
        found: dict[str, Any] = {}
        for update in self.of("summary"):
            found |= items(update.update)
        return found

    @cached_property
    def config(self) -> list[tuple[str, Any]]:
        """Every key that was ever set, as often as it was; W&B's own left out."""
        updates = [update for part in (self.run.config, *self.of("config")) for update in part.update]
        named = [(update.key or ".".join(update.nested_key), json.loads(update.value_json)) for update in updates]
        return [(name, value) for name, value in named if not name.startswith("_wandb")]

    def logged(self, key: str) -> list[Any]:
        """The values of a key, row by row."""
        return [row[key] for row in self.history if key in row]

    def file(self, value: dict[str, Any]) -> Path:
        """The file that stands behind a logged table or picture."""
        return self.path.parent / "files" / value["path"]

    def table(self, key: str) -> dict[str, Any]:
        """`columns` and `data` of the table that was logged last."""
        content: dict[str, Any] = json.loads(self.file(self.logged(key)[-1]).read_text())
        return content


def offline_runs(folder: Path) -> list[Offline]:
    """The offline runs of a run folder, oldest first."""
    return [Offline(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]
