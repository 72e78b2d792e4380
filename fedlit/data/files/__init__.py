"""Readers of published data sets: verified arrays, or a DataError that says what to do.

A reader is a function `read_<set>(root)`; root is torchvision's root folder, the same for all sets. It returns the
samples as published and in their order, training before test, as bytes wherever the files have bytes. It draws nothing
and knows nothing of clients. This file has what the readers share; each set has its own file.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedlit.data.partition.base import RowNumbers
from fedlit.errors import DataError

_MOST_PACKED = 200
"""Largest ratio of unpacked to packed size; an archive of nothing but zeros reaches 1,000."""
Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Pictures:
    """A set of labelled pictures, and how its authors split it."""

    x: Bytes  # (rows, channels, height, width)
    y: Labels  # (rows,)
    official_train: RowNumbers
    official_test: RowNumbers

    @classmethod
    def train_first(cls, x: Bytes, y: Labels, train_rows: int) -> Self:
        """The first `train_rows` rows are the official training set, the others the test set."""
        return cls(x, y, official_train=np.arange(train_rows), official_test=np.arange(train_rows, len(y)))


@dataclass(frozen=True)
class Layout:
    """The files of a set, and their folder below the root."""

    name: str
    folder: str
    files: tuple[str, ...]
    gzipped: bool = False
    """Whether each file may also be a .gz."""
    torchvision: str = ""
    """The class of torchvision.datasets that downloads the files; empty if there is none."""
    split: str = ""
    """The argument `split` of that class, if it needs one."""
    hint: str = ""
    """Another sentence for a user who does not have the files."""

    def missing(self, root: Path) -> list[str]:
        """The names of the files that are not there."""
        return [name for name in self.files if not any(path.is_file() for path in self._forms(root, name))]

    def paths(self, root: Path) -> list[Path]:
        """The paths of the files, in the order of `files`; a plain file is preferred to its .gz."""
        missing = self.missing(root)
        if missing:
            raise DataError(
                f"{self.name} is not complete: {' and '.join(missing)} not found in {root / self.folder}. "
                f"{self.instruction(root)}"
            )
        return [next(path for path in self._forms(root, name) if path.is_file()) for name in self.files]

    def instruction(self, root: Path) -> str:
        """How to get the files, in a sentence or two."""
        sentences = [
            f"Put {', '.join(self.files)}{', plain or as .gz,' if self.gzipped else ''} into {root / self.folder}."
        ]
        if self.torchvision:
            split = f", split={self.split!r}" * bool(self.split)
            call = f"torchvision.datasets.{self.torchvision}({str(root)!r}{split}, download=True)"
            sentences.append(f"Where there is a network, {call} does it.")
        return " ".join([*sentences, self.hint]).rstrip()

    def _forms(self, root: Path, name: str) -> list[Path]:
        path = root / self.folder / name
        return [path, path.with_name(f"{name}.gz")] if self.gzipped else [path]


@dataclass(frozen=True)
class Published:
    """The known facts of a published set, to verify its files."""

    layout: Layout
    train_rows: int
    test_rows: int
    pixels_sha256: str = ""
    """Of all pixels as bytes, training before test; empty where it is not known."""
    labels_sha256: str = ""
    """Of all labels, one byte each."""
    per_class: int = 0
    """Samples of each class, training and test together; 0 where they differ."""

    @property
    def rows(self) -> int:
        """Training and test together."""
        return self.train_rows + self.test_rows

    def verify(self, root: Path, x: Bytes, y: Labels) -> None:
        """Refuse samples that are not the published ones; the packing of the files does not matter."""
        if self.per_class and set(np.bincount(y).tolist()) != {self.per_class}:
            raise self._refusal(root, f"it should hold {self.per_class} pictures of each class and does not")
        if self.labels_sha256 and sha256(y.astype(np.uint8)) != self.labels_sha256:
            raise self._refusal(root, "the labels have another sha256 than the published ones")
        if self.pixels_sha256 and sha256(x) != self.pixels_sha256:
            raise self._refusal(root, "the pixels have another sha256 than the published ones")

    def _refusal(self, root: Path, what: str) -> DataError:
        return DataError(
            f"{self.layout.name} in {root / self.layout.folder} is damaged, altered or another set: {what}. "
            f"Delete what is there. {self.layout.instruction(root)}"
        )


def sha256(values: Bytes) -> str:
    """64 hex digits over the bytes of an array, without a copy of it."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any failure while this file is read into a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # on damaged bytes every parser fails in more ways than it documents
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def damaged(path: Path, what: str) -> DataError:
    """The error for a file that exists but cannot be used, in one paragraph."""
    return DataError(
        f"{path} cannot be used: {' '.join(what.split())}. Replace it by a fresh copy of the published file."
    )


def read_npz(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """The arrays with these names. Only numbers are read, so an archive cannot run code."""
    with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        absent = [name for name in names if name not in archive]
        if absent:
            raise damaged(path, f"it has no array '{absent[0]}' (there are {', '.join(sorted(archive)) or 'none'})")
        entries = archive.zip.namelist()
        if len(set(entries)) < len(entries):
            raise damaged(path, "two of its arrays have the same name")
        packed, unpacked = path.stat().st_size, sum(entry.file_size for entry in archive.zip.infolist())
        if unpacked > _MOST_PACKED * packed + 10**8:
            raise damaged(path, f"its {packed:,} bytes would become {unpacked:,}")
        return [archive[name] for name in names]


def checked_labels(path: Path, labels: NDArray[Any], *, rows: int, classes: int = 10) -> Labels:
    """Labels (rows,) as int64; a wrong number of them, or a label outside 0 to classes - 1, is refused."""
    if labels.dtype.kind not in "iu" or labels.shape != (rows,):
        raise damaged(
            path, f"its labels are {labels.dtype} of shape {labels.shape}, not whole numbers of shape ({rows},)"
        )
    if rows and not 0 <= labels.min() <= labels.max() < classes:
        raise damaged(path, f"its labels go from {labels.min()} to {labels.max()}, not from 0 to {classes - 1}")
    return labels.astype(np.int64)
