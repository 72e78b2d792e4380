"""Laws of the CIFAR-10 reader: every way of pickling the same pictures is accepted, and no pickle runs anything."""

import builtins
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit.data.files.cifar import CIFAR10, CIFAR100, read_batches, read_cifar10, read_cifar100
from tests.data.files import flip, refused, small, unless_refused, with_checksums
from tests.real_files import Real

ROWS = 4  # of each batch
DRAW = np.random.default_rng(0)
X = DRAW.integers(0, 256, (6 * ROWS, 3072), np.uint8)
Y = np.arange(6 * ROWS) % 10
SMALL = with_checksums(small(CIFAR10, train_rows=5 * ROWS, test_rows=ROWS), X, Y)
FOLDER = CIFAR10.layout.folder

Dump = Callable[[np.ndarray, list[int]], bytes]


def original(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 and numpy 1 pickled it, byte by byte, with the list of names that ours lack."""

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    state = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03(K\x01M"
        + struct.pack("<H", pixels.shape[0])
        + b"M"
        + struct.pack("<H", pixels.shape[1])
        + b"\x86cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87Rq\x05"
        + state
        + b"\x89T"
        + struct.pack("<I", pixels.size)
        + pixels.tobytes()
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + b"".join(text(f"camion_s_{label:06}.png") for label in labels) + b"e"
    entries = (text("data") + array, text("labels") + numbers, text("batch_label") + text("x"), text("filenames"))
    return b"\x80\x02}q\x06(" + b"".join(entries) + names + b"u."


def anew(protocol: int, *, key: Callable[[str], Any] = str, change: Callable[[Any], Any] = lambda x: x) -> Dump:
    def dump(pixels: np.ndarray, labels: list[int]) -> bytes:
        return pickle.dumps({key("data"): change(pixels), key("labels"): labels}, protocol)

    return dump


def labels_as_array(pixels: np.ndarray, labels: list[int]) -> bytes:
    return pickle.dumps({"data": pixels, "labels": np.array(labels, ">i4")}, 4)


def under_the_names_of_numpy_1(pixels: np.ndarray, labels: list[int]) -> bytes:
    """Protocol 3 has no lengths of module names, so a name can be exchanged for a shorter one."""
    return anew(3)(pixels, labels).replace(b"numpy._core.", b"numpy.core.")


PACKINGS: dict[str, Dump] = {
    "original": original,
    **{f"protocol {number}": anew(number) for number in range(6)},
    "keys of bytes": anew(4, key=str.encode),
    "column by column": anew(4, change=np.asfortranarray),
    "column by column, protocol 5": anew(5, change=np.asfortranarray),
    "labels as an array": labels_as_array,
    "numpy 1": under_the_names_of_numpy_1,
}


def write_set(root: Path, dump: Dump = original, x: np.ndarray = X, y: np.ndarray = Y) -> Path:
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(CIFAR10.layout.files):
        part = slice(number * ROWS, (number + 1) * ROWS)
        (root / FOLDER / name).write_bytes(dump(x[part], y[part].tolist()))
    return root


@pytest.mark.parametrize("dump", PACKINGS.values(), ids=PACKINGS.keys())
def test_however_the_pictures_are_pickled_they_are_the_same(tmp_path: Path, dump: Dump) -> None:
    pictures = read_batches(write_set(tmp_path, dump), SMALL)
    np.testing.assert_array_equal(pictures.x, X.reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(pictures.y, Y)
    assert (pictures.x.dtype.name, pictures.y.dtype.name) == ("uint8", "int64")


def test_the_originals_form_is_what_python_reads_without_restrictions() -> None:
    """The hand-made batch of these tests, checked by the real unpickler."""
    batch = pickle.loads(original(X[:ROWS], Y[:ROWS].tolist()), encoding="latin1")
    np.testing.assert_array_equal(batch["data"], X[:ROWS])
    assert batch["labels"] == Y[:ROWS].tolist()


def test_training_batches_come_before_the_test_batch(tmp_path: Path) -> None:
    pictures = read_batches(write_set(tmp_path), SMALL)
    assert pictures.official_train.tolist() == list(range(5 * ROWS))
    assert pictures.official_test.tolist() == list(range(5 * ROWS, 6 * ROWS))


def test_missing_batches_are_listed_with_the_folder_they_belong_to(tmp_path: Path) -> None:
    (write_set(tmp_path) / FOLDER / "data_batch_3").unlink()
    (tmp_path / FOLDER / "test_batch").unlink()
    with refused(f"data_batch_3 and test_batch not found in {tmp_path / FOLDER}", "Put data_batch_1", "CIFAR10"):
        read_batches(tmp_path, SMALL)


def touch(path: str) -> None:
    Path(path).touch()


class Call:
    """Pickled, it asks for a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.asked = (function, arguments)

    def __reduce__(self) -> Any:
        return self.asked


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "ask",
    [
        lambda path: Call(os.system, f"touch {path}"),
        lambda path: Call(builtins.exec, f"open({str(path)!r}, 'w')"),
        lambda path: Call(builtins.open, str(path), "w"),
        lambda path: Call(touch, str(path)),
        lambda path: Call(np.save, str(path), 1),
    ],
    ids=["system", "exec", "open", "own", "numpy"],
)
def test_a_pickle_that_tries_to_run_something_is_refused_and_nothing_is_run(
    tmp_path: Path, protocol: int, ask: Callable[[Path], Call]
) -> None:
    trace = tmp_path / "trace.npy"
    batch = {"data": X[:ROWS], "labels": ask(trace)}
    (write_set(tmp_path) / FOLDER / "data_batch_2").write_bytes(pickle.dumps(batch, protocol))
    with refused("data_batch_2", "it asks for", "nothing of it was run"):
        read_batches(tmp_path, SMALL)
    assert not trace.exists()


