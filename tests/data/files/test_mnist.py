"""Laws of the idx readers: the files' values in their order, plain or gzipped; anything else is refused."""

import gzip
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlit.data.files import Pictures
from fedlit.data.files.mnist import FASHION_MNIST, MNIST, read_fashion_mnist, read_idx, read_idx_set, read_mnist
from tests.data.files import flip, refused, small, unless_refused, with_checksums, write_idx
from tests.real_files import Real

SMALL = small(MNIST, train_rows=6, test_rows=4)
DRAW = np.random.default_rng(0)
X = DRAW.integers(0, 256, (10, 28, 28), np.uint8)
Y = np.array([5, 0, 4, 1, 9, 2, 7, 2, 1, 0], np.uint8)
NAMES = MNIST.layout.files
RAW = Path(MNIST.layout.folder)


def write_set(root: Path, *, ending: str = "", x: np.ndarray = X, y: np.ndarray = Y, folder: Path = RAW) -> Path:
    for name, values in zip(NAMES, (x[:6], y[:6], x[6:], y[6:]), strict=True):
        write_idx(root / folder / f"{name}{ending}", values)
    return root


@pytest.mark.parametrize("ending", ["", ".gz"], ids=["plain", "gzipped"])
def test_pictures_and_labels_arrive_unchanged_and_in_their_order(tmp_path: Path, ending: str) -> None:
    pictures = read_idx_set(write_set(tmp_path, ending=ending), SMALL)
    np.testing.assert_array_equal(pictures.x, X[:, np.newaxis])
    np.testing.assert_array_equal(pictures.y, Y)
    assert (pictures.x.dtype.name, pictures.y.dtype.name) == ("uint8", "int64")


def test_training_rows_come_before_test_rows_and_each_row_is_in_one_of_them(tmp_path: Path) -> None:
    pictures = read_idx_set(write_set(tmp_path), SMALL)
    assert pictures.official_train.tolist() == [0, 1, 2, 3, 4, 5]
    assert pictures.official_test.tolist() == [6, 7, 8, 9]


def test_a_plain_file_is_preferred_to_its_gz(tmp_path: Path) -> None:
    write_set(tmp_path, ending=".gz", x=np.zeros_like(X))
    np.testing.assert_array_equal(read_idx_set(write_set(tmp_path), SMALL).x[:, 0], X)


def test_arrays_can_be_written_to_and_lie_in_one_piece(tmp_path: Path) -> None:
    x = read_idx_set(write_set(tmp_path), SMALL).x
    assert x.flags.writeable
    assert x.flags.c_contiguous


def test_missing_files_are_listed_with_the_folder_they_belong_to(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / RAW / NAMES[1]).unlink()
    (tmp_path / RAW / NAMES[2]).unlink()
    with refused(f"{NAMES[1]} and {NAMES[2]} not found in {tmp_path / RAW}", r"plain or as \.gz", "download=True"):
        read_idx_set(tmp_path, SMALL)


@pytest.mark.parametrize(("read", "folder"), [(read_mnist, "MNIST/raw"), (read_fashion_mnist, "FashionMNIST/raw")])
def test_an_empty_root_is_refused_with_all_names(tmp_path: Path, read: Callable[[Path], Pictures], folder: str) -> None:
    with refused(*NAMES, f"Put {', '.join(NAMES)}", str(tmp_path / folder)):
        read(tmp_path)


@pytest.mark.parametrize("length", [0, 3, 4, 11, 15, 16, 17, 100, 16 + 6 * 784 - 1])
def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path, length: int) -> None:
    path = write_set(tmp_path) / RAW / NAMES[0]
    path.write_bytes(path.read_bytes()[:length])
    with refused(str(path), "Replace it"):
        read_idx_set(tmp_path, SMALL)


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_gz_is_refused_wherever_it_ends(tmp_path: Path, kept: float) -> None:
    path = write_set(tmp_path, ending=".gz") / RAW / f"{NAMES[0]}.gz"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with refused(str(path), "Replace it"):
        read_idx_set(tmp_path, SMALL)


def test_a_file_that_goes_on_after_its_end_is_refused(tmp_path: Path) -> None:
    path = write_set(tmp_path) / RAW / NAMES[0]
    path.write_bytes(path.read_bytes() + b"\0")
    with refused("it has 4705 values where its header says 4704"):
        read_idx_set(tmp_path, SMALL)


@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_a_wrong_magic_number_is_refused(tmp_path: Path, position: int) -> None:
    flip(write_set(tmp_path) / RAW / NAMES[0], position)
    with refused("it starts with", "not with the magic number 00 00 08 03"):
        read_idx_set(tmp_path, SMALL)


