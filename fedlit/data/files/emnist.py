"""EMNIST: handwritten digits and letters in six sets, four idx files each, plain or gzipped, as torchvision has them.

    ROOT/EMNIST/raw/  emnist-<kind>-train-images-idx3-ubyte  ...-train-labels-idx1-ubyte  ...-test-images-...  ...

In the files every picture lies on its side; here it stands upright. The labels of `letters` start at 1 in the files
and at 0 here. NIST has published `letters` in two sizes, and we have no copy of any set, so the number of rows is taken
from the files: images and labels must agree, and labels must be those of the set.

Cohen, Afshar, Tapson, van Schaik, EMNIST: an extension of MNIST to handwritten letters (2017).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedlit.data.files import Bytes, Labels, Layout, Pictures, Published, checked_labels
from fedlit.data.files.mnist import read_idx, read_images

Kind = Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"]


@dataclass(frozen=True)
class Set:
    """One of the six sets."""

    published: Published
    classes: int
    first_label: int = 0


def _set(kind: Kind, classes: int, train_rows: int, test_rows: int, first_label: int = 0) -> Set:
    names = (f"emnist-{kind}-{part}-{what}" for part in ("train", "test") for what in ("images-idx3", "labels-idx1"))
    layout = Layout(
        f"EMNIST ({kind})",
        "EMNIST/raw",
        tuple(f"{name}-ubyte" for name in names),
        gzipped=True,
        torchvision="EMNIST",
        split=kind,
    )
    return Set(Published(layout, train_rows, test_rows), classes, first_label)


KINDS: dict[str, Set] = {
    "balanced": _set("balanced", 47, 112_800, 18_800),
    "byclass": _set("byclass", 62, 697_932, 116_323),
    "bymerge": _set("bymerge", 47, 697_932, 116_323),
    "letters": _set("letters", 26, 124_800, 20_800, first_label=1),
    "digits": _set("digits", 10, 240_000, 40_000),
    "mnist": _set("mnist", 10, 60_000, 10_000),
}


def read_emnist(root: Path, kind: Kind) -> Pictures:
    """The pictures of one of the sets, x (rows, 1, 28, 28) upright."""
    chosen = KINDS[kind]
    train_images, train_labels, test_images, test_labels = chosen.published.layout.paths(root)
    train_x, train_y = _read_part(train_images, train_labels, chosen)
    test_x, test_y = _read_part(test_images, test_labels, chosen)
    return Pictures.train_first(np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y]), len(train_y))


def _read_part(images: Path, labels: Path, chosen: Set) -> tuple[Bytes, Labels]:
    numbers = read_idx(labels, dimensions=1).astype(np.int64) - chosen.first_label
    x = read_images(images, len(numbers))
    return x.swapaxes(2, 3), checked_labels(labels, numbers, rows=len(x), classes=chosen.classes)