@pytest.mark.parametrize(
    "name",
    [
        b"cbuiltins\neval\n",
        b"cnumpy\nload\n",
        b"cnumpy\nmemmap\n",
        b"cnumpy.core.multiarray\nfromfile\n",
        b"\x8c\x05numpy\x8c\x0endarray.tofile\x93",
        b"\x8c\x07_codecs\x8c\x06lookup\x93",
    ],
    ids=["eval", "load", "memmap", "fromfile", "attribute", "codec"],
)
def test_no_name_is_looked_up_but_the_few_that_arrays_need(tmp_path: Path, name: bytes) -> None:
    (write_set(tmp_path) / FOLDER / "test_batch").write_bytes(b"\x80\x04" + name + b".")
    with refused("test_batch", "it asks for"):
        read_batches(tmp_path, SMALL)


def test_python_would_run_what_these_tests_refuse(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Call(touch, str(tmp_path / "trace"))))
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "values",
    [np.array([None] * ROWS), X[:ROWS].astype(float), np.zeros(ROWS, "M8[s]"), np.zeros(ROWS, [("a", "u1")])],
    ids=["objects", "floats", "times", "records"],
)
def test_arrays_of_anything_but_whole_numbers_are_refused(tmp_path: Path, values: np.ndarray) -> None:
    batch = pickle.dumps({"data": values, "labels": [0] * ROWS}, 4)
    (write_set(tmp_path) / FOLDER / "test_batch").write_bytes(batch)
    with refused("test_batch cannot be used", "not of whole numbers"):
        read_batches(tmp_path, SMALL)


def test_bytes_in_an_encoding_that_numpy_does_not_use_are_refused(tmp_path: Path) -> None:
    """A codec is looked up by name, and looking it up imports a module."""
    batch = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R."
    (write_set(tmp_path) / FOLDER / "test_batch").write_bytes(batch)
    with refused("test_batch cannot be used", "encoded as hex"):
        read_batches(tmp_path, SMALL)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"data": X[:3], "labels": [0] * 3}, r"shape \(3, 3072\)"),
        ({"data": X[:ROWS, :784], "labels": [0] * ROWS}, r"shape \(4, 784\)"),
        ({"data": X[:ROWS].astype(np.int64), "labels": [0] * ROWS}, "its data are int64"),
        ({"data": X[:ROWS], "labels": [0] * 3}, r"its labels are int64 of shape \(3,\)"),
        ({"data": X[:ROWS], "labels": [0, 1, 2, 10]}, "its labels go from 0 to 10"),
        ({"data": X[:ROWS], "labels": [0, 1, 2, -1]}, "its labels go from -1 to 2"),
        ({"data": X[:ROWS], "labels": ["a"] * ROWS}, "its labels are <U1"),
        ({"data": X[:ROWS], "labels": [0, [1], 2, 3]}, "ValueError"),
        ({"data": X[:ROWS], "fine_labels": [0] * ROWS}, "KeyError: 'labels'"),
        ([1, 2, 3], "AttributeError"),
    ],
    ids=["rows", "width", "type", "fewer", "high", "low", "texts", "ragged", "cifar100", "list"],
)
def test_a_batch_of_another_form_is_refused(tmp_path: Path, batch: Any, words: str) -> None:
    (write_set(tmp_path) / FOLDER / "data_batch_4").write_bytes(pickle.dumps(batch, 4))
    with refused("data_batch_4", words, "Replace it"):
        read_batches(tmp_path, SMALL)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_batch_is_refused_wherever_it_ends(tmp_path: Path, kept: float) -> None:
    path = write_set(tmp_path) / FOLDER / "data_batch_1"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with refused("data_batch_1 cannot be used"):
        read_batches(tmp_path, SMALL)


