"""Pictures in folders, ROOT/<domain>/<class>/*.png or *.jpg: Office-Caltech10, DomainNet, or a user's own.

Domains and classes are numbered in the sorted order of their names; classes are those of all domains together, so that
a class has the same number in a domain that lacks another. A picture becomes RGB and is resized to a square as
torchvision's Resize does it, bilinearly with antialiasing and without keeping its proportions. There is no official
split.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlit.data.files import Bytes, Labels, damaged, reading
from fedlit.data.partition.base import RowNumbers
from fedlit.errors import DataError, require

ENDINGS = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class FolderPictures:
    """All pictures below a folder, domain after domain."""

    x: Bytes  # (rows, 3, size, size)
    y: Labels  # (rows,): numbers in `classes`
    domain: RowNumbers  # (rows,): numbers in `domains`
    domains: list[str]
    classes: list[str]


def read_folders(root: Path, size: int) -> FolderPictures:
    """Every picture below root/<domain>/<class>, `size` pixels high and wide."""
    require(size >= 1, f"data.size is {size}. Set it to the height and width of the pictures in pixels, such as 64.")
    domains = _folders(root)
    paths = [path for domain in domains for folder in _folders(domain) for path in _pictures(folder)]
    if not paths:
        raise DataError(
            f"There are no pictures below {root}. Put them into {root / '<domain>' / '<class>'} "
            f"as files that end in {', '.join(ENDINGS)}."
        )
    empty = [domain.name for domain in domains if domain not in {path.parents[1] for path in paths}]
    if empty:
        raise DataError(
            f"There are no pictures in {root / empty[0]}. Put some into {root / empty[0] / '<class>'} "
            f"as files that end in {', '.join(ENDINGS)}, or remove the folder."
        )
    return _read(paths, size)


def _read(paths: list[Path], size: int) -> FolderPictures:
    domains, domain = np.unique([path.parents[1].name for path in paths], return_inverse=True)
    classes, y = np.unique([path.parent.name for path in paths], return_inverse=True)
    x = np.empty((len(paths), 3, size, size), np.uint8)
    with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter's lock
        list(pool.map(read_picture, paths, x))
    return FolderPictures(x, y.astype(np.int64), domain.astype(np.int64), domains.tolist(), classes.tolist())


def read_picture(path: Path, into: Bytes) -> None:
    """Write one picture, in colour and resized, into `into` (3, size, size)."""
    from PIL import Image  # where it is used: most data sets need no Pillow

    if not path.is_file():  # reading a pipe or a device would never end
        raise damaged(path, "it is not a file")
    with reading(path), Image.open(path) as picture:
        resized = picture.convert("RGB").resize(into.shape[1:], Image.Resampling.BILINEAR)
        into[:] = np.asarray(resized).transpose(2, 0, 1)


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"The folder {folder} does not exist. Name one that holds <domain>/<class>/*.png or *.jpg.")
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    """The picture files of a folder, without hidden ones: macOS's `._name.jpg` is not a picture."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and not path.name.startswith("."))
