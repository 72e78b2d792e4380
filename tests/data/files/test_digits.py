"""Laws of the digits' readers: five layouts, one form; labels untouched, and pictures resized as FedBN resizes them."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fedlit.data.files import Pictures, mnist
from fedlit.data.files.digits import DOMAINS, read_digits, resize
from tests.data.files import flip, refused, small, unless_refused, write_idx
from tests.real_files import Real

DRAW = np.random.default_rng(0)
Y = np.array([1, 0, 9, 5, 3], np.uint8)  # the first three are for training
needs_scipy = pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="scipy is not installed")


def pictures(side: int, *channels: int) -> np.ndarray:
    return DRAW.integers(0, 256, (5, side, side, *channels), np.uint8)


def write_npz(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def write_one(path: Path, x: np.ndarray, y: np.ndarray = Y) -> Path:
    return write_npz(path, train_x=x[:3], train_y=y[:3], test_x=x[3:], test_y=y[3:])


def write_mat(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = np.where(y == 0, 10, y)[:, np.newaxis]
    importlib.import_module("scipy.io").savemat(path, {"X": np.moveaxis(x, 0, -1), "y": labels}, do_compression=True)


def write_mats(root: Path, names: tuple[str, str], x: np.ndarray) -> None:
    write_mat(root / names[0], x[:3], Y[:3])
    write_mat(root / names[1], x[3:], Y[3:])


def write_mnist(root: Path, x: np.ndarray) -> None:
    for name, values in zip(mnist.MNIST.layout.files, (x[:3], Y[:3], x[3:], Y[3:]), strict=True):
        write_idx(root / mnist.MNIST.layout.folder / name, values)


def write_synth(root: Path, x: np.ndarray) -> None:
    write_npz(root / "SynthDigits" / "train.npz", x=x[:3], y=Y[:3])
    write_npz(root / "SynthDigits" / "test.npz", x=x[3:], y=Y[3:])


WRITERS: dict[str, tuple[str, Callable[[Path, np.ndarray], Any], np.ndarray]] = {
    "mnist": ("mnist", write_mnist, pictures(28)),
    "usps": ("usps", lambda root, x: write_one(root / "digits" / "usps.npz", x), pictures(16)),
    "mnistm": ("mnistm", lambda root, x: write_one(root / "digits" / "mnistm.npz", x), pictures(32, 3)),
    "synthdigits": ("synthdigits", write_synth, pictures(32, 3)),
    "svhn": ("svhn", lambda root, x: write_mats(root, ("train_32x32.mat", "test_32x32.mat"), x), pictures(32, 3)),
    "synthdigits, originals": (
        "synthdigits",
        lambda root, x: write_mats(root / "SynthDigits", ("synth_train_32x32.mat", "synth_test_32x32.mat"), x),
        pictures(32, 3),
    ),
}
every_layout = pytest.mark.parametrize(
    "layout",
    [pytest.param(name, marks=needs_scipy) if name in ("svhn", "synthdigits, originals") else name for name in WRITERS],
)


def written(root: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> Pictures:
    """What is read back of five digits in this layout; MNIST's is allowed to be that small."""
    monkeypatch.setattr(mnist, "MNIST", small(mnist.MNIST, train_rows=3, test_rows=2))
    domain, write, x = WRITERS[layout]
    write(root, x)
    return read_digits(root, [domain])[domain]


def by_pillow(picture: np.ndarray) -> np.ndarray:
    """FedBN's transforms: Resize([28, 28]) of a Pillow image, then three channels; (3, 28, 28)."""
    image = Image.fromarray(picture).resize((28, 28), Image.Resampling.BILINEAR).convert("RGB")
    return np.asarray(image).transpose(2, 0, 1)


