"""Laws of FEMNIST by writer, in LEAF's layout: bytes as they were, a client per writer; anything else is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlit import FEMNIST
from fedlit.data.files.femnist import read_femnist
from fedlit.errors import DataError
from tests.data.built import has_disjoint_parts

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 784))
LABELS = [k * 5 for k in range(12)]
WRITERS = {"f0002_07": range(5, 12), "f0001_41": range(5)}


def leaf(writers: dict[str, Any], change: dict[str, Any] | None = None) -> dict[str, Any]:
    data = {
        writer: {"x": (PIXELS[list(rows)] / 255).tolist(), "y": [LABELS[k] for k in rows]}
        for writer, rows in writers.items()
    }
    content = {"users": list(data), "num_samples": [len(own["y"]) for own in data.values()], "user_data": data}
    return content | (change or {})


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_pictures_are_the_bytes_of_leaf_and_writers_keep_their_rows(tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "all_data_0.json", leaf(WRITERS))
    written = read_femnist(tmp_path)
    assert written.writers == ["f0001_41", "f0002_07"]
    for rows, own in zip(written.rows, (WRITERS["f0001_41"], WRITERS["f0002_07"]), strict=True):
        np.testing.assert_array_equal(written.x[rows].reshape(len(rows), -1), PIXELS[list(own)])
        assert written.y[rows].tolist() == [LABELS[k] for k in own]


def test_leafs_training_and_test_files_are_joined_writer_by_writer(tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "train" / "a.json", leaf({"w": range(4)}))
    write(tmp_path / "femnist" / "test" / "a.json", leaf({"w": range(4, 6), "v": range(6, 9), "nobody": range(0)}))
    written = read_femnist(tmp_path)
    assert [written.y[rows].tolist() for rows in written.rows] == [LABELS[6:9], LABELS[:6]]


def test_a_client_is_a_writer(tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "all.json", leaf(WRITERS))
    data = FEMNIST(root=str(tmp_path), min_samples=5, test_fraction=0.4)
    data.setup()
    assert (data.client_names, data.num_classes, data.sample_shape) == (["f0001_41", "f0002_07"], 62, (1, 28, 28))
    assert has_disjoint_parts(data)
    x, _ = data.rows(data.store, data.everyone.test[0])
    assert -1 <= float(x.min()) < float(x.max()) <= 1


def test_writers_are_drawn_by_the_seed_among_those_with_enough(tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "all.json", leaf(WRITERS | {"small": range(2)}))
    data = FEMNIST(root=str(tmp_path), num_clients=1, min_samples=6)
    data.setup()
    assert data.client_names == ["f0002_07"]
    with pytest.raises(DataError, match=r"data\.num_clients is 3, but 2 of the 3 writers.*Lower"):
        FEMNIST(root=str(tmp_path), num_clients=3, min_samples=5).setup()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_samples": [7, 4]}, r"f0001_41 has 5 x and 5 y where num_samples says 4"),
        ({"user_data": {}}, r"KeyError"),
        ({"users": ["f0002_07"]}, r"cannot be used"),
    ],
)
def test_a_damaged_file_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "all.json", leaf(WRITERS, change))
    with pytest.raises(DataError, match=rf"all\.json.*{message}|{message}"):
        read_femnist(tmp_path)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"x": [[0.5] * 783], "y": [1]}, r"pictures of shape \(783,\), not \(784,\)"),
        ({"x": [[1.5] * 784], "y": [1]}, "a pixel outside of 0 to 1"),
        ({"x": [[0.5] * 784], "y": [62]}, "labels go from 62 to 62, not from 0 to 61"),
    ],
)
def test_a_damaged_writer_is_named(own: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "all.json", {"users": ["w"], "num_samples": [1], "user_data": {"w": own}})
    with pytest.raises(DataError, match=message):
        read_femnist(tmp_path)


def test_files_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no LEAF file.*preprocess\.sh"):
        read_femnist(tmp_path)