@pytest.mark.parametrize(("what", "row"), [("pixels", 0), ("pixels", 23), ("labels", 0), ("labels", 23)])
def test_an_altered_picture_or_label_is_refused(tmp_path: Path, what: str, row: int) -> None:
    x, y = X.copy(), Y.copy()
    {"pixels": x[row], "labels": y[row : row + 1]}[what][0] ^= 1
    with refused("CIFAR-10", f"the {what} have another sha256", "Delete what is there"):
        read_batches(write_set(tmp_path, anew(4), x, y), SMALL)


def test_batches_in_another_order_are_refused(tmp_path: Path) -> None:
    first, second = (write_set(tmp_path) / FOLDER / f"data_batch_{number}" for number in (1, 2))
    first.rename(tmp_path / "kept")
    second.rename(first)
    (tmp_path / "kept").rename(second)
    with refused("another sha256"):
        read_batches(tmp_path, SMALL)


@pytest.fixture(scope="module")
def six_batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("six"))


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 300), mask=st.integers(1, 255), from_end=st.booleans())
def test_a_batch_with_any_altered_byte_is_refused_or_holds_the_same_pictures(
    six_batches: Path, position: int, mask: int, from_end: bool
) -> None:
    """The first and last 300 bytes hold everything but pixels."""
    path = six_batches / FOLDER / "data_batch_5"
    path.write_bytes(original(X[4 * ROWS : 5 * ROWS], Y[4 * ROWS : 5 * ROWS].tolist()))
    flip(path, -1 - position if from_end else position, mask)
    pictures = unless_refused(lambda: read_batches(six_batches, SMALL))
    assert pictures is None or (pictures.x.tobytes(), pictures.y.tolist()) == (X.tobytes(), Y.tolist())


@pytest.mark.slow  # unpacking takes half a minute
def test_real_cifar10_is_accepted_and_has_the_published_means(real: Real) -> None:
    pictures = read_cifar10(real("cifar10", FOLDER))
    assert pictures.x.shape == (60_000, 3, 32, 32)
    assert np.bincount(pictures.y[pictures.official_train]).tolist() == [5000] * 10
    assert np.bincount(pictures.y[pictures.official_test]).tolist() == [1000] * 10
    means = pictures.x[pictures.official_train].mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.49139968, 0.48215841, 0.44653091], atol=1e-7)


@pytest.mark.slow  # unpacking takes half a minute
def test_real_cifar10_with_one_altered_bit_is_refused(real: Real, tmp_path: Path) -> None:
    source = real("cifar10", FOLDER) / FOLDER
    (tmp_path / FOLDER).mkdir()
    for name in CIFAR10.layout.files:
        (tmp_path / FOLDER / name).write_bytes((source / name).read_bytes())
    flip(tmp_path / FOLDER / "data_batch_3", 15_000_000)
    with refused("CIFAR-10", "the pixels have another sha256"):
        read_cifar10(tmp_path)


# ---- CIFAR-100 -------------------------------------------------------------------------------------------------------

FINE = np.arange(24) * 4


def write_cifar100(root: Path, fine: np.ndarray = FINE) -> Path:
    """As torchvision's files: fine and coarse labels, training and test in one pickle each."""
    folder = root / CIFAR100.layout.folder
    folder.mkdir(parents=True)
    for name, part in (("train", slice(0, 20)), ("test", slice(20, 24))):
        labels = {"fine_labels": fine[part].tolist(), "coarse_labels": [0] * len(fine[part])}
        (folder / name).write_bytes(pickle.dumps({"data": X[part], "filenames": ["a.png"], **labels}, 2))
    return root


def test_cifar_100_has_its_fine_labels_training_before_test(tmp_path: Path) -> None:
    published = small(CIFAR100, train_rows=20, test_rows=4)
    pictures = read_batches(write_cifar100(tmp_path), published, "fine_labels", classes=100)
    np.testing.assert_array_equal(pictures.x, X.reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(pictures.y, FINE)
    assert (len(pictures.official_train), len(pictures.official_test)) == (20, 4)


def test_cifar_100_with_other_classes_or_of_another_size_is_refused(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    published = small(CIFAR100, train_rows=20, test_rows=4)
    with refused("train cannot be used", r"uint8 of shape \(20, 3072\)"):
        read_cifar100(tmp_path)
    with refused("test cannot be used", "labels go from 80 to 92, not from 0 to 79"):
        read_batches(tmp_path, published, "fine_labels", classes=80)
    with refused("CIFAR-100", "2 pictures of each class"):
        read_batches(tmp_path, replace(published, per_class=2), "fine_labels", classes=100)
