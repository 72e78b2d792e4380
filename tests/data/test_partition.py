"""Laws of the partition recipes, and the tables of the papers: FedBC's 4 and 5, pFedMe's range, FedBCD's diversity.

Only class counts matter for the tables, so label vectors with the real counts stand for MNIST and CIFAR-10. The
tables are copies of those of the papers (and of what was derived from them) in tests/data/tables.
"""

import csv
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit.data.partition import (
    IID,
    ClassesPerClient,
    Dirichlet,
    Diversity,
    Labels,
    Natural,
    Partition,
    Parts,
    PowerLaw,
    RowNumbers,
    Shards,
    tail_split,
)
from fedlit.data.partition.dirichlet import raised
from fedlit.data.partition.power_law import power_law_sizes
from fedlit.data.split import Shares, share, split
from fedlit.errors import ConfigError, DataError

Cell = tuple[str, int, float]  # data set, C, exponent


def table(name: str) -> list[dict[str, str]]:
    with (Path(__file__).parent / "tables" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def cell_of(row: dict[str, str]) -> Cell:
    return row["dataset"], int(row["C"]), float(row["exponent"])


def with_counts(counts: list[int], tests: int) -> Labels:
    """A set with these class counts in random order, whose last rows are its test part."""
    y = np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))
    train, test = np.split(np.arange(len(y)), [len(y) - tests])
    return Labels(y=y, official_train=train, official_test=test, num_classes=len(counts))


MNIST = with_counts([6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958], tests=10_000)
CIFAR10 = with_counts([6000] * 10, tests=10_000)
SETS = {"mnist": MNIST, "cifar10": CIFAR10}
PRINTED = {
    cell_of(row): [int(n) for n in row["classes_per_client"].split(";")] for row in table("fedbc_table4_classes")
}
REFERENCE = {
    cell: [row for row in table("fedbc_partition_reference_seed1") if cell_of(row) == cell] for cell in PRINTED
}
BOUNDS = {cell_of(row): row for row in table("fedbc_tail_split_bounds")}
MISPRINTS = [("cifar10", 1, 1.2), ("cifar10", 1, 1.3), ("cifar10", 3, 1.1)]
CELLS = pytest.mark.parametrize("cell", PRINTED, ids=lambda cell: f"{cell[0]}-C{cell[1]}-s{cell[2]}")


def published(cell: Cell, *, seed: int = 1, as_printed: bool = False) -> list[RowNumbers]:
    name, classes, exponent = cell
    recipe = PowerLaw(classes_per_client=classes, exponent=exponent, as_printed=as_printed)
    return recipe.assign(SETS[name], seed).clients


def class_counts(cell: Cell, clients: list[RowNumbers]) -> list[int]:
    return sorted((len(np.unique(SETS[cell[0]].y[own])) for own in clients), reverse=True)


def described(labels: Labels, own: RowNumbers) -> str:
    """'0:2710;2:4473', as in the reference table."""
    return ";".join(f"{label}:{n}" for label, n in sorted(Counter(labels.y[own].tolist()).items()))


# FedBC's tables


@pytest.mark.parametrize("row", table("fedbc_table5_sizes"), ids=lambda row: f"{row['dataset']}-{row['exponent']}")
def test_smallest_and_largest_client_are_those_of_fedbc_table_5(row: dict[str, str]) -> None:
    sizes = power_law_sizes(len(SETS[row["dataset"]].y), 20, float(row["exponent"]))
    assert (sizes[0], sizes[-1]) == (int(row["min"]), int(row["max"]))


@CELLS
def test_with_seed_1_every_client_has_the_reference_size_and_class_counts(cell: Cell) -> None:
    found = [(str(len(own)), described(SETS[cell[0]], own)) for own in published(cell)]
    assert found == [(row["size"], row["class_counts"]) for row in REFERENCE[cell]]


def test_the_reference_table_lists_600_clients_from_the_largest_down() -> None:
    assert [int(row["client_by_size_desc"]) for rows in REFERENCE.values() for row in rows] == 30 * list(range(20))


def test_with_seed_1_27_of_the_30_rows_of_fedbc_table_4_come_out_as_printed() -> None:
    assert [cell for cell in PRINTED if class_counts(cell, published(cell)) != PRINTED[cell]] == MISPRINTS


