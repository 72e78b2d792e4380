"""CIFAR-10 and CIFAR-100: pickles where torchvision puts them, read without running a line of them.

    ROOT/cifar-10-batches-py/  data_batch_1 ... data_batch_5  test_batch     10,000 pictures each
    ROOT/cifar-100-python/     train  test                                   50,000 and 10,000

A batch is a dict: `data` uint8 (rows, 3072), planes red, green, blue, row by row, and `labels`, a list; in CIFAR-100
`fine_labels` (`coarse_labels` are not read). A pickle is a program; here it can make dicts, lists, texts and numbers,
and arrays by the stand-ins below, which never reach numpy's own unpickling. Everything else is refused. The sha256 of
all pixels and all labels is checked, so a copy that was pickled again, by any version and without the names of the
pictures, is as good as the original. For CIFAR-100 we know no sha256; there, 600 pictures of each class are checked.

Krizhevsky, Learning multiple layers of features from tiny images (2009).
"""

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedlit.data.files import Bytes, Labels, Layout, Pictures, Published, checked_labels, damaged, reading

_TRAIN_BATCHES = 5
_SHAPE = (3, 32, 32)

CIFAR10 = Published(
    Layout(
        "CIFAR-10",
        "cifar-10-batches-py",
        (*(f"data_batch_{number}" for number in range(1, _TRAIN_BATCHES + 1)), "test_batch"),
        torchvision="CIFAR10",
    ),
    train_rows=50_000,
    test_rows=10_000,
    pixels_sha256="2ae5d6db0453753867541f0ccce0b648fcd0aaf596c0ca67c33dc03b3deaf283",
    labels_sha256="3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f",
)

CIFAR100 = Published(
    Layout("CIFAR-100", "cifar-100-python", ("train", "test"), torchvision="CIFAR100"),
    train_rows=50_000,
    test_rows=10_000,
    per_class=600,
)


def read_cifar10(root: Path) -> Pictures:
    """CIFAR-10's 60,000 pictures, x (60000, 3, 32, 32)."""
    return read_batches(root, CIFAR10)


def read_cifar100(root: Path) -> Pictures:
    """CIFAR-100's 60,000 pictures of 100 classes, x (60000, 3, 32, 32)."""
    return read_batches(root, CIFAR100, "fine_labels", classes=100)


def read_batches(root: Path, published: Published, labels: str = "labels", *, classes: int = 10) -> Pictures:
    """The batches of a set, the last of which is the test; only one batch at a time is in memory beside the result."""
    paths = published.layout.paths(root)
    batches = len(paths) - 1
    sizes = [published.train_rows // batches] * batches + [published.test_rows]
    x = np.empty((published.rows, *_SHAPE), np.uint8)
    y = np.empty(published.rows, np.int64)
    start = 0
    for path, size in zip(paths, sizes, strict=True):
        part = slice(start, start + size)
        y[part] = _read_batch(path, labels, classes, into=x[part])
        start += size
    published.verify(root, x, y)
    return Pictures.train_first(x, y, published.train_rows)


def _read_batch(path: Path, name: str, classes: int, *, into: Bytes) -> Labels:
    """Copy one batch's pictures into `into`, and return its labels."""
    with reading(path), path.open("rb") as file:
        batch = {_text(key): value for key, value in PlainUnpickler(file, encoding="bytes").load().items()}
        pixels, labels = _array(batch["data"]), _array(batch[name])
    rows, width = len(into), int(np.prod(_SHAPE))
    if pixels.dtype != np.uint8 or pixels.shape != (rows, width):
        raise damaged(path, f"its data are {pixels.dtype} of shape {pixels.shape}, not uint8 of ({rows}, {width})")
    into[:] = pixels.reshape(into.shape)
    return checked_labels(path, labels, rows=rows, classes=classes)


class PlainUnpickler(pickle._Unpickler):
    """An unpickler of plain values and arrays of whole numbers; nothing that a file names is imported or called.

    It extends Python's unpickler that is written in Python. A damaged byte can make the one in C allocate gigabytes
    (measured with the opcode LONG_BINPUT), and it copies each batch once more. Both take the same time here.
    """

    def find_class(self, module: str, name: str) -> Any:
        """This file's stand-in for a class that the pickle names, under the names of numpy 1 and 2."""
        stand_in = _STAND_INS.get((module.replace("numpy._core", "numpy.core"), name))
        if stand_in is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no picture needs; nothing of it was run")
        return stand_in


class PickledType:
    """In place of numpy.dtype: a kind of whole number, such as `u1`, and its order of bytes."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code = _text(code)
        self.order = "="

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.order = _text(state[1])

    def dtype(self) -> np.dtype[Any]:
        """The real dtype; only whole numbers."""
        if not re.fullmatch("[<>=|][iu][1248]", self.order + self.code):
            raise pickle.UnpicklingError(f"it holds an array of type {self.order}{self.code}, not of whole numbers")
        return np.dtype(self.order + self.code)


class PickledArray:
    """In place of numpy.ndarray; the values are set after construction."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, kind, is_fortran, content = state
        self.values = np.frombuffer(content, kind.dtype()).reshape(shape, order="F" if is_fortran else "C")


def _from_buffer(content: bytes, kind: PickledType, shape: tuple[int, ...], order: Literal["C", "F"]) -> PickledArray:
    """In place of numpy's function of this name, which makes the arrays of protocol 5."""
    array = PickledArray()
    array.values = np.frombuffer(content, kind.dtype()).reshape(shape, order=order)
    return array


def _encode(text: str, encoding: str) -> bytes:
    """In place of _codecs.encode, which makes the bytes of protocols 0 to 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it holds bytes that are encoded as {encoding}, not as latin1")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): PickledType,
    ("numpy", "ndarray"): PickledArray,
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}


def _array(value: Any) -> NDArray[Any]:
    return value.values if isinstance(value, PickledArray) else np.asarray(value)


def _text(value: str | bytes) -> str:
    """Texts of Python 2 arrive as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else value
