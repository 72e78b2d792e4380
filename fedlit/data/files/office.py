"""Office-Caltech10: SURF features of four domains of pictures of ten classes; no pictures.

    ROOT/office/office_caltech10_surf.npz   <domain>_x uint8 (rows, 800), <domain>_y, for the four domains

A row is a histogram of 800 visual words. As usual it is divided by its sum, and then each column is standardised within
its domain (mean 0, deviation 1 with ddof = 0, as in the authors' code; a column of one value becomes 0).

Gong, Shi, Sha, Grauman, Geodesic flow kernel for unsupervised domain adaptation (2012).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlit.data.files import Labels, Layout, checked_labels, damaged, read_npz

DOMAINS = ("amazon", "caltech", "dslr", "webcam")
CLASSES = (
    "back_pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
LAYOUT = Layout("Office-Caltech10", "office", ("office_caltech10_surf.npz",))
_WORDS = 800


@dataclass(frozen=True)
class Features:
    """The samples of one domain, without an official split."""

    x: NDArray[np.float32]  # (rows, 800)
    y: Labels  # (rows,): numbers in CLASSES


def read_office(root: Path) -> dict[str, Features]:
    """The four domains in the order of DOMAINS."""
    (path,) = LAYOUT.paths(root)
    arrays = read_npz(path, [f"{domain}_{part}" for domain in DOMAINS for part in "xy"])
    return {domain: _features(path, x, y) for domain, x, y in zip(DOMAINS, arrays[::2], arrays[1::2], strict=True)}


def _features(path: Path, counts: NDArray[Any], labels: NDArray[Any]) -> Features:
    if counts.dtype.kind not in "iu" or counts.shape[1:] != (_WORDS,) or not counts.size or counts.min() < 0:
        raise damaged(
            path, f"its counts are {counts.dtype} of shape {counts.shape}, not 0 or more of (rows, {_WORDS}), with rows"
        )
    return Features(standardise(counts), checked_labels(path, labels, rows=len(counts), classes=len(CLASSES)))


def standardise(counts: NDArray[Any]) -> NDArray[np.float32]:
    """(rows, words): divide each row by its sum, then give each column mean 0 and deviation 1."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)  # a row without words stays 0
    varies = shares.min(axis=0) < shares.max(axis=0)  # exact, where a deviation is rounded to nearly 0
    deviation = np.where(varies, shares.std(axis=0), 1)
    return np.where(varies, (shares - shares.mean(axis=0)) / deviation, 0).astype(np.float32)