@CELLS
def test_as_printed_gives_the_row_of_table_4_and_the_sizes_of_the_reference(cell: Cell) -> None:
    clients = published(cell, seed=5, as_printed=True)
    assert class_counts(cell, clients) == PRINTED[cell]
    assert [len(own) for own in clients] == [int(row["size"]) for row in REFERENCE[cell]]
    assert sorted(np.concatenate(clients)) == list(range(len(SETS[cell[0]].y)))


@pytest.mark.parametrize("cell", sorted(set(PRINTED) - set(MISPRINTS)))
def test_as_printed_is_the_draw_with_seed_1_where_that_has_the_printed_counts(cell: Cell) -> None:
    assert same(published(cell, seed=5, as_printed=True), published(cell, seed=1))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.sampled_from([1.1, 1.2, 1.3, 1.4, 1.5]))
def test_one_class_per_client_makes_at_most_29_pairs_of_client_and_class(seed: int, exponent: float) -> None:
    assert sum(class_counts(("cifar10", 1, exponent), published(("cifar10", 1, exponent), seed=seed))) <= 29
    assert sum(PRINTED["cifar10", 1, 1.2]) == 31, "so this row of table 4 cannot have been drawn"


@CELLS
def test_tail_split_leaves_the_shares_of_the_reference_in_the_tests(cell: Cell) -> None:
    y = SETS[cell[0]].y
    parts = [tail_split(own, test_fraction=0.2) for own in published(cell)]
    seen = [np.isin(y[test], y[train]) for train, test in parts]
    pooled = np.bincount(y[np.concatenate([test for _, test in parts])], minlength=10)
    found = {
        "pooled_test_share_class_seen_in_own_train": 100 * np.concatenate(seen).mean(),
        "mean_over_clients_share_seen": 100 * np.mean([own.mean() for own in seen]),
        "largest_class_share_of_pooled_test": 100 * pooled.max() / pooled.sum(),
        "classes_absent_from_pooled_test": float((pooled == 0).sum()),
    }
    assert found == pytest.approx({name: float(BOUNDS[cell][name]) for name in found}, abs=0.00501)


# tail_split


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9, 28, 94, 1047, 17814])
def test_tail_split_cuts_where_fedbcs_code_does(n: int) -> None:
    train, test = tail_split(np.arange(n), test_fraction=0.2)
    assert (len(train), train.tolist() + test.tolist()) == (int(0.8 * n), list(range(n)))


@given(n=st.integers(0, 500), fraction=st.floats(0, 0.999))
def test_tail_split_keeps_the_order_and_a_row_for_training(n: int, fraction: float) -> None:
    train, test = tail_split(np.arange(n)[::-1], fraction)
    assert np.concatenate([train, test]).tolist() == list(range(n))[::-1]
    assert len(train) >= min(n, 1)


def test_tail_split_counts_as_people_do() -> None:
    assert [len(part) for part in tail_split(np.arange(30), test_fraction=0.9)] == [3, 27]


# Laws of all recipes


@st.composite
def label_sets(draw: st.DrawFn) -> Labels:
    """3 to 6 classes with 10 to 60 samples each, in any order; training and test part are any rows, not always all."""
    counts = draw(st.lists(st.integers(10, 60), min_size=3, max_size=6))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    y = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    # Every class has at least four samples in either part: what Diversity needs.
    order = [generator.permutation(np.flatnonzero(y == label)) for label in range(len(counts))]
    ends = [draw(st.integers(5, len(rows) - 5)) for rows in order]
    unused = draw(st.integers(0, 1))
    train = np.concatenate([rows[unused:end] for rows, end in zip(order, ends, strict=True)])
    test = np.concatenate([rows[end:] for rows, end in zip(order, ends, strict=True)])
    return Labels(
        y=y,
        official_train=generator.permutation(train),
        official_test=generator.permutation(test),
        num_classes=len(counts),
    )


Make = Callable[[int], Partition]

