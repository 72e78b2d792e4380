"""Laws of the cut of a domain: the numbers of Exp-α's tables, and one client for each domain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlit.data.domain_split import Cut, cut, one_client_each, rounded_up, rows_of_each
from fedlit.data.split import Shares

TABLES_5_AND_6 = {
    "amazon": (536, 230, 192),
    "caltech": (628, 270, 225),
    "dslr": (87, 38, 32),
    "webcam": (165, 71, 59),
    "clipart": (1472, 631, 526),
    "painting": (1730, 742, 619),
    "infograph": (1838, 788, 657),
    "real": (3404, 1460, 1217),
    "sketch": (1549, 664, 554),
    "quickdraw": (2800, 1200, 1000),
}
TABLE_7 = {  # all samples of a set, and those for testing
    "mnist": (70_000, 14_000),
    "svhn": (99_289, 19_858),
    "usps": (9_298, 1_860),
    "synthdigits": (488_953, 97_791),
    "mnistm": (70_000, 14_000),
}
FRACTIONS = st.floats(0, 1, exclude_max=True)


def cut_of(n: int, test: float = 0.2, val: float = 0.3, seed: int = 0) -> Cut:
    return cut(np.arange(n), Shares(test, val), np.random.default_rng(seed))


@pytest.mark.parametrize("domain", TABLES_5_AND_6)
def test_shares_of_a_fifth_and_three_tenths_give_the_printed_sizes(domain: str) -> None:
    printed = TABLES_5_AND_6[domain]
    own = cut_of(sum(printed))
    assert (len(own.train), len(own.val), len(own.test)) == printed


@pytest.mark.parametrize("domain", TABLE_7)
def test_a_fifth_gives_the_printed_tests_of_the_digits(domain: str) -> None:
    total, test = TABLE_7[domain]
    assert rounded_up(total, 0.2) == test


def test_two_tenths_of_the_smallest_set_are_the_printed_training_and_validation_of_the_digits() -> None:
    left = 9_298 - 1_860
    assert (int(0.1 * left), int(0.2 * left)) == (743, 892 + 595)
    assert rounded_up(int(0.2 * left), 0.4) == 595


@given(st.integers(1, 300), FRACTIONS, FRACTIONS)
def test_every_row_is_in_exactly_one_part_and_one_is_left_for_training(n: int, test: float, val: float) -> None:
    own = cut_of(n, test, val)
    assert sorted(np.concatenate([own.train, own.val, own.test]).tolist()) == list(range(n))
    assert len(own.train) >= 1


@pytest.mark.parametrize(
    ("n", "fraction", "share"), [(295, 0.2, 59), (100, 0.29, 29), (10, 0.0, 0), (1, 0.5, 0), (0, 0.5, 0)]
)
def test_a_share_is_that_of_the_decimal_number_the_user_wrote(n: int, fraction: float, share: int) -> None:
    assert rounded_up(n, fraction) == share


def test_the_cut_is_shuffled_by_its_generator() -> None:
    assert cut_of(50).train.tolist() == cut_of(50).train.tolist()
    assert cut_of(50).train.tolist() != cut_of(50, seed=1).train.tolist()
    assert np.diff(cut_of(50).train).min() < 0


def test_domains_lie_one_after_the_other() -> None:
    assert [rows.tolist() for rows in rows_of_each([2, 0, 3])] == [[0, 1], [], [2, 3, 4]]


def test_every_domain_is_a_client_and_a_group() -> None:
    parts = one_client_each({"b": cut_of(10), "a": cut_of(20)})
    assert parts.groups == ["b", "a"]
    assert [len(rows) for rows in parts.clients] == [5, 11]
    assert parts.tests is not None
    assert parts.vals is not None
    assert [(len(val), len(test)) for val, test in zip(parts.vals, parts.tests, strict=True)] == [(3, 2), (5, 4)]
