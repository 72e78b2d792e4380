"""What tests of the readers share: small files in the published layouts, and ways to spoil them."""

import gzip
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from fedlit.data.files import Published, sha256
from fedlit.errors import DataError

Result = TypeVar("Result")


def small(published: Published, *, train_rows: int, test_rows: int) -> Published:
    """The same set with fewer rows, of which nothing else is known."""
    return replace(
        published, train_rows=train_rows, test_rows=test_rows, pixels_sha256="", labels_sha256="", per_class=0
    )


def with_checksums(published: Published, x: NDArray[Any], y: NDArray[Any]) -> Published:
    return replace(published, pixels_sha256=sha256(x), labels_sha256=sha256(y.astype(np.uint8)))


def flip(path: Path, position: int, mask: int = 1) -> None:
    """Change bits of one byte; a negative position counts from the end."""
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    """A file in the idx form, gzipped if its name says so."""
    content = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes() + values.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def refused(*words: str) -> Any:
    """`with refused("a", "b"):` expects a DataError of one paragraph in which these words come in this order."""
    return pytest.raises(DataError, match=r"\A.*" + ".*".join(words) + r".*\Z")


def unless_refused(read: Callable[[], Result]) -> Result | None:
    """What was read, or None if it was refused with a DataError; any other error passes."""
    with suppress(DataError):
        return read()
    return None
