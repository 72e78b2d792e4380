"""Laws of the Office-Caltech10 reader: four domains of standardised histograms."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedlit.data.files.office import CLASSES, DOMAINS, read_office, standardise
from tests.data.files import refused
from tests.real_files import Real

DRAW = np.random.default_rng(0)


def write(root: Path, **changes: Any) -> Path:
    """Four domains of 6 rows, with some arrays changed."""
    content = {f"{domain}_x": DRAW.integers(0, 9, (6, 800), np.uint8) for domain in DOMAINS}
    content |= {f"{domain}_y": np.arange(6) for domain in DOMAINS}
    (root / "office").mkdir()
    np.savez(root / "office" / "office_caltech10_surf.npz", **(content | changes))
    return root


def by_definition(counts: np.ndarray) -> np.ndarray:
    """Row by row and column by column."""
    rows = [[float(count) / max(int(row.sum()), 1) for count in row] for row in counts]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return np.array([(column - column.mean()) / column.std() for column in columns]).T


def test_domains_come_in_their_order_with_their_labels(tmp_path: Path) -> None:
    domains = read_office(write(tmp_path))
    assert list(domains) == ["amazon", "caltech", "dslr", "webcam"]
    assert [features.y.tolist() for features in domains.values()] == [[0, 1, 2, 3, 4, 5]] * 4
    assert {(features.x.dtype.name, features.y.dtype.name) for features in domains.values()} == {("float32", "int64")}


def test_features_are_shares_of_their_row_standardised_by_column() -> None:
    counts = DRAW.integers(0, 9, (20, 5), np.uint8)
    np.testing.assert_allclose(standardise(counts), by_definition(counts), rtol=1e-6, atol=1e-6)


def test_a_domain_is_standardised_by_itself(tmp_path: Path) -> None:
    counts = DRAW.integers(0, 200, (6, 800), np.uint8)
    np.testing.assert_array_equal(read_office(write(tmp_path, dslr_x=counts))["dslr"].x, standardise(counts))


@given(arrays(np.uint8, st.tuples(st.integers(1, 8), st.integers(1, 5))))
def test_every_column_has_mean_0_and_deviation_1_or_is_0(counts: np.ndarray) -> None:
    features = standardise(counts).astype(float)
    assert np.isfinite(features).all()
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-5)
    deviations = features.std(axis=0)
    assert ((deviations == 0) | (np.abs(deviations - 1) < 1e-5)).all()


@given(arrays(np.uint8, (4, 3), elements=st.integers(1, 25)), st.integers(2, 10))
def test_a_picture_with_more_of_every_word_has_the_same_features(counts: np.ndarray, factor: int) -> None:
    scaled = counts.copy()
    scaled[0] *= factor
    np.testing.assert_allclose(standardise(scaled), standardise(counts), atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dslr_x": np.zeros((6, 799), np.uint8)}, r"shape \(6, 799\)"),
        ({"dslr_x": np.zeros((6, 800))}, "its counts are float64"),
        ({"dslr_x": np.full((6, 800), -1)}, "not 0 or more"),
        ({"dslr_x": np.uint8(3)}, r"shape \(\)"),
        ({"webcam_y": np.arange(5)}, r"its labels are int64 of shape \(5,\)"),
        ({"webcam_y": np.arange(6) + 5}, "its labels go from 5 to 10"),
    ],
    ids=["words", "floats", "negative", "number", "labels", "range"],
)
def test_arrays_of_another_form_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with refused("office_caltech10_surf.npz cannot be used", words):
        read_office(write(tmp_path, **changes))


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    with refused("Office-Caltech10 is not complete", f"Put office_caltech10_surf.npz into {tmp_path / 'office'}"):
        read_office(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not an archive"], ids=["empty", "truncated", "text"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "office").mkdir()
    (tmp_path / "office" / "office_caltech10_surf.npz").write_bytes(content)
    with refused("office_caltech10_surf.npz cannot be used"):
        read_office(tmp_path)


def test_real_domains_have_the_published_sizes_and_all_classes(real: Real) -> None:
    domains = read_office(real("office", "office"))
    assert {name: features.x.shape for name, features in domains.items()} == {
        "amazon": (958, 800),
        "caltech": (1123, 800),
        "dslr": (157, 800),
        "webcam": (295, 800),
    }
    assert {len(np.unique(features.y)) for features in domains.values()} == {len(CLASSES)}
