"""FEMNIST: handwritten digits and letters by writer, in LEAF's files.

    ROOT/femnist/*.json               {"users", "num_samples", "user_data": writer -> {"x", "y"}}; or, in their place,
    ROOT/femnist/train/*.json         LEAF's own split, whose two parts are read as one, writer by writer
    ROOT/femnist/test/*.json

x is 784 numbers from 0 (ink) to 1 (paper), row by row, and y a class of 62: 0-9, A-Z, a-z. Numbers are k/255 in LEAF
and become the byte k. Files are read one after the other, so that only one at a time is in memory.

Caldas et al., LEAF: a benchmark for federated settings (2018), from EMNIST's byclass set (Cohen et al. 2017).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlit.data.files import Bytes, Labels, Layout, checked_labels, damaged, reading
from fedlit.data.partition.base import RowNumbers
from fedlit.errors import DataError

CLASSES = 62
_SIDE = 28
LAYOUT = Layout(
    "FEMNIST",
    "femnist",
    ("train/*.json", "test/*.json"),
    hint="LEAF's data/femnist/preprocess.sh writes them, and its all_data files will do in their place.",
)


@dataclass(frozen=True)
class Written:
    """The pictures of all writers."""

    x: Bytes  # (rows, 1, 28, 28)
    y: Labels  # (rows,)
    writers: list[str]  # in alphabetical order
    rows: list[RowNumbers]  # of each writer, in the order of the files, training before test


def read_femnist(root: Path) -> Written:
    """All writers of LEAF's files."""
    folder = root / LAYOUT.folder
    paths = [path for part in ("train", "test") for path in sorted((folder / part).glob("*.json"))]
    paths = paths or sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(f"FEMNIST was not found: no LEAF file (*.json) is in {folder}. {LAYOUT.instruction(root)}")
    pictures, labels, owners = [], [], []
    for path in paths:
        for writer, x, y in _read_file(path):
            pictures.append(x)
            labels.append(y)
            owners += [writer] * len(y)
    if not owners:
        raise DataError(f"FEMNIST has no samples: the files in {folder} have no writer with samples. Replace them.")
    writers, owner = np.unique(np.array(owners), return_inverse=True)
    ends = np.cumsum(np.bincount(owner))
    rows = np.split(np.argsort(owner, kind="stable"), ends[:-1])
    return Written(np.concatenate(pictures), np.concatenate(labels), writers.tolist(), rows)


def _read_file(path: Path) -> list[tuple[str, Bytes, Labels]]:
    """(writer, x, y) of each writer in a file."""
    with reading(path):
        content = json.loads(path.read_bytes())
        users, sizes, data = content["users"], content["num_samples"], content["user_data"]
        pairs = list(zip(users, sizes, strict=True))
        return [(str(user), *_samples(path, str(user), data[user], size)) for user, size in pairs]


def _samples(path: Path, writer: str, data: dict[str, Any], size: int) -> tuple[Bytes, Labels]:
    if not len(data["x"]) == len(data["y"]) == size:
        raise damaged(path, f"{writer} has {len(data['x'])} x and {len(data['y'])} y where num_samples says {size}")
    values = np.asarray(data["x"], np.float64).reshape(size, -1 if size else _SIDE * _SIDE)
    if values.shape[1] != _SIDE * _SIDE:
        raise damaged(path, f"{writer} has pictures of shape {values.shape[1:]}, not ({_SIDE * _SIDE},)")
    if not ((values >= 0) & (values <= 1)).all():
        raise damaged(path, f"{writer} has a pixel outside of 0 to 1")
    y = checked_labels(path, np.asarray(data["y"] or np.empty(0, np.int64)), rows=size, classes=CLASSES)
    return np.rint(255 * values).astype(np.uint8).reshape(size, 1, _SIDE, _SIDE), y
