"""Laws of the contract: the split, what is refused, and what can be read when."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.partition.base import Parts
from fedlit.data.ragged import Ragged
from fedlit.data.split import partition_hash, share
from fedlit.errors import ConfigError, DataError

FRACTIONS = st.floats(0, 1, exclude_max=True)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5)
SEEDS = st.integers(0, 2**32 - 1)
PATIENT = settings(deadline=None, max_examples=50)  # a busy machine is not a failure


class Given(FederatedDataModule):
    """The rows that a test gives to each client; row r has x = (r, -r) and label r mod 3."""

    def __init__(
        self,
        clients: Sequence[Sequence[int]],
        *,
        total: int = 1000,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.clients = clients
        self.total = total
        self.builds = 0

    def build(self) -> tuple[Store, Parts]:
        self.builds += 1
        number = torch.arange(self.total)
        store = {"x": torch.stack([number, -number], dim=1).double(), "y": number % 3}
        return store, Parts([np.array(rows, dtype=np.int64) for rows in self.clients])


def ready(clients: Sequence[Sequence[int]], **options: object) -> Given:
    data = Given(clients, **options)  # type: ignore[arg-type]  # options of many types, checked by the constructor
    data.setup()
    return data


def consecutive(sizes: Sequence[int]) -> list[range]:
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@PATIENT
@given(SIZES, FRACTIONS, FRACTIONS, SEEDS)
def test_every_row_of_a_client_is_in_exactly_one_of_its_parts(
    sizes: list[int], test_fraction: float, val_fraction: float, seed: int
) -> None:
    clients = consecutive(sizes)
    data = ready(clients, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed).everyone
    parts = [torch.cat(part).tolist() for part in zip(data.train, data.val, data.test, strict=True)]
    assert [sorted(rows) for rows in parts] == [list(rows) for rows in clients]


@PATIENT
@given(SIZES, FRACTIONS, FRACTIONS, SEEDS)
def test_a_client_with_data_has_training_data(
    sizes: list[int], test_fraction: float, val_fraction: float, seed: int
) -> None:
    data = ready(consecutive(sizes), test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)
    assert data.sizes.min() >= 1


@PATIENT
@given(SIZES, st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_client_is_tested_exactly_if_it_has_two_rows_or_more(sizes: list[int], test_fraction: float) -> None:
    data = ready(consecutive(sizes), test_fraction=test_fraction)
    assert [len(rows) > 0 for rows in data.everyone.test] == [size >= 2 for size in sizes]


@PATIENT
@given(SIZES, SEEDS)
def test_the_split_is_a_function_of_the_seed(sizes: list[int], seed: int) -> None:
    clients = consecutive(sizes)
    assert ready(clients, seed=seed).partition_hash == ready(clients, seed=seed).partition_hash


@PATIENT
@given(st.lists(SEEDS, min_size=2, max_size=2, unique=True))
def test_another_seed_gives_another_hash(seeds: list[int]) -> None:
    first, second = (ready([range(40), range(40, 80)], seed=seed) for seed in seeds)
    assert first.partition_hash != second.partition_hash


@PATIENT
@given(SIZES)
def test_a_client_is_split_alike_whoever_comes_after_it(sizes: list[int]) -> None:
    clients = consecutive(sizes)
    alone, together = ready(clients[:1]), ready(clients)
    assert alone.everyone.train[0].equal(together.everyone.train[0])


@pytest.mark.parametrize(
    ("rows", "train", "val", "test"),
    [(1, 1, 0, 0), (2, 1, 0, 1), (4, 3, 0, 1), (13, 10, 1, 2), (100, 72, 8, 20)],
    ids=lambda value: str(value),
)
def test_the_parts_have_the_sizes_of_the_rule(rows: int, train: int, val: int, test: int) -> None:
    data = ready([range(rows)], test_fraction=0.2, val_fraction=0.1).everyone
    assert [len(data.train[0]), len(data.val[0]), len(data.test[0])] == [train, val, test]


def test_a_share_is_that_of_the_decimal_number_the_user_wrote() -> None:
    assert share(100, 0.29, least=0) == 29


def test_the_split_is_shuffled() -> None:
    assert ready([range(100)]).everyone.train[0].diff().min() < 0


def test_clients_of_equal_size_are_shuffled_differently() -> None:
    first, second = ready(consecutive([100, 100])).everyone.train
    assert not first.equal(second - 100)


def test_no_test_fraction_means_no_test_samples() -> None:
    assert len(ready([range(50)], test_fraction=0.0).global_test) == 0


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize("name", ["test_fraction", "val_fraction"])
def test_a_fraction_outside_zero_to_one_is_refused_by_name(name: str, fraction: float) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{name} is {fraction}"):
        ready([range(5)], **{name: fraction})


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_numpy_would_refuse_is_refused_by_name(seed: int) -> None:
    with pytest.raises(ConfigError, match=rf"data\.seed is {seed}"):
        ready([range(5)], seed=seed)


def test_a_client_without_data_is_named_with_the_fix() -> None:
    with pytest.raises(DataError, match=r"Client 1 has no training data.*data\.allow_empty"):
        ready([range(5), [], range(5, 9)])


def test_a_client_without_data_is_kept_if_allowed() -> None:
    assert ready([range(5), []], allow_empty=True).sizes.tolist() == [4, 0]


def test_a_row_outside_the_store_is_refused() -> None:
    with pytest.raises(DataError, match=r"Client 1 is given rows 8 to 10 of a store that has 10"):
        ready([range(5), range(8, 11)], total=10)


def test_a_row_twice_in_one_client_is_refused() -> None:
    with pytest.raises(DataError, match=r"Client 0 is given the same row twice"):
        ready([[3, 4, 3]])


def test_a_data_set_without_clients_is_refused() -> None:
    with pytest.raises(DataError, match="0 clients"):
        ready([])


@pytest.mark.parametrize(
    "name",
    [
        "num_clients",
        "num_classes",
        "sizes",
        "store",
        "groups",
        "global_test",
        "global_val",
        "partition_hash",
        "sample_shape",
    ],
)
def test_reading_before_setup_says_to_call_setup(name: str) -> None:
    with pytest.raises(DataError, match=r"Call setup\(\)"):
        getattr(Given([range(5)]), name)


@pytest.mark.parametrize(
    "ask", [lambda data: data.load(0, [0]), lambda data: data.describe()], ids=["load", "describe"]
)
def test_asking_before_setup_says_to_call_setup(ask: Callable[[Given], object]) -> None:
    with pytest.raises(DataError, match=r"Call setup\(\)"):
        ask(Given([range(5)]))


def test_setup_builds_once_for_all_stages() -> None:
    data = ready([range(20)])
    data.setup("fit")
    data.setup("test")
    assert data.builds == 1


def test_load_gives_the_asked_clients_in_the_asked_order() -> None:
    data = ready(consecutive([10, 20, 30]))
    train = data.load(4, [2, 0]).train
    assert [rows.tolist() for rows in train] == [data.everyone.train[i].tolist() for i in (2, 0)]


def test_load_gives_the_store_itself_and_no_copy() -> None:
    data = ready([range(10)])
    assert data.load(0, [0]).store is data.store


@pytest.mark.parametrize("client", [-1, 2])
def test_load_refuses_a_client_that_does_not_exist(client: int) -> None:
    with pytest.raises(DataError, match=rf"Client {client} does not exist.*0 to 1"):
        ready(consecutive([5, 5])).load(0, [client])


def test_row_numbers_are_int64() -> None:
    data = ready([range(20)])
    loaded = data.load(0, [0])
    kinds = {rows.dtype for rows in (*loaded.train, *loaded.val, *loaded.test, data.global_test, data.sizes)}
    assert kinds == {torch.int64}


def test_rows_gathers_sample_and_label_of_each_number() -> None:
    x, y = ready([range(10)]).rows(ready([range(10)]).store, torch.tensor([7, 2, 7]))
    assert (x.tolist(), y.tolist()) == ([[7, -7], [2, -2], [7, -7]], [1, 2, 1])


def test_rows_is_traced_as_one_program_without_branches() -> None:
    store, index = ready([range(10)]).store, torch.tensor([9, 0])
    program = torch.compile(ready([range(10)]).rows, fullgraph=True, backend="eager")
    assert program(store, index)[0].equal(ready([range(10)]).rows(store, index)[0])


def test_rows_maps_over_a_dimension_of_clients() -> None:
    store, index = ready([range(10)]).store, torch.tensor([[9, 0], [4, 4]])
    x, _ = torch.vmap(lambda own: ready([range(10)]).rows(store, own))(index)
    assert x[..., 0].tolist() == index.tolist()


def test_a_test_row_that_clients_share_is_pooled_once() -> None:
    data = ready([range(50), range(25, 75), range(50)], test_fraction=0.5)
    pooled = {row for rows in data.everyone.test for row in rows.tolist()}
    assert data.global_test.tolist() == sorted(pooled)


def test_pooled_validation_is_the_union_over_the_clients() -> None:
    data = ready(consecutive([50, 60]), val_fraction=0.3)
    assert data.global_val.tolist() == sorted(data.everyone.val.joined.tolist())


def test_the_hash_tells_apart_who_owns_the_same_rows() -> None:
    options = {"test_fraction": 0.0, "val_fraction": 0.0}
    swapped = ready([[1], [0]], **options).partition_hash
    assert ready([[0], [1]], **options).partition_hash != swapped


def test_the_hash_tells_apart_where_one_client_ends() -> None:
    def with_train(*clients: list[int]) -> str:
        return partition_hash([Ragged.of(clients)], labels=b"")

    assert with_train([0, 1], [2]) != with_train([0], [1, 2])


def test_the_hash_depends_on_labels() -> None:
    data, other = Given([range(10)]), Given([range(10)])
    data.setup()
    other.setup()
    other.store["y"][3] += 1
    assert data.partition_hash != other.partition_hash


def test_the_hash_is_sixteen_hex_digits() -> None:
    digits = ready([range(10)]).partition_hash
    assert (len(digits), int(digits, 16) >= 0) == (16, True)


def test_sample_shape_is_that_of_one_sample() -> None:
    assert ready([range(10)]).sample_shape == (2,)


def test_clients_belong_to_no_group_by_default() -> None:
    assert ready(consecutive([5, 5])).groups == ["", ""]


def test_the_description_survives_json() -> None:
    description = ready(consecutive([10, 20])).describe()
    assert json.loads(json.dumps(description)) == description


def test_the_description_counts_parts_and_training_classes() -> None:
    data = ready([[0, 1, 3, 4, 6]], test_fraction=0.0, val_fraction=0.0)
    assert data.describe() == {
        "name": "Given",
        "seed": 0,
        "num_clients": 1,
        "num_classes": 3,
        "hash": data.partition_hash,
        "clients": [{"train": 5, "val": 0, "test": 0, "classes": [3, 2, 0]}],
    }


def test_tail_split_tests_on_the_rows_assigned_last() -> None:
    data = ready([range(10, 20)], split="tail", val_fraction=0.0).everyone
    assert (sorted(data.train[0].tolist()), data.test[0].tolist()) == (list(range(10, 18)), [18, 19])


def test_ordered_split_validates_on_the_rows_before_the_test() -> None:
    data = ready([range(10, 30), [3]], split="ordered", val_fraction=0.25, adapt_fraction=0.25).everyone
    assert (data.val[0].tolist(), data.test[0].tolist()) == ([22, 23, 24, 25], [26, 27, 28, 29])
    assert sorted(torch.cat([data.train[0], data.adapt[0]]).tolist()) == list(range(10, 22))
    assert data.train[0].tolist() != sorted(data.train[0].tolist()), "shuffled, so that adaptation rows are drawn"
    assert (data.train[1].tolist(), len(data.val[1])) == ([3], 0)


def test_adaptation_rows_are_taken_from_the_training_rows() -> None:
    plain, data = ready([range(100)]).everyone, ready([range(100)], adapt_fraction=0.25).everyone
    assert len(data.adapt[0]) == 18  # of 100 - 20 tested - 8 for validation = 72
    assert sorted(torch.cat([data.adapt[0], data.train[0]]).tolist()) == sorted(plain.train[0].tolist())
    assert data.test[0].equal(plain.test[0])


def test_limit_cuts_every_part_of_every_client() -> None:
    data = ready(consecutive([100, 50, 4]), limit=6).everyone
    assert [[len(rows) for rows in part] for part in (data.train, data.val, data.test)] == [
        [6, 6, 3],
        [6, 4, 0],
        [6] * 2 + [1],
    ]


def test_evaluation_on_some_clients_and_samples_leaves_training_alone() -> None:
    plain, data = ready(consecutive([50] * 10)), ready(consecutive([50] * 10), eval_clients=3, eval_samples=4)
    tests = data.everyone.test
    assert sorted(len(rows) for rows in tests) == [0] * 7 + [4] * 3
    assert all(
        set(some.tolist()) <= set(whole.tolist()) for some, whole in zip(tests, plain.everyone.test, strict=True)
    )
    assert all(a.equal(b) for a, b in zip(data.everyone.train, plain.everyone.train, strict=True))
    assert len(data.global_test) == 12


def test_of_more_than_ten_thousand_clients_ten_thousand_are_tested_unless_asked() -> None:
    many = [range(2)] * 10_001
    assert np.count_nonzero(ready(many).everyone.test.sizes) == 10_000
    assert np.count_nonzero(ready(many, eval_clients=10_001).everyone.test.sizes) == 10_001


class WithFixedParts(Given):
    """Client 0 trains on rows 0 to 9; its validation, test and group are fixed."""

    def build(self) -> tuple[Store, Parts]:
        store, _ = super().build()
        return store, Parts([np.arange(10)], tests=[np.array([20, 21])], vals=[np.array([30])], groups=["sketch"])


def test_parts_that_the_recipe_fixes_stay_as_they_are() -> None:
    data = WithFixedParts([])
    data.setup()
    everyone = data.everyone
    parts = (everyone.train, everyone.val, everyone.test)
    assert [sorted(part[0].tolist()) for part in parts] == [list(range(10)), [30], [20, 21]]
    assert (data.groups, data.describe()["clients"][0]["group"]) == (["sketch"], "sketch")


@pytest.mark.parametrize("name", ["limit", "eval_clients", "eval_samples"])
def test_numbers_below_one_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"data.{name} is 0"):
        Given([range(10)], **{name: 0})
