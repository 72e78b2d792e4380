"""Digits of five origins, after FedBN: MNIST, SVHN, USPS, SynthDigits, MNIST-M; all as 28 x 28 in colour.

    mnist        ROOT/MNIST/raw/                                             as mnist.py reads it
    svhn         ROOT/train_32x32.mat, test_32x32.mat                        torchvision's place; needs scipy
    usps         ROOT/digits/usps.npz      train_x (rows, 16, 16), train_y, test_x, test_y
    synthdigits  ROOT/SynthDigits/train.npz, test.npz                        x (rows, 32, 32, 3), y; or the originals,
                 ROOT/SynthDigits/synth_train_32x32.mat, synth_test_32x32.mat                         as SVHN's
    mnistm       ROOT/digits/mnistm.npz    train_x (rows, 32, 32, 3), train_y, test_x, test_y

As in FedBN's code, pictures of another size are resized by Pillow, bilinearly with antialiasing, and grey ones get
three equal channels; both are done once, here, and x stays uint8. Torch's interpolation differs in 2 to 7 % of the
values, by one or two levels (measured on noise). Readings: MNIST-M, which FedBN has in 28 x 28, is resized too, because
ours is the usual 32 x 32 version. FedBN merges the official splits and cuts anew; that is not done here.

Li et al., FedBN: federated learning on non-IID features via local batch normalization (2021), federated/fed_digits.py.
"""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlit.data.files import Bytes, Labels, Layout, Pictures, checked_labels, damaged, read_npz, reading
from fedlit.data.files.mnist import read_mnist
from fedlit.errors import DataError, nearest

_SIDE = 28

USPS = Layout("USPS", "digits", ("usps.npz",), hint="It holds train_x, train_y, test_x, test_y.")
MNIST_M = Layout("MNIST-M", "digits", ("mnistm.npz",), hint="It holds train_x, train_y, test_x, test_y.")
SYNTH_DIGITS = Layout(
    "SynthDigits",
    "SynthDigits",
    ("train.npz", "test.npz"),
    hint="Each holds x and y. The original synth_train_32x32.mat and synth_test_32x32.mat will do in their place.",
)
SYNTH_DIGITS_MAT = Layout("SynthDigits", "SynthDigits", ("synth_train_32x32.mat", "synth_test_32x32.mat"))
SVHN = Layout(
    "SVHN",
    "",
    ("train_32x32.mat", "test_32x32.mat"),
    hint="They are format 2 of http://ufldl.stanford.edu/housenumbers.",
)


def read_digits(root: Path, domains: Sequence[str]) -> dict[str, Pictures]:
    """The sets of these names, in this order, each x (rows, 3, 28, 28)."""
    for name in domains:
        if name not in DOMAINS:
            raise DataError(f"There are no digits '{name}'. {nearest(name, DOMAINS)}Choose from {', '.join(DOMAINS)}.")
    return {name: DOMAINS[name](root) for name in domains}


def read_mnist_digits(root: Path) -> Pictures:
    """MNIST in three equal channels."""
    grey = read_mnist(root)
    return Pictures(_colour(grey.x), grey.y, grey.official_train, grey.official_test)


def read_usps(root: Path) -> Pictures:
    """USPS, 16 x 16 grey in its file."""
    return _read_one_npz(*USPS.paths(root))


def read_mnistm(root: Path) -> Pictures:
    """MNIST-M, or as much of it as the file has."""
    return _read_one_npz(*MNIST_M.paths(root))


def read_synthdigits(root: Path) -> Pictures:
    """SynthDigits from one archive for each split, or from the two original files if both exist."""
    if not SYNTH_DIGITS_MAT.missing(root):
        return _joined(*(_read_mat(path) for path in SYNTH_DIGITS_MAT.paths(root)))
    train, test = SYNTH_DIGITS.paths(root)
    return _joined(_checked(train, *read_npz(train, ("x", "y"))), _checked(test, *read_npz(test, ("x", "y"))))


def read_svhn(root: Path) -> Pictures:
    """SVHN's cropped digits; the extra set is left out."""
    train, test = SVHN.paths(root)
    return _joined(_read_mat(train), _read_mat(test))


DOMAINS: dict[str, Callable[[Path], Pictures]] = {
    "mnist": read_mnist_digits,
    "svhn": read_svhn,
    "usps": read_usps,
    "synthdigits": read_synthdigits,
    "mnistm": read_mnistm,
}
"""The five sets in FedBN's order."""

Part = tuple[Bytes, Labels]  # x (rows, 3, 28, 28), y (rows,) of one split


def _read_one_npz(path: Path) -> Pictures:
    train_x, train_y, test_x, test_y = read_npz(path, ("train_x", "train_y", "test_x", "test_y"))
    return _joined(_checked(path, train_x, train_y), _checked(path, test_x, test_y))


def _read_mat(path: Path) -> Part:
    """X (32, 32, 3, rows), y (rows, 1) from 1 to 10, where 10 is the digit 0."""
    try:
        matlab = importlib.import_module("scipy.io")  # by name: fedlit does not require scipy
    except ImportError as error:
        raise DataError(
            f"{path} is a MATLAB file, and reading it needs scipy, which is not installed. Run pip install scipy."
        ) from error
    with reading(path):
        content = matlab.loadmat(str(path), variable_names=["X", "y"])
        x, y = np.moveaxis(content["X"], -1, 0), content["y"].reshape(-1)
    return _checked(path, x, np.where(y == 10, 0, y))


def _joined(train: Part, test: Part) -> Pictures:
    return Pictures.train_first(np.concatenate([train[0], test[0]]), np.concatenate([train[1], test[1]]), len(train[1]))


def _checked(path: Path, x: NDArray[Any], y: NDArray[Any]) -> Part:
    """Pictures (rows, height, width) or (rows, height, width, 3) in their final form, and their labels."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or x.shape[3:] not in ((), (3,)) or 0 in x.shape[1:]:
        raise damaged(
            path, f"its pictures are {x.dtype} of shape {x.shape}, not uint8 of (rows, height, width) with or without 3"
        )
    x = resize(x, _SIDE)
    planes = x[:, np.newaxis] if x.ndim == 3 else np.ascontiguousarray(np.moveaxis(x, -1, 1))
    return _colour(planes), checked_labels(path, y, rows=len(x))


def _colour(x: Bytes) -> Bytes:
    """(rows, 1 or 3, height, width) -> (rows, 3, height, width); a grey picture has three equal channels."""
    return x if x.shape[1] == 3 else np.repeat(x, 3, axis=1)


def resize(x: Bytes, side: int) -> Bytes:
    """(rows, height, width) or (rows, height, width, 3) -> (rows, side, side) or (rows, side, side, 3)."""
    from PIL import Image  # where it is used: most data sets need no Pillow

    if x.shape[1:3] == (side, side):
        return x
    resized = np.empty((len(x), side, side, *x.shape[3:]), np.uint8)
    for row, picture in enumerate(x):  # 0.05 ms each; stacked to one tall picture they take nearly as long
        resized[row] = Image.fromarray(picture).resize((side, side), Image.Resampling.BILINEAR)
    return resized
