"""Numbers as text in a page: columns of four bytes each, deflated, in base64; and which rounds have room in it."""

import base64
import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

INTEGERS = frozenset({"round", "client", "size", "group"})
"""Columns of whole numbers; every other one is a float, NaN where nothing was measured."""


def packed(columns: Iterable[tuple[str, NDArray[np.generic]]]) -> str:
    """The columns one after the other, little-endian; js/data.js reads them back."""
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is infinite, which the page leaves out
        raw = b"".join(values.astype(kind_of(name), casting="unsafe").tobytes() for name, values in columns)
    squeeze = zlib.compressobj(wbits=-zlib.MAX_WBITS)  # without header: the browser's "deflate-raw"
    return base64.b64encode(squeeze.compress(raw) + squeeze.flush()).decode("ascii")


def kind_of(name: str) -> str:
    """NumPy's name of the column's type."""
    return "<i4" if name in INTEGERS else "<f4"


def spread(count: int, most: int) -> NDArray[np.int64]:
    """Positions of at most `most` of `count` things, evenly spaced, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, max(2, most)).round().astype(np.int64)
