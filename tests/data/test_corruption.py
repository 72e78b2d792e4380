"""Exp-α's corruptions: the profile its reading prints, labels that only the client sees, and their bad input."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlit.data.corruption import Corruption, Imbalance, LabelFlip, Pool, class_profile, flipped_labels
from fedlit.data.row_encoding import RowCode
from fedlit.errors import ConfigError

Y = np.repeat(np.arange(10), 100)
POOL = Pool(np.arange(1000), Y, RowCode(1000, 10))


def labels_of(rows: np.ndarray) -> np.ndarray:
    numbers = torch.from_numpy(rows)
    return np.asarray(POOL.code.label(numbers, torch.from_numpy(Y)[POOL.code.picture(numbers)]))


def test_the_profile_of_ratio_one_hundredth_is_the_reading_s() -> None:
    everywhere = np.ones(10, dtype=bool)
    assert class_profile(0.01, 1280, everywhere).tolist() == [516, 309, 185, 111, 67, 40, 24, 14, 9, 5]


@given(st.floats(1e-3, 1), st.integers(1, 5000), st.lists(st.booleans(), min_size=2, max_size=12).filter(any))
def test_a_profile_has_the_size_asked_for_and_only_classes_that_occur(
    ratio: float, size: int, occurs: list[bool]
) -> None:
    counts = class_profile(ratio, size, np.array(occurs))
    assert counts.sum() == size
    assert (counts[~np.array(occurs)] == 0).all()
    present = counts[np.array(occurs)]
    assert (np.diff(present) <= 1).all()  # a later class is never more frequent, but for rounding


def test_imbalance_draws_its_profile_and_repeats_samples_only_where_a_class_is_exhausted() -> None:
    drawn = Imbalance(ratios=[0.1]).draw(POOL, 500, 0, np.random.default_rng(0))
    counts = np.bincount(Y[drawn.rows], minlength=10)
    assert (counts.tolist(), drawn.group) == (class_profile(0.1, 500, np.ones(10, dtype=bool)).tolist(), "ratio 0.1")
    repeated = [len(np.unique(drawn.rows[Y[drawn.rows] == c])) < counts[c] for c in range(10)]
    assert repeated == [count > 100 for count in counts]


def test_imbalance_in_order_is_a_fixed_composition() -> None:
    recipe = Imbalance(ratios=[1.0] * 4 + [0.01] * 3 + [0.1] * 3, in_order=True)
    groups = [recipe.draw(POOL, 50, k, np.random.default_rng(k)).group for k in range(10)]
    assert groups == ["ratio 1"] * 4 + ["ratio 0.01"] * 3 + ["ratio 0.1"] * 3


def test_permuted_imbalance_makes_another_class_frequent() -> None:
    recipe = Imbalance(ratios=[0.01], permute_classes=True)
    most = {int(np.bincount(Y[recipe.draw(POOL, 100, 0, np.random.default_rng(s)).rows]).argmax()) for s in range(20)}
    assert len(most) > 3


def test_a_flipped_client_sees_every_class_under_another_label_and_the_set_stays_as_it_is() -> None:
    drawn = LabelFlip(exactly=1, flip_ratio=1.0).draw(POOL, 1000, 0, np.random.default_rng(0))
    pictures = np.asarray(POOL.code.picture(torch.from_numpy(drawn.rows)))
    seen = labels_of(drawn.rows)
    assert drawn.group == "flipped"
    assert sorted(pictures.tolist()) == list(range(1000))
    assert (seen != Y[pictures]).all()
    assert {len(set(seen[Y[pictures] == c].tolist())) for c in range(10)} == {1}
    assert sorted(np.bincount(seen).tolist()) == [100] * 10  # a permutation of the labels


@pytest.mark.parametrize(("ratio", "wrong"), [(0.0, 0), (0.1, 1), (0.3, 3), (0.5, 5), (1.0, 10)])
def test_the_flip_ratio_says_how_many_classes_are_wrong(ratio: float, wrong: int) -> None:
    for seed in range(20):
        assert (flipped_labels(10, ratio, np.random.default_rng(seed)) != np.arange(10)).sum() == wrong


def test_the_same_picture_carries_different_labels_at_different_clients() -> None:
    recipe = LabelFlip(exactly=6)
    seen = [recipe.draw(POOL, 1000, k, np.random.default_rng(k)).rows for k in range(6)]
    at_first_picture = {int(labels_of(rows[rows % 1000 == 0])[0]) for rows in seen}
    assert len(at_first_picture) > 1


def test_clients_are_flipped_at_the_rate() -> None:
    recipe = LabelFlip(rate=1 / 3)
    flipped = sum(recipe.draw(POOL, 10, 0, np.random.default_rng(k)).group == "flipped" for k in range(600))
    assert 160 < flipped < 240


def test_exactly_flips_the_first_clients_and_no_other() -> None:
    recipe = LabelFlip(rate=1.0, exactly=2)
    assert [recipe.draw(POOL, 10, k, np.random.default_rng(k)).group for k in range(6)] == ["flipped"] * 2 + [
        "clean"
    ] * 4


@pytest.mark.parametrize("recipe", [Imbalance(), LabelFlip(rate=0.5, flip_ratio=0.5)])
def test_the_draw_depends_on_the_generator_alone(recipe: Corruption) -> None:
    first, again, other = (recipe.draw(POOL, 200, 0, np.random.default_rng(seed)).rows for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


@pytest.mark.parametrize("options", [{"rate": 1.2}, {"rate": -0.1}, {"flip_ratio": 1.01}, {"exactly": -1}])
def test_wrong_flip_options_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"data.corruption.{next(iter(options))} is"):
        LabelFlip(**options)  # type: ignore[arg-type]  # what a config could hold


@pytest.mark.parametrize("ratios", [[], [0.0], [1.5], [-1.0]])
def test_wrong_ratios_are_refused(ratios: list[float]) -> None:
    with pytest.raises(ConfigError, match="data.corruption.ratios is"):
        Imbalance(ratios=ratios)
