"""Large arrays: one copy in memory for all processes of a machine.

The array is written to a file in the cache folder, and every process maps that file: its pages are in memory once,
however many runs of a sweep use them. (Real shared memory is often limited to 64 MB in a container, and a process that
exceeds it dies with a bus error.)
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from fedlit.files import cache_home, make_private, replacing

SMALLEST = 16_000_000
"""Fewest bytes of an array that is shared through a file."""


def shared(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The array as a mapped file if it is large and the cache can be written; else the array itself."""
    if array.nbytes < SMALLEST:
        return array
    path = cache_home() / "data" / f"{hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:32]}.bin"
    try:
        if make_private(path.parent) is not None:  # others could change the data while a run uses them
            return array
        if not path.is_file() or path.stat().st_size != array.nbytes:
            with replacing(path, shared=True) as draft:
                draft.write_bytes(np.ascontiguousarray(array).data)
        mapped = np.memmap(path, np.uint8, "c", shape=array.shape)  # private pages only where somebody writes
    except OSError:
        return array
    return mapped if np.array_equal(mapped, array) else array
