"""Paired differences: by common seeds, with intervals from printed tables of Student's t."""

import math
from pathlib import Path

import pytest

from fedlit.errors import ConfigError
from fedlit.report.differences import (
    check_reference,
    choose_reference,
    difference,
    differences,
    interval,
    t_quantile,
)
from fedlit.report.grids import differences_grid
from fedlit.results.runs import Group, group_runs, read_run
from tests.report.folders import one_group, seeds, write_run


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262), (31, 2.042)])
def test_intervals_have_the_printed_quantiles_of_student(n: int, t: float) -> None:
    values = [0.0] * (n - 1) + [1.0]  # mean 1/n, deviation 1/√n
    low, high = interval(values) or (math.nan, math.nan)
    assert (low + high) / 2 == pytest.approx(1 / n)
    assert (high - low) / 2 == pytest.approx(t / n, rel=2e-4)


def test_fewer_than_two_values_have_no_interval() -> None:
    assert interval([]) is None
    assert interval([1.0]) is None


def pair(tmp_path: Path, ours: list[float], theirs: list[float], name: str = "global/acc") -> tuple[Group, Group]:
    group = one_group(seeds(tmp_path, name, ours, algorithm="FedBC"))
    return group, one_group(seeds(tmp_path, name, theirs))


def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    found = difference(*pair(tmp_path, [0.6, 0.8, 1.0], [0.5, 0.6, 0.7]), "global/acc")
    assert [one.value for one in found.values] == pytest.approx([0.1, 0.2, 0.3])
    assert found.interval == pytest.approx((0.2 - 4.302653 * 0.1 / math.sqrt(3), 0.2 + 4.302653 * 0.1 / math.sqrt(3)))


def test_only_seeds_that_both_have_are_paired(tmp_path: Path) -> None:
    found = difference(*pair(tmp_path, [0.6, 0.8, 1.0], [0.5]), "global/acc")
    assert [one.seed for one in found.values] == [(0, 0)]
    assert found.mean == pytest.approx(0.1)
    assert found.verdict == "one pair"


def test_the_seed_of_the_data_counts_too(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", {"global/acc": [0.5]}, data_seed=0),
        write_run(tmp_path / "b", {"global/acc": [0.5]}, data_seed=1, algorithm="FedBC"),
    ]
    theirs, ours = group_runs([read_run(path) for path in paths])
    assert difference(ours, theirs, "global/acc").verdict == "no common seed"


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "word"),
    [
        ("global/acc", [0.60, 0.61, 0.62], [0.5, 0.5, 0.5], "better"),
        ("global/acc", [0.40, 0.41, 0.42], [0.5, 0.5, 0.5], "worse"),
        ("users/gini", [0.40, 0.41, 0.42], [0.5, 0.5, 0.5], "better"),
        ("dual/mean", [0.40, 0.41, 0.42], [0.5, 0.5, 0.5], "lower"),
        ("global/acc", [0.1, 0.9, 0.6], [0.5, 0.5, 0.5], "not clear"),
        ("global/acc", [0.5, 0.6, 0.7], [0.5, 0.6, 0.7], "equal"),
    ],
)
def test_a_plain_word_says_what_the_interval_means(
    tmp_path: Path, name: str, ours: list[float], theirs: list[float], word: str
) -> None:
    assert difference(*pair(tmp_path, ours, theirs, name), name).verdict == word


def test_the_table_has_difference_interval_pairs_and_word(tmp_path: Path) -> None:
    group, reference = pair(tmp_path, [0.61, 0.62, 0.63], [0.5, 0.5, 0.5])
    grid = differences_grid("t", [reference, group], reference, ["global/acc"], 1)
    assert grid is not None
    (row,) = [[entry.text for entry in entries] for entries in grid.rows]
    assert row == [
        *("global accuracy [%]", "FedBC", "+12.00", "+9.52 to +14.48", "3", "better"),
        *("0.2500", "0.2500", "too few pairs, n = 3"),
    ]
    assert grid.title == "Differences to FedAvg"


