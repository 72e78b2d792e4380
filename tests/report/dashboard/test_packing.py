"""Numbers in a page: nothing is lost but what the page says."""

import base64
import zlib

import numpy as np
import pytest

from fedlit.report.dashboard.content import packed, spread


@pytest.mark.parametrize(("count", "most"), [(1, 5), (5, 5), (6, 5), (501, 60), (10, 0), (3, 1)])
def test_first_and_last_are_always_kept_and_the_rest_is_even(count: int, most: int) -> None:
    kept = spread(count, most)
    assert kept[0] == 0
    assert kept[-1] == count - 1
    assert len(kept) == min(count, max(2, most))
    gaps = np.diff(kept)
    assert gaps.size == 0 or gaps.max() - gaps.min() <= 1


def test_columns_come_back_in_their_order_with_whole_numbers_whole() -> None:
    client = np.array([0.0, 16_777_217.0])
    accuracy = np.array([0.25, np.nan])
    raw = zlib.decompress(base64.b64decode(packed([("client", client), ("acc", accuracy)])), wbits=-zlib.MAX_WBITS)
    assert np.frombuffer(raw[:8], "<i4").tolist() == [0, 16_777_217]
    np.testing.assert_array_equal(np.frombuffer(raw[8:], "<f4"), accuracy.astype("<f4"))


def test_a_loss_beyond_float32_is_infinite_without_a_warning() -> None:
    raw = zlib.decompress(base64.b64decode(packed([("loss", np.array([1e300]))])), wbits=-zlib.MAX_WBITS)
    assert np.frombuffer(raw, "<f4")[0] == np.inf