COMPLETE: dict[str, Make] = {
    "PowerLaw": lambda n: PowerLaw(num_clients=n, classes_per_client=1, exponent=1.2),
    "PowerLaw of three classes": lambda n: PowerLaw(num_clients=n, classes_per_client=3, exponent=1.3),
    "Dirichlet": lambda n: Dirichlet(alpha=0.5, num_clients=n),
    "Dirichlet of tiny alpha": lambda n: Dirichlet(alpha=1e-3, num_clients=n, min_samples=3),
    "Shards": lambda n: Shards(num_clients=n, shards_per_client=2),
    "IID": lambda n: IID(num_clients=n),
}
DRAWN: dict[str, Make] = {
    **COMPLETE,
    "ClassesPerClient": lambda n: ClassesPerClient(num_clients=n, size_min=1, size_max=10**6),
    "Diversity": lambda n: Diversity(num_clients=n, classes_per_client=2, samples_per_client=8),
}


def same(one: list[RowNumbers], other: list[RowNumbers]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def spread(parts: Parts) -> list[int]:
    """All rows of all clients, ascending."""
    return sorted(np.concatenate(parts.clients).tolist())


@pytest.mark.parametrize("make", COMPLETE.values(), ids=COMPLETE)
@settings(deadline=None, max_examples=40)
@given(labels=label_sets(), num_clients=st.integers(1, 7), seed=st.integers(0, 2**32 - 1))
def test_every_row_of_the_two_parts_belongs_to_exactly_one_client(
    make: Make, labels: Labels, num_clients: int, seed: int
) -> None:
    assert spread(make(num_clients).assign(labels, seed)) == sorted(labels.rows)


@pytest.mark.parametrize("make", DRAWN.values(), ids=DRAWN)
@settings(deadline=None, max_examples=40)
@given(labels=label_sets(), num_clients=st.integers(1, 7), seed=st.integers(0, 2**32 - 1))
def test_there_are_as_many_clients_as_asked_and_none_is_empty(
    make: Make, labels: Labels, num_clients: int, seed: int
) -> None:
    clients = make(num_clients).assign(labels, seed).clients
    assert len(clients) == num_clients
    assert min(len(own) for own in clients) >= 1


@pytest.mark.parametrize("make", DRAWN.values(), ids=DRAWN)
@settings(deadline=None, max_examples=40)
@given(labels=label_sets(), num_clients=st.integers(1, 7), seed=st.integers(0, 2**32 - 1))
def test_a_client_has_no_row_twice(make: Make, labels: Labels, num_clients: int, seed: int) -> None:
    clients = make(num_clients).assign(labels, seed).clients
    assert [len(np.unique(own)) for own in clients] == [len(own) for own in clients]


@pytest.mark.parametrize("make", DRAWN.values(), ids=DRAWN)
@settings(deadline=None, max_examples=20)
@given(labels=label_sets(), seed=st.integers(0, 2**32 - 1))
def test_the_same_seed_gives_the_same_clients_whatever_was_drawn_before(make: Make, labels: Labels, seed: int) -> None:
    recipe = make(5)
    before = recipe.assign(labels, seed).clients
    recipe.assign(labels, 1 - min(seed, 1))
    random.random()
    np.random.random()
    assert same(before, recipe.assign(labels, seed).clients)


@pytest.mark.parametrize("make", DRAWN.values(), ids=DRAWN)
@pytest.mark.parametrize("seed", [0, 2, 3, 2**32 - 1])
def test_another_seed_gives_other_clients(make: Make, seed: int) -> None:
    labels = with_counts([40] * 10, tests=100)
    assert not same(make(7).assign(labels, 1).clients, make(7).assign(labels, seed).clients)


@pytest.mark.parametrize(
    "recipe", [ClassesPerClient(), Dirichlet(alpha=100), IID()], ids=lambda recipe: type(recipe).__name__
)
def test_every_client_gets_its_share_of_the_sets_own_test_part(recipe: Partition) -> None:
    tests = [np.isin(own, MNIST.official_test).mean() for own in recipe.assign(MNIST, 0).clients]
    assert tests == pytest.approx([1 / 7] * 20, abs=0.04)


@pytest.mark.parametrize("make", DRAWN.values(), ids=DRAWN)
def test_labels_are_left_as_they_were(make: Make) -> None:
    labels = with_counts([40] * 10, tests=100)
    for part in (labels.y, labels.official_train, labels.official_test):
        part.flags.writeable = False
    make(7).assign(labels, 0)


# PowerLaw


@settings(deadline=None, max_examples=60)
@given(labels=label_sets(), n=st.integers(1, 7), exponent=st.floats(1, 1.25), seed=st.integers(0, 2**32 - 1))
def test_power_law_with_one_class_per_client_has_the_sizes_it_asks_for(
    labels: Labels, n: int, exponent: float, seed: int
) -> None:
    clients = PowerLaw(num_clients=n, classes_per_client=1, exponent=exponent).assign(labels, seed).clients
    assert [len(own) for own in clients] == sorted(power_law_sizes(len(labels.rows), n, exponent), reverse=True)


@given(total=st.integers(20, 10**6), exponent=st.floats(1, 1.08))
def test_power_law_sizes_ascend_and_add_up_to_all_samples(total: int, exponent: float) -> None:
    sizes = power_law_sizes(total + 50, 20, exponent)
    assert sum(sizes) == total + 50
    assert sizes == sorted(sizes)


def test_what_the_power_law_leaves_goes_round_until_nothing_is_left() -> None:
    # floor(100 / (2 + 4)) = 16: 32 and 64; of the last four 2 go to the largest, 1 to the other, 1 to the largest.
    assert power_law_sizes(100, 2, 2.0) == [33, 67]


def test_leftovers_of_a_frequent_class_go_to_the_largest_client_first() -> None:
    # Asked for: 67 and 33. The smaller takes 17 + 5 + 5, the larger 34 of the first class. The last 39 of that class
    # are handed out as 20, 10, 5, 2, 1, 1, in turn to the larger and the smaller.
    parts = PowerLaw(num_clients=2, classes_per_client=2, exponent=2.0).assign(with_counts([90, 5, 5], tests=0), 0)
    assert [len(own) for own in parts.clients] == [34 + 26, 27 + 13]


@pytest.mark.parametrize("seed", range(5))
def test_power_law_hands_out_a_class_in_the_order_of_the_set_smallest_client_first(seed: int) -> None:
    labels = with_counts([50, 30, 40], tests=20)
    clients = PowerLaw(num_clients=5, classes_per_client=1, exponent=1.3).assign(labels, seed).clients
    handed_out = np.concatenate(clients[::-1])
    for label in range(3):
        assert np.diff(handed_out[labels.y[handed_out] == label]).min() > 0


@pytest.mark.parametrize("seed", range(5))
def test_power_law_assigns_class_by_class(seed: int) -> None:
    for own in PowerLaw(num_clients=5, classes_per_client=2, exponent=1.3).assign(CIFAR10, seed).clients:
        assert np.count_nonzero(np.diff(CIFAR10.y[own])) == len(np.unique(CIFAR10.y[own])) - 1


# ClassesPerClient


@pytest.mark.parametrize("seed", range(5))
def test_pfedme_clients_hold_two_neighbouring_labels_and_sizes_in_the_papers_range(seed: int) -> None:
    parts = ClassesPerClient().assign(MNIST, seed)
    training = [len(own) - share(len(own), 0.25, least=1) for own in parts.clients]
    assert 1165 <= min(training) <= max(training) <= 3834
    held = [set(np.unique(MNIST.y[own])) for own in parts.clients]
    assert held == [{client % 10, (client + 1) % 10} for client in range(20)]
    assert spread(parts) == list(range(70_000))


@pytest.mark.parametrize(("size", "training"), [(1552, 1164), (1553, 1165), (5112, 3834), (5113, 3835)])
def test_the_default_range_is_that_of_pfedme_for_three_quarters_of_the_samples(size: int, training: int) -> None:
    recipe = ClassesPerClient()
    assert size - share(size, 0.25, least=1) == training
    assert (recipe.size_min <= size <= recipe.size_max) == (1165 <= training <= 3834)


@settings(deadline=None, max_examples=60)
@given(labels=label_sets(), n=st.integers(1, 9), classes=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_neighbouring_labels_are_handed_out_completely_where_a_client_holds_them(
    labels: Labels, n: int, classes: int, seed: int
) -> None:
    recipe = ClassesPerClient(num_clients=n, classes_per_client=classes, size_min=1, size_max=10**6)
    held = {(client + j) % labels.num_classes for client in range(n) for j in range(classes)}
    assert spread(recipe.assign(labels, seed)) == sorted(row for row in labels.rows if labels.y[row] in held)


def test_a_range_that_no_draw_meets_is_refused_with_what_was_drawn() -> None:
    with pytest.raises(
        DataError, match=r"None of 1000 draws gave 20 .* 700 on average\. Widen data.partition.size_min"
    ):
        ClassesPerClient().assign(with_counts([1400] * 10, tests=0), 0)


def test_the_clients_of_pfedmes_generator_have_the_range_that_the_paper_prints() -> None:
    clients = ClassesPerClient(as_published=True).assign(MNIST, 1).clients
    training = [int(0.75 * len(own)) for own in clients]  # as the generator cuts them
    assert (min(training), max(training)) == (1165, 3834)
    held = [set(np.unique(MNIST.y[own])) for own in clients]
    assert held == [{client % 10, (client + 1) % 10} for client in range(20)]
    # The sizes before the first sample of a label is left out: those of the generator, run by hand with its seed.
    assert [len(own) for own in clients[:4]] == [5112, 4988 - 1, 3890 - 1, 4254 - 1]
    assert len(clients[11]) == 1556 - 2


def test_clients_of_pfedmes_generator_hold_the_first_samples_of_their_labels() -> None:
    clients = ClassesPerClient(as_published=True).assign(MNIST, 1).clients
    for client, own in enumerate(clients):
        for label in (client % 10, (client + 1) % 10):
            stock = np.flatnonzero(MNIST.y == label)
            held = own[MNIST.y[own] == label]
            first = 0 if (client, label) in {(0, 0), *((label - 1, label) for label in range(1, 10))} else 1
            np.testing.assert_array_equal(held, stock[first : first + len(held)])


def test_most_of_what_pfedmes_clients_are_tested_on_is_trained_on_by_others() -> None:
    """The figures of docs/data.md."""
    parts = ClassesPerClient(as_published=True).assign(MNIST, 1)
    cut = split(parts, Shares(test=0.25, val=0.0), seed=1)
    assert len(set(np.concatenate(parts.clients))) == 23_537
    trained_on = np.isin(cut.test.joined, cut.train.joined)
    assert trained_on.mean() == pytest.approx(0.889, abs=0.0005)


@pytest.mark.parametrize(
    ("recipe", "labels", "message"),
    [
        (ClassesPerClient(num_clients=15, as_published=True), MNIST, "15 clients are not a multiple of 10 classes"),
        (ClassesPerClient(num_clients=4, as_published=True), with_counts([9, 9], tests=0), "too few of them for 4 cl"),
    ],
    ids=["uneven", "few"],
)
def test_what_pfedmes_generator_cannot_cut_is_refused(recipe: Partition, labels: Labels, message: str) -> None:
    with pytest.raises(DataError, match=message):
        recipe.assign(labels, 1)


# Diversity


@pytest.mark.parametrize(("labels", "samples"), [(MNIST, 600), (CIFAR10, 500)], ids=["mnist", "cifar10"])
@pytest.mark.parametrize("diversity", [3, 6])
def test_fedbcd_clients_train_on_some_images_of_their_labels_and_are_tested_on_all(
    labels: Labels, samples: int, diversity: int
) -> None:
    parts = Diversity(classes_per_client=diversity, samples_per_client=samples).assign(labels, 0)
    assert parts.tests is not None
    for own, test in zip(parts.clients, parts.tests, strict=True):
        known = np.unique(labels.y[own])
        assert (len(own), len(known)) == (samples, diversity)
        assert np.isin(own, labels.official_train).all()
        assert np.array_equal(test, labels.official_test[np.isin(labels.y[labels.official_test], known)])


def test_fedbcd_clients_share_images_unless_disjoint() -> None:
    shared, own = (Diversity(samples_per_client=300, disjoint=disjoint).assign(MNIST, 0) for disjoint in (False, True))
    assert len(np.unique(spread(shared))) < 30_000
    assert len(np.unique(spread(own))) == 30_000


def test_a_clients_draw_of_labels_does_not_depend_on_how_many_clients_follow() -> None:
    few, many = (Diversity(num_clients=n).assign(MNIST, 3).clients for n in (4, 9))
    assert same(few, many[:4])


# Dirichlet


def test_a_tiny_alpha_ends_and_leaves_every_client_what_it_needs() -> None:
    parts = Dirichlet(alpha=1e-6, num_clients=500, min_samples=100).assign(CIFAR10, 0)
    assert min(len(own) for own in parts.clients) == 100
    assert spread(parts) == list(range(60_000))


def test_a_smaller_alpha_gives_a_client_fewer_classes() -> None:
    drawn = [Dirichlet(alpha=alpha).assign(CIFAR10, 0).clients for alpha in (0.05, 0.5, 100)]
    few, some, all_of_them = (np.mean([len(np.unique(CIFAR10.y[own])) for own in clients]) for clients in drawn)
    assert few < some < all_of_them == 10


def test_dirichlet_cuts_each_class_by_the_distribution_it_names() -> None:
    """Variance of a client's share of a class: (N - 1) / (N² (N α + 1))."""
    labels = with_counts([1000] * 200, tests=0)
    clients = Dirichlet(alpha=0.5, num_clients=4).assign(labels, 0).clients
    shares = np.stack([np.bincount(labels.y[own], minlength=200) for own in clients]) / 1000
    assert shares.mean(1) == pytest.approx(np.full(4, 0.25), abs=0.06)
    assert shares.var(1) == pytest.approx(np.full(4, 3 / (16 * 3)), rel=0.25)


def test_clients_with_too_little_are_served_by_the_largest_of_its_most_frequent_class() -> None:
    counts = np.array([[0, 0], [3, 4], [1, 1], [1, 0]])
    assert raised(counts, 2).tolist() == [[1, 1], [2, 2], [1, 1], [1, 1]]


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=8), st.integers(0, 4))
def test_raising_moves_no_more_than_is_lacking_and_keeps_the_class_totals(drawn: list[list[int]], least: int) -> None:
    counts = np.array(drawn) + least  # enough for all, however it is spread
    counts[: len(counts) // 2] -= least
    after = raised(counts, least)
    assert after.sum(0).tolist() == counts.sum(0).tolist()
    assert after.sum(1).min() >= least
    assert np.abs(after - counts).sum() == 2 * np.maximum(least - counts.sum(1), 0).sum()


# Shards, IID, Natural


@settings(deadline=None, max_examples=40)
@given(labels=label_sets(), n=st.integers(1, 7), shards=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_shards_are_even_and_each_spans_neighbouring_labels(labels: Labels, n: int, shards: int, seed: int) -> None:
    clients = Shards(num_clients=n, shards_per_client=shards).assign(labels, seed).clients
    sizes = [len(own) for own in clients]
    assert max(sizes) - min(sizes) <= shards
    falls = [np.count_nonzero(np.diff(labels.y[own]) < 0) for own in clients]
    assert max(falls) < shards


def test_with_two_shards_of_a_balanced_set_a_client_has_two_labels_at_most() -> None:
    clients = Shards(num_clients=100, shards_per_client=2).assign(CIFAR10, 0).clients
    assert {len(own) for own in clients} == {600}
    assert {len(np.unique(CIFAR10.y[own])) for own in clients} == {1, 2}


@settings(deadline=None, max_examples=40)
@given(labels=label_sets(), n=st.integers(1, 7), seed=st.integers(0, 2**32 - 1))
def test_iid_sizes_differ_by_one_at_most(labels: Labels, n: int, seed: int) -> None:
    sizes = [len(own) for own in IID(num_clients=n).assign(labels, seed).clients]
    assert max(sizes) - min(sizes) <= 1


def test_iid_clients_have_all_classes_in_like_shares() -> None:
    clients = IID(num_clients=20).assign(CIFAR10, 0).clients
    shares = np.stack([np.bincount(CIFAR10.y[own]) / len(own) for own in clients])
    assert shares == pytest.approx(np.full((20, 10), 0.1), abs=0.025)


@settings(deadline=None, max_examples=40)
@given(labels=label_sets(), seed=st.integers(0, 99))
def test_natural_gives_each_owner_its_rows_in_the_order_of_the_set(labels: Labels, seed: int) -> None:
    owners = np.random.default_rng(seed).choice(["Lear", "Kent", "Fool"], len(labels.y))
    recipe = Natural(owners=owners)
    assert recipe.client_names == sorted(set(owners))
    expected = [[row for row in labels.rows if owners[row] == name] for name in recipe.client_names]
    assert [own.tolist() for own in recipe.assign(labels, 0).clients] == expected


# Refusals

SMALL = with_counts([4, 4, 4], tests=3)
REFUSED: dict[str, tuple[Partition, str]] = {
    "power law of too many classes": (
        PowerLaw(num_clients=2, classes_per_client=4),
        "classes_per_client is 4, but the data set has samples of 3 classes. Set it to 3 or less.",
    ),
    "labels of too many classes": (ClassesPerClient(classes_per_client=4, num_clients=2), "Set it to 3 or less."),
    "diversity of too many classes": (Diversity(classes_per_client=4), "Set it to 3 or less."),
    "iid": (IID(num_clients=13), "has 12 samples, but 13 clients need 13 at least. Lower data.partition.num_clients,"),
    "power law": (PowerLaw(num_clients=13, exponent=1), "13 clients need 13 at least"),
    "classes": (ClassesPerClient(num_clients=13), "13 clients need 13 at least"),
    "dirichlet": (
        Dirichlet(num_clients=5, min_samples=3),
        "need 15 at least. Lower data.partition.num_clients or data.partition.min_samples, or use more data.",
    ),
    "shards": (Shards(num_clients=5, shards_per_client=3), "num_clients or data.partition.shards_per_client"),
    "empty smallest client": (
        PowerLaw(num_clients=5, exponent=1.4),
        "over 5 clients needs 15.32 samples or more; the data set has 12, so its smallest client would be empty. Lower",
    ),
    "overflowing power law": (PowerLaw(num_clients=12, exponent=1e200), "needs inf samples or more"),
    "diversity without samples": (
        Diversity(samples_per_client=10),
        "Client 0 draws 10 training samples with labels 0, 1",
    ),
    "disjoint diversity": (
        Diversity(num_clients=9, samples_per_client=2, disjoint=True),
        "or raise classes_per_client, or set disjoint to false.",
    ),
    "owners": (Natural(owners=[1, 2]), "owners has 2 entries, but the data set has 12 rows. Give one owner for each"),
}


@pytest.mark.parametrize(("recipe", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_the_data_cannot_give_is_refused_with_the_fix(recipe: Partition, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        recipe.assign(SMALL, 0)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_as_printed_is_refused_for_other_sets_than_the_papers() -> None:
    with pytest.raises(DataError, match="table 4 is about MNIST and CIFAR-10, .* Leave as_printed out"):
        PowerLaw(as_printed=True).assign(with_counts([7000] * 10, tests=0), 1)


def test_diversity_is_refused_where_the_set_has_no_test_part() -> None:
    with pytest.raises(DataError, match="this set has none. Use another data.partition"):
        Diversity().assign(with_counts([900] * 3, tests=0), 0)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_labels_out_of_range_are_refused_with_the_row(wrong: int) -> None:
    y = np.array([0, 2, wrong, 1])
    with pytest.raises(DataError, match=f"Row 2 has label {wrong}, but labels go from 0 to 2"):
        Labels(y=y, official_train=np.arange(4), official_test=np.arange(0), num_classes=3)


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (IID, {"num_clients": 0}, "data.partition.num_clients is 0. Set it to a whole number of 1 or more."),
        (Shards, {"shards_per_client": 0}, "shards_per_client is 0"),
        (Dirichlet, {"alpha": 0.0}, "data.partition.alpha is 0.0. Set it above 0"),
        (Dirichlet, {"alpha": float("nan")}, "data.partition.alpha is nan"),
        (Dirichlet, {"min_samples": 0}, "min_samples is 0"),
        (PowerLaw, {"exponent": 0.9}, "data.partition.exponent is 0.9. Set it to 1"),
        (PowerLaw, {"classes_per_client": -1}, "classes_per_client is -1"),
        (PowerLaw, {"as_printed": True, "num_clients": 30}, "table 4 has no row for 30 clients"),
        (ClassesPerClient, {"size_min": 9, "size_max": 8}, "size_max is 8, below size_min 9. Set it to 9 or more."),
        (Diversity, {"samples_per_client": 0}, "samples_per_client is 0"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(
    make: Callable[..., Partition], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**options)
    assert reason in str(caught.value)