@pytest.mark.parametrize(
    ("seeds_of_each", "word", "note"),
    [
        (5, "too few pairs, n = 5", "With 5 pairs the smallest possible p is 0.0625 so that nothing"),
        (6, "significant, n = 6", None),
    ],
)
def test_significance_has_its_number_of_seeds_and_five_are_too_few(
    tmp_path: Path, seeds_of_each: int, word: str, note: str | None
) -> None:
    ours, theirs = [0.6 + 0.01 * seed for seed in range(seeds_of_each)], [0.5] * seeds_of_each
    group, reference = pair(tmp_path, ours, theirs)
    grid = differences_grid("t", [reference, group], reference, ["global/acc"], 1)
    assert grid is not None
    assert grid.rows[0][-1].text == word
    assert grid.rows[0][-1].bold == (note is None)
    assert [said[: len(note or "")] for said in grid.notes] == ([note] if note else [])


def test_p_is_corrected_among_the_groups_that_are_compared_in_a_metric(tmp_path: Path) -> None:
    values = {
        "FedAvg": [0.5] * 6,
        "FedBC": [0.6 + 0.01 * k for k in range(6)],
        "FedProx": [0.7 + 0.01 * k for k in range(6)],
    }
    runs = [run for label, own in values.items() for run in seeds(tmp_path, "global/acc", own, algorithm=label)]
    reference, *others = group_runs(runs)
    found = differences(others, reference, "global/acc")
    assert [one.p for one in found] == [2 / 64, 2 / 64]
    assert [one.holm for one in found] == [4 / 64, 4 / 64]
    assert {one.by_the_test for one in found} == {"too few pairs, n = 6"}
    grid = differences_grid("t", [reference, *others], reference, ["global/acc"], 1)
    assert grid is not None
    assert grid.notes == [
        "With 6 pairs the smallest possible p is 0.03125, 0.0625 after Holm's correction of 2 tests, so that nothing "
        "can be significant at 5 %. It takes 7 seeds."
    ]


def of_lengths(tmp_path: Path, name: str, ours: int, theirs: int) -> tuple[Group, Group]:
    """Six seeds of two algorithms that ran for so many rounds."""
    paths = [
        write_run(tmp_path / f"{label}-{seed}", {name: [value] * rounds}, algorithm=label, seed=seed)
        for label, rounds, value in (("FedBC", ours, 0.6), ("FedAvg", theirs, 0.5))
        for seed in range(6)
    ]
    group, reference = group_runs([read_run(path) for path in paths])
    return group, reference


def test_runs_of_different_lengths_are_not_tested(tmp_path: Path) -> None:
    group, reference = of_lengths(tmp_path, "global/acc", 3, 2)
    (found,) = differences([group], reference, "global/acc")
    assert found.mean == pytest.approx(0.1)
    assert (found.p, found.interval, found.verdict, found.by_the_test) == (None, None, "other lengths", "refused")
    grid = differences_grid("t", [reference, group], reference, ["global/acc"], 1)
    assert grid is not None
    assert [entry.text for entry in grid.rows[0]][3:] == ["—", "6", "other lengths", "—", "—", "refused"]
    assert grid.notes == ["No interval and no test, because the runs have different lengths: FedBC (2 and 3 rounds)."]


def test_the_rounds_that_an_accuracy_took_are_tested_whatever_the_lengths(tmp_path: Path) -> None:
    group, reference = of_lengths(tmp_path, "time_to/0.40", 3, 2)
    (found,) = differences([group], reference, "time_to/0.40")
    assert found.p == 2 / 64


def test_a_group_alone_is_compared_with_nobody(tmp_path: Path) -> None:
    group = one_group(seeds(tmp_path, "global/acc", [0.5]))
    assert differences_grid("t", [group], group, ["global/acc"], 1) is None


def test_the_reference_is_the_one_named_else_fedavg_else_the_first(tmp_path: Path) -> None:
    runs = [run for label in ("FedBC", "FedProx", "FedAvg") for run in seeds(tmp_path, "x", [1], algorithm=label)]
    groups = group_runs(runs)
    assert choose_reference(groups, "FedProx").label == "FedProx"
    assert choose_reference(groups, None).label == "FedAvg"
    assert choose_reference(groups[:2], None).label == "FedBC"
    with pytest.raises(ConfigError, match="--reference 'FedPro' is not a group. Did you mean 'FedProx'"):
        check_reference(groups, "FedPro")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_quantiles_of_student_are_scipys(freedom: int, level: float) -> None:
    special = pytest.importorskip("scipy.special")
    assert t_quantile(freedom, level) == pytest.approx(float(special.stdtrit(freedom, (1 + level) / 2)), rel=1e-9)
