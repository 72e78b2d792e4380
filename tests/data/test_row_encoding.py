"""Row numbers that carry labels and views, against the plain arithmetic on single pictures."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlit.data.row_encoding import PAD, RowCode, viewed

CODE = RowCode(pictures=7, classes=3)


def test_a_plain_row_number_is_the_picture_with_its_own_label_as_it_is() -> None:
    rows, own = torch.arange(7), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    assert (CODE.picture(rows).tolist(), CODE.label(rows, own).tolist()) == (list(range(7)), own.tolist())
    assert CODE.view(rows).tolist() == [0] * 7


@given(st.integers(0, 6), st.integers(0, 2), st.integers(0, 2**32), st.booleans())
def test_picture_and_label_survive_any_view(picture: int, label: int, seed: int, flip: bool) -> None:
    rows = CODE.relabelled(np.array([picture]), np.array([label]))
    varied = torch.from_numpy(CODE.varied(rows, np.random.default_rng(seed), flip=flip))
    assert (CODE.picture(varied).item(), CODE.label(varied, torch.tensor([99])).item()) == (picture, label)
    assert 0 <= varied.item() < CODE.limit
    assert flip or CODE.view(varied).item() % 2 == 0


def by_hand(picture: Tensor, down: int, right: int, mirrored: bool) -> Tensor:
    """Pad by black, cut out, mirror."""
    _, height, width = picture.shape
    padded = torch.nn.functional.pad(picture, (PAD, PAD, PAD, PAD))
    cut = padded[:, PAD + down : PAD + down + height, PAD + right : PAD + right + width]
    return cut.flip(-1) if mirrored else cut


def test_views_are_all_crops_of_the_padded_picture_and_their_mirror_images() -> None:
    picture = torch.randint(1, 256, (2, 5, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    views = torch.arange(2 * 81)
    found = viewed(picture.expand(len(views), -1, -1, -1), views)
    shifts = range(-PAD, PAD + 1)
    expected = [by_hand(picture, down, right, flip) for down in shifts for right in shifts for flip in (False, True)]
    assert found.dtype == torch.uint8
    assert found[0].equal(picture)
    assert sorted(part.flatten().tolist() for part in found) == sorted(part.flatten().tolist() for part in expected)


def test_views_are_drawn_evenly() -> None:
    rows = CODE.varied(np.zeros(81 * 2 * 200, dtype=np.int64), np.random.default_rng(0), flip=True)
    counts = torch.bincount(CODE.view(torch.from_numpy(rows)), minlength=162)
    assert (len(counts), int(counts.min()) > 130, int(counts.max()) < 280) == (162, True, True)
