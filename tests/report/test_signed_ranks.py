"""Wilcoxon's exact p and Holm's correction against SciPy, against all choices of signs, and against printed numbers."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from fedlit.report.signed_ranks import holm, least_pairs, signed_rank_p, smallest_p


def by_all_signs(differences: NDArray[np.float64]) -> float:
    """p as the share of all 2^n ways to choose signs, with SciPy's ranks."""
    stats = pytest.importorskip("scipy.stats")
    ranks = stats.rankdata(np.abs(differences))
    middle = ranks.sum() / 2
    reached = abs(ranks[differences > 0].sum() - middle)
    sums = [ranks[np.array(signs)].sum() for signs in product((False, True), repeat=len(ranks))]
    return float(np.mean([abs(total - middle) >= reached - 1e-12 for total in sums]))


@pytest.mark.parametrize("pairs", [2, 3, 5, 6, 8, 12, 25, 50])
def test_p_is_scipys_where_no_two_sizes_are_equal(pairs: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    differences = np.random.default_rng(pairs).normal(0.4, 1, pairs)
    expected = stats.wilcoxon(differences, method="exact").pvalue
    assert signed_rank_p(differences.tolist()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_p_with_equal_sizes_counts_every_choice_of_signs(seed: int) -> None:
    draw = np.random.default_rng(seed)
    differences = draw.integers(1, 4, 9) * draw.choice([-1.0, 1.0], 9)
    assert signed_rank_p(differences.tolist()) == pytest.approx(by_all_signs(differences), rel=1e-12)


def test_sizes_that_differ_by_rounding_are_equal() -> None:
    assert 0.4 - 0.3 != 0.3 - 0.2
    assert signed_rank_p([0.4 - 0.3, 0.2 - 0.3, 0.9 - 0.2]) == signed_rank_p([1, -1, 7])


def test_pairs_without_a_difference_do_not_count() -> None:
    assert signed_rank_p([0.0, 0.1, 0.0, 0.2, 0.3]) == signed_rank_p([0.1, 0.2, 0.3]) == 0.25
    assert signed_rank_p([0.0, 0.0]) is None
    assert signed_rank_p([]) is None
    assert signed_rank_p([0.1, float("nan")]) is None


@pytest.mark.parametrize("pairs", range(1, 9))
def test_no_p_is_smaller_than_that_of_differences_of_one_sign(pairs: int) -> None:
    assert signed_rank_p([0.1 * (k + 1) for k in range(pairs)]) == smallest_p(pairs) == 2 ** (1 - pairs)
    worst = min(
        signed_rank_p([s * (k + 1.0) for k, s in enumerate(signs)]) or 1 for signs in product((-1, 1), repeat=pairs)
    )
    assert worst == smallest_p(pairs)


def test_five_seeds_cannot_be_significant_and_six_can() -> None:
    assert smallest_p(5) == 0.0625 > 0.05 >= smallest_p(6)
    assert [least_pairs(tests) for tests in (1, 2, 3, 4, 6, 7, 12, 13)] == [6, 7, 7, 8, 8, 9, 9, 10]


def test_holms_correction_of_a_worked_example() -> None:
    # Holm (1979) by hand: 0.005·4, 0.01·3, 0.03·2, and 0.04·1 raised to the one before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_holm_rejects_what_its_steps_reject(seed: int) -> None:
    ps = np.random.default_rng(seed).beta(0.3, 3, 7)
    rejected: set[int] = set()
    for place, test in enumerate(np.argsort(ps)):  # Holm's own words: go on while p ≤ α / (m − k + 1)
        if ps[test] > 0.05 / (len(ps) - place):
            break
        rejected.add(int(test))
    assert {test for test, p in enumerate(holm(ps.tolist())) if p <= 0.05} == rejected