def test_labels_in_the_place_of_pictures_are_refused(tmp_path: Path) -> None:
    shutil.copy(write_set(tmp_path) / RAW / NAMES[1], tmp_path / RAW / NAMES[0])
    with refused("it starts with 00 00 08 01, not with the magic number 00 00 08 03"):
        read_idx_set(tmp_path, SMALL)


def test_pictures_of_another_size_are_refused(tmp_path: Path) -> None:
    with refused(r"pictures of shape \(6, 32, 32\), not \(6, 28, 28\)"):
        read_idx_set(write_set(tmp_path, x=np.zeros((10, 32, 32), np.uint8)), SMALL)


def test_another_number_of_labels_than_of_pictures_is_refused(tmp_path: Path) -> None:
    write_idx(write_set(tmp_path) / RAW / NAMES[1], Y[:5])
    with refused(NAMES[1], r"shape \(5,\)", r"\(6,\)"):
        read_idx_set(tmp_path, SMALL)


def test_a_label_above_nine_is_refused(tmp_path: Path) -> None:
    with refused(NAMES[3], "its labels go from 0 to 10, not from 0 to 9"):
        read_idx_set(write_set(tmp_path, y=np.array([0] * 9 + [10], np.uint8)), SMALL)


@pytest.mark.parametrize(("name", "what"), [(NAMES[0], "pixels"), (NAMES[1], "labels"), (NAMES[2], "pixels")])
def test_one_altered_bit_is_refused_where_the_checksum_is_known(tmp_path: Path, name: str, what: str) -> None:
    known = with_checksums(SMALL, X, Y)
    read_idx_set(write_set(tmp_path), known)
    flip(tmp_path / RAW / name, -1)
    with refused(str(tmp_path / RAW), f"the {what} have another sha256", "Delete what is there"):
        read_idx_set(tmp_path, known)


def test_fashion_mnist_with_unequal_classes_is_refused(tmp_path: Path) -> None:
    folder = Path(FASHION_MNIST.layout.folder)
    balanced = replace(small(FASHION_MNIST, train_rows=6, test_rows=4), per_class=2)
    read_idx_set(write_set(tmp_path, y=np.arange(10, dtype=np.uint8) % 5, folder=folder), balanced)
    with refused("Fashion-MNIST", "another set", "2 pictures of each class"):
        read_idx_set(write_set(tmp_path, folder=folder), balanced)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10**6), mask=st.integers(1, 255))
def test_a_gz_with_any_altered_byte_is_refused_or_holds_the_same_values(
    tmp_path: Path, position: int, mask: int
) -> None:
    path = tmp_path / "values.gz"
    write_idx(path, Y)
    flip(path, position % path.stat().st_size, mask)
    values = unless_refused(lambda: read_idx(path, dimensions=1))
    assert values is None or values.tolist() == Y.tolist()


def test_real_mnist_has_the_published_counts_mean_and_deviation(real: Real) -> None:
    pictures = read_mnist(real("mnist", "MNIST/raw"))
    train, test = pictures.official_train, pictures.official_test
    assert pictures.x.shape == (70_000, 1, 28, 28)
    assert np.bincount(pictures.y[train]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(pictures.y[test]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert round(float(pictures.x[train].mean() / 255), 4) == 0.1307
    assert round(float(pictures.x[train].std() / 255), 4) == 0.3081


def test_real_mnist_with_one_altered_bit_is_refused(real: Real, tmp_path: Path) -> None:
    shutil.copytree(real("mnist", "MNIST/raw") / RAW, tmp_path / RAW)
    plain = tmp_path / RAW / NAMES[2]
    plain.with_name(f"{NAMES[2]}.gz").unlink(missing_ok=True)
    flip(plain, 10_000)
    with refused("MNIST", "the pixels have another sha256"):
        read_mnist(tmp_path)


def test_real_mnist_gzipped_anew_is_accepted(real: Real, tmp_path: Path) -> None:
    source = real("mnist", "MNIST/raw") / RAW
    (tmp_path / RAW).mkdir(parents=True)
    for name in NAMES:
        (tmp_path / RAW / f"{name}.gz").write_bytes(gzip.compress((source / name).read_bytes(), 1))
    assert len(read_mnist(tmp_path).y) == 70_000


def test_real_mnist_in_the_place_of_fashion_mnist_is_refused(real: Real, tmp_path: Path) -> None:
    (tmp_path / "FashionMNIST").mkdir()
    (tmp_path / "FashionMNIST" / "raw").symlink_to(real("mnist", "MNIST/raw") / RAW)
    with refused("Fashion-MNIST", "another set", "7000 pictures of each class"):
        read_fashion_mnist(tmp_path)
