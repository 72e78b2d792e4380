"""Laws of the EMNIST reader: upright pictures in the files' order, labels from 0; anything else is refused."""

from pathlib import Path

import numpy as np
import pytest

from fedlit import EMNIST, IID
from fedlit.data.files.emnist import KINDS, Kind, read_emnist
from fedlit.errors import ConfigError, DataError
from tests.data.files import write_idx

X = np.random.default_rng(0).integers(0, 256, (10, 28, 28), np.uint8)


def write(root: Path, kind: Kind, y: np.ndarray, ending: str = "", x: np.ndarray = X) -> Path:
    names = KINDS[kind].published.layout.files
    for name, values in zip(names, (x[:6], y[:6], x[6:], y[6:]), strict=True):
        write_idx(root / "EMNIST" / "raw" / f"{name}{ending}", values)
    return root


def labels(kind: Kind) -> np.ndarray:
    found = KINDS[kind]
    return (np.arange(10) % found.classes + found.first_label).astype(np.uint8)


@pytest.mark.parametrize("ending", ["", ".gz"], ids=["plain", "gzipped"])
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_stand_upright_and_labels_begin_at_zero(kind: Kind, ending: str, tmp_path: Path) -> None:
    pictures = read_emnist(write(tmp_path, kind, labels(kind), ending), kind)
    np.testing.assert_array_equal(pictures.x[:, 0], X.transpose(0, 2, 1))
    np.testing.assert_array_equal(pictures.y, np.arange(10) % KINDS[kind].classes)
    assert (len(pictures.official_train), len(pictures.official_test)) == (6, 4)


def test_labels_of_another_set_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "digits", np.full(10, 30, np.uint8))
    with pytest.raises(DataError, match=r"emnist-digits-train-labels.*labels go from 30 to 30, not from 0 to 9"):
        read_emnist(tmp_path, "digits")


def test_pictures_without_their_labels_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "digits", labels("digits"))
    write_idx(tmp_path / "EMNIST" / "raw" / "emnist-digits-train-labels-idx1-ubyte", labels("digits")[:5])
    with pytest.raises(DataError, match=r"emnist-digits-train-images.*not \(5, 28, 28\)"):
        read_emnist(tmp_path, "digits")


def test_missing_files_are_named_with_torchvisions_call(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"emnist-letters-train-images.*EMNIST\('.*', split='letters', download=True\)"):
        read_emnist(tmp_path, "letters")


def test_the_data_module_hands_the_pictures_out(tmp_path: Path) -> None:
    write(tmp_path, "balanced", labels("balanced"))
    data = EMNIST(root=str(tmp_path), partition=IID(num_clients=2), test_fraction=0.4)
    data.setup()
    assert (data.num_classes, data.sample_shape, data.num_clients) == (47, (1, 28, 28), 2)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.kind is 'letter'\. Did you mean 'letters'"):
        EMNIST(kind="letter")  # type: ignore[arg-type]  # the point
