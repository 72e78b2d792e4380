"""The file of one client: what is exported is what a net gets, and what is wrong with a file is said with its name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlit import TensorData
from fedlit.data.client_file import ClientFile, write_client_file
from fedlit.data.newcomers import PARTS
from fedlit.errors import DataError

SIZES = (30, 20)


def two_clients(x: Any = None) -> TensorData:
    rng = np.random.default_rng(0)
    count = sum(SIZES)
    rows = rng.normal(size=(count, 4)).astype("float32") if x is None else x
    data = TensorData(
        rows, rng.integers(3, size=count), np.repeat([0, 1], SIZES), num_classes=5, val_fraction=0.2, adapt_fraction=0.1
    )
    data.setup()
    return data


def exported(data: TensorData, client: int, folder: Path) -> ClientFile:
    write_client_file(folder / "own.npz", data, client)
    own = ClientFile(folder / "own.npz")
    own.setup()
    return own


@pytest.mark.parametrize("several", [False, True])
def test_every_part_has_the_samples_of_the_client_in_their_order(several: bool, tmp_path: Path) -> None:
    x = np.arange(50 * 3, dtype="float32").reshape(50, 3)
    data = two_clients({"a": x, "mask": x > 9} if several else x)
    for client in (0, 1):
        own = exported(data, client, tmp_path)
        assert own.num_classes == 5, "the file knows classes that the client lacks"
        for part in PARTS:
            theirs, ours = getattr(data.everyone, part)[client], getattr(own.everyone, part)[0]
            (x1, y1), (x2, y2) = data.rows(data.store, theirs), own.rows(own.store, ours)
            assert torch.equal(y1, y2)
            assert all(torch.equal(x1[k], x2[k]) for k in x1) if several else torch.equal(x1, x2)


def own_arrays(**changed: Any) -> dict[str, Any]:
    x, y = np.zeros((6, 4), dtype="float32"), np.arange(6) % 2
    arrays = {"train/x": x, "train/y": y, "test/x": x[:2], "test/y": y[:2]} | changed
    return {name: value for name, value in arrays.items() if value is not None}


def test_a_file_of_own_arrays_needs_nothing_else(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **own_arrays())
    own = ClientFile(tmp_path / "own.npz")
    own.setup()
    assert (own.num_clients, own.num_classes, own.sizes.tolist()) == (1, 2, [6])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"train/y": None}, "has no arrays train/x and train/y"),
        ({"test/y": None}, "test has x, but train has x, y"),
        ({"test/x": np.zeros((2, 5), dtype="float32")}, r"test/x has shape \(2, 5\).* but train/x has \(6, 4\)"),
        ({"train/y": np.arange(5)}, "train/x has 6 rows, but train/y has 5"),
        ({"train/x": np.full((6, 4), np.nan, dtype="float32")}, "NaN or infinite values in 6 of its 6 rows"),
        ({"about": np.frombuffer(b"{", dtype=np.uint8)}, "'about' is not JSON"),
        ({"train/x": np.array([{}] * 6, dtype=object)}, "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **own_arrays(**changed))
    with pytest.raises(DataError, match=why) as raised:
        ClientFile(tmp_path / "own.npz").setup()
    assert "own.npz" in str(raised.value)


def test_a_file_that_is_missing_or_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file .*gone.npz"):
        ClientFile(tmp_path / "gone.npz").setup()
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match="text.npz cannot be read"):
        ClientFile(tmp_path / "text.npz").setup()