@every_layout
def test_every_set_comes_in_the_same_form(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = written(tmp_path, layout, monkeypatch)
    assert (digits.x.shape, digits.x.dtype.name, digits.x.flags.c_contiguous) == ((5, 3, 28, 28), "uint8", True)
    assert (digits.official_train.tolist(), digits.official_test.tolist()) == ([0, 1, 2], [3, 4])


@every_layout
def test_labels_are_the_digits_themselves(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = written(tmp_path, layout, monkeypatch)
    assert (digits.y.tolist(), digits.y.dtype.name) == (Y.tolist(), "int64")


@every_layout
def test_pictures_are_those_of_fedbn(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = written(tmp_path, layout, monkeypatch)
    np.testing.assert_array_equal(digits.x, [by_pillow(picture) for picture in WRITERS[layout][2]])


@pytest.mark.parametrize("layout", ["mnist", "usps"])
def test_a_grey_digit_has_three_equal_channels(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = written(tmp_path, layout, monkeypatch).x
    assert (x == x[:, :1]).all()


def test_pictures_of_the_right_size_are_untouched() -> None:
    x = pictures(28, 3)
    np.testing.assert_array_equal(resize(x, 28), x)


@given(level=st.integers(0, 255), side=st.integers(1, 64))
def test_a_picture_of_one_level_keeps_it(level: int, side: int) -> None:
    assert set(resize(np.full((1, side, side), level, np.uint8), 28).ravel().tolist()) == {level}


def test_sets_come_in_the_order_asked_for(tmp_path: Path) -> None:
    write_one(tmp_path / "digits" / "usps.npz", pictures(16))
    write_one(tmp_path / "digits" / "mnistm.npz", pictures(32, 3))
    assert list(read_digits(tmp_path, ["mnistm", "usps"])) == ["mnistm", "usps"]


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with refused("no digits 'mnist_m'", "Did you mean 'mnistm'", "svhn, usps"):
        read_digits(tmp_path, ["mnist_m"])


@pytest.mark.parametrize(
    ("domain", "file"),
    [
        ("mnist", "MNIST/raw"),
        ("usps", "digits"),
        ("mnistm", "digits"),
        ("synthdigits", "SynthDigits"),
        ("svhn", "train_32x32.mat and test_32x32.mat"),
    ],
)
def test_missing_files_are_named_with_their_folder(tmp_path: Path, domain: str, file: str) -> None:
    with refused("is not complete", file, "Put", str(tmp_path)):
        DOMAINS[domain](tmp_path)


def test_without_scipy_svhn_is_refused_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).write_bytes(b"MATLAB 5.0")
    monkeypatch.setitem(sys.modules, "scipy.io", None)  # the import system's way to say that it is not there
    with refused("train_32x32.mat", "needs scipy", "pip install scipy"):
        read_digits(tmp_path, ["svhn"])


@needs_scipy
@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.99])
def test_a_truncated_mat_file_is_refused_wherever_it_ends(tmp_path: Path, kept: float) -> None:
    write_mats(tmp_path, ("train_32x32.mat", "test_32x32.mat"), pictures(32, 3))
    content = (tmp_path / "test_32x32.mat").read_bytes()
    (tmp_path / "test_32x32.mat").write_bytes(content[: int(kept * len(content))])
    with refused("test_32x32.mat cannot be used"):
        read_digits(tmp_path, ["svhn"])


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (pictures(16).astype(np.float32), Y, "its pictures are float32"),
        (pictures(16, 4), Y, r"shape \(3, 16, 16, 4\)"),
        (pictures(16).reshape(5, -1), Y, r"shape \(3, 256\)"),
        (pictures(16), Y[:4], r"its labels are uint8 of shape \(1,\)"),
        (pictures(16), Y.astype(float), "its labels are float64"),
        (pictures(16), Y + 1, "its labels go from 1 to 10"),
    ],
    ids=["floats", "four channels", "flat", "fewer labels", "float labels", "range"],
)
def test_arrays_of_another_form_are_refused(tmp_path: Path, x: np.ndarray, y: np.ndarray, words: str) -> None:
    write_one(tmp_path / "digits" / "usps.npz", x, y)
    with refused("usps.npz cannot be used", words):
        read_digits(tmp_path, ["usps"])


def test_an_archive_without_an_array_is_refused_with_what_it_has(tmp_path: Path) -> None:
    write_npz(tmp_path / "digits" / "usps.npz", x=pictures(16), y=Y)
    with refused("no array 'train_x'", "there are x, y"):
        read_digits(tmp_path, ["usps"])


class Trace:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def test_an_archive_of_pickled_objects_is_refused_and_nothing_is_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    write_one(tmp_path / "digits" / "usps.npz", np.array([Trace(trace)] * 5, dtype=object))
    with refused("usps.npz cannot be used", "allow_pickle"):
        read_digits(tmp_path, ["usps"])
    assert not trace.exists()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10**6), mask=st.integers(1, 255))
def test_an_archive_with_any_altered_byte_is_refused_or_holds_the_same_digits(
    tmp_path: Path, position: int, mask: int
) -> None:
    path = write_one(tmp_path / "digits" / "usps.npz", WRITERS["usps"][2])
    expected = read_digits(tmp_path, ["usps"])["usps"]
    flip(path, position % path.stat().st_size, mask)
    digits = unless_refused(lambda: read_digits(tmp_path, ["usps"])["usps"])
    assert digits is None or (digits.x.tobytes(), digits.y.tolist()) == (expected.x.tobytes(), expected.y.tolist())


def test_real_usps_has_the_published_counts(real: Real) -> None:
    usps = read_digits(real("digits", "digits"), ["usps"])["usps"]
    train, test = np.bincount(usps.y[usps.official_train]), np.bincount(usps.y[usps.official_test])
    assert train.tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert test.tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


def test_real_mnistm_has_the_labels_of_mnist_in_the_same_order(real: Real) -> None:
    mnistm = read_digits(real("digits", "digits"), ["mnistm"])["mnistm"]
    grey = mnist.read_mnist(real("mnist", "MNIST/raw"))
    assert mnistm.x.shape == (3500, 3, 28, 28)
    np.testing.assert_array_equal(mnistm.y[:1500], grey.y[:1500])
    np.testing.assert_array_equal(mnistm.y[1500:], grey.y[60_000:62_000])


def test_real_mnist_keeps_its_pixels_in_each_channel(real: Real) -> None:
    root = real("mnist", "MNIST/raw")
    np.testing.assert_array_equal(read_digits(root, ["mnist"])["mnist"].x[:, 2], mnist.read_mnist(root).x[:, 0])
