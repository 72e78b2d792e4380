"""MNIST and Fashion-MNIST: four idx files each, plain or gzipped, where torchvision puts them.

    ROOT/MNIST/raw/         train-images-idx3-ubyte  train-labels-idx1-ubyte  t10k-images-idx3-ubyte  t10k-labels-...
    ROOT/FashionMNIST/raw/  the same four names

An idx file is 0, 0, 8 (bytes), the number of dimensions; each dimension as four bytes, big end first; then the values.
LeCun, Cortes, Burges, The MNIST database of handwritten digits (1998); Xiao, Rasul, Vollgraf, Fashion-MNIST (2017).

MNIST is verified by the sha256 of its pixels and labels, taken from the four files with the published md5. For
Fashion-MNIST we know no sha256; its 7,000 pictures of each class tell it from MNIST, whose files have the same names.
"""

import gzip
import math
from pathlib import Path

import numpy as np

from fedlit.data.files import Bytes, Labels, Layout, Pictures, Published, checked_labels, damaged, reading

_SIDE = 28
_LARGEST = 10**9
"""Most bytes of an unpacked file; EMNIST's largest has 547 million."""
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

MNIST = Published(
    Layout("MNIST", "MNIST/raw", _FILES, gzipped=True, torchvision="MNIST"),
    train_rows=60_000,
    test_rows=10_000,
    pixels_sha256="5b92582eb909c82a9bfefcd44acbe9233be3eb5b419a44cf211022ad2bf4bf96",
    labels_sha256="671ff9d70b4811116d55c3dd479efa7a981e2e62753ef7a6d5c15fea81e63d27",
)
FASHION_MNIST = Published(
    Layout("Fashion-MNIST", "FashionMNIST/raw", _FILES, gzipped=True, torchvision="FashionMNIST"),
    train_rows=60_000,
    test_rows=10_000,
    per_class=7_000,
)


def read_mnist(root: Path) -> Pictures:
    """MNIST's 70,000 digits, x (70000, 1, 28, 28)."""
    return read_idx_set(root, MNIST)


def read_fashion_mnist(root: Path) -> Pictures:
    """Fashion-MNIST's 70,000 articles of clothing, x (70000, 1, 28, 28)."""
    return read_idx_set(root, FASHION_MNIST)


def read_idx_set(root: Path, published: Published) -> Pictures:
    """The four files of a set in MNIST's form."""
    train_images, train_labels, test_images, test_labels = published.layout.paths(root)
    x = np.concatenate([read_images(train_images, published.train_rows), read_images(test_images, published.test_rows)])
    y = np.concatenate(
        [_read_labels(train_labels, published.train_rows), _read_labels(test_labels, published.test_rows)]
    )
    published.verify(root, x, y)
    return Pictures.train_first(x, y, published.train_rows)


def read_images(path: Path, rows: int) -> Bytes:
    """Pictures (rows, 1, 28, 28)."""
    images = read_idx(path, dimensions=3)
    if images.shape != (rows, _SIDE, _SIDE):
        raise damaged(path, f"it holds pictures of shape {images.shape}, not ({rows}, {_SIDE}, {_SIDE})")
    return images[:, np.newaxis]


def _read_labels(path: Path, rows: int) -> Labels:
    return checked_labels(path, read_idx(path, dimensions=1), rows=rows)


def read_idx(path: Path, dimensions: int) -> Bytes:
    """The values of one idx file as an array; a file that is too short or too long is refused."""
    with reading(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(_LARGEST + 1)  # a .gz of kilobytes may hold gigabytes
    if len(content) > _LARGEST:
        raise damaged(path, f"it holds more than {_LARGEST:,} bytes, and no such set does")
    magic, start = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
    if content[:4] != magic:
        raise damaged(path, f"it starts with {content[:4].hex(' ')}, not with the magic number {magic.hex(' ')}")
    if len(content) < start:
        raise damaged(path, "it ends within its header")
    shape = [int(size) for size in np.frombuffer(content[4:start], ">u4")]
    if len(content) - start != math.prod(shape):
        raise damaged(path, f"it has {len(content) - start} values where its header says {math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
