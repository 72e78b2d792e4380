"""Laws of a user's own arrays: they arrive unchanged, or are refused with the argument and the fix."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlit import TensorData
from fedlit.errors import ConfigError, DataError

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1])
CLIENT = np.array([5, 5, 5, 5, 2, 2, 2, 2])
TOKENS = np.arange(24).reshape(8, 3)


def ready(x: Any = X, y: Any = Y, client: Any = CLIENT, **options: Any) -> TensorData:
    data = TensorData(x, y, client, **options)
    data.setup()
    return data


def owned(data: TensorData, client: int) -> list[int]:
    everyone = data.everyone
    return sorted(torch.cat([everyone.train[client], everyone.val[client], everyone.test[client]]).tolist())


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_a_client_owns_the_rows_that_carry_its_id(ids: list[int]) -> None:
    rows = len(ids)
    data = ready(np.zeros((rows, 1)), np.zeros(rows, dtype=int), np.array(ids))
    expected = [[row for row in range(rows) if ids[row] == name] for name in sorted(set(ids))]
    assert [owned(data, client) for client in range(data.num_clients)] == expected


def test_rows_of_a_client_come_in_the_order_of_the_arrays() -> None:
    rows = 5000
    data = TensorData(np.zeros((rows, 1)), np.zeros(rows, dtype=int), np.arange(rows) % 3)
    assert [np.diff(own).min() for own in data.build()[1].clients] == [3, 3, 3]


@pytest.mark.parametrize(
    ("client", "names"),
    [
        (np.array([30, 4, 30, 4, -1, -1, 4, 4]), [-1, 4, 30]),
        (torch.tensor([30, 4, 30, 4, -1, -1, 4, 4]), [-1, 4, 30]),
        (np.array(list("bbaabbaa")), ["a", "b"]),
        (np.array(list("bbaabbaa"), dtype=object), ["a", "b"]),
        (list("bbaabbaa"), ["a", "b"]),
    ],
    ids=["ints", "torch", "strings", "objects", "list"],
)
def test_clients_are_numbered_in_the_sorted_order_of_their_ids(client: Any, names: list[int | str]) -> None:
    assert ready(client=client).client_names == names


@pytest.mark.parametrize("kind", ["uint8", "float16", "float32", "float64"])
def test_samples_keep_their_type(kind: str) -> None:
    assert ready(X.astype(kind)).store["x"].dtype == getattr(torch, kind)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint16", "int64"])
def test_labels_become_int64(kind: str) -> None:
    assert ready(y=Y.astype(kind)).store["y"].dtype == torch.int64


def test_torch_and_numpy_arrays_give_the_same_partition() -> None:
    from_torch = ready(torch.from_numpy(X), torch.from_numpy(Y), torch.from_numpy(CLIENT))
    assert from_torch.partition_hash == ready().partition_hash


def test_samples_are_not_copied() -> None:
    x = X.copy()
    assert ready(x).store["x"].data_ptr() == x.ctypes.data


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "x", [np.broadcast_to(X[0], (8, 3)), X[::-1], X.astype(">f4")], ids=["read-only", "reversed", "big-endian"]
)
def test_arrays_that_torch_cannot_share_arrive_with_their_values(x: Any) -> None:
    assert np.array_equal(ready(x).store["x"].numpy(), x)


def test_num_classes_is_the_largest_label_plus_one() -> None:
    assert ready().num_classes == 3


def test_num_classes_can_exceed_the_labels_that_occur() -> None:
    assert ready(num_classes=7).num_classes == 7


def test_the_sample_shape_may_have_any_number_of_dimensions() -> None:
    assert ready(np.zeros((8, 1, 4, 5))).sample_shape == (1, 4, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": Y[:7]}, r"different lengths: x has 8, y has 7, client has 8.*Pass one entry"),
        ({"x": X[:0], "y": Y[:0], "client": CLIENT[:0]}, r"x is empty.*\(0, 3\).*at least one sample"),
        ({"x": X[:, :0]}, r"x is empty.*\(8, 0\)"),
        ({"x": np.float32(1)}, r"x is empty.*\(\)"),
        ({"x": X.astype("int64") - 1}, r"x has token id -1 in row 0.*Renumber the tokens"),
        ({"x": X.astype("int64"), "num_tokens": 20}, r"token id 20 in row 6.*0 to 19 \(num_tokens is 20\)"),
        ({"x": torch.ones(8, 3, dtype=torch.bool)}, r"x has type bool.*x\.float\(\)"),
        ({"x": X.astype(complex)}, r"x has type complex128"),
        ({"y": Y - 1}, r"y has label -1 in row 0.*Renumber"),
        ({"y": Y, "num_classes": 2}, r"y has label 2 in row 2.*0 to 1 \(num_classes is 2\).*correct num_classes"),
        ({"y": Y + 0.5, "num_classes": 3}, r"y has type float64.*y\.astype\('int64'\)"),
        ({"y": Y == 0}, r"y has type bool.*y\.astype\('int64'\)"),
        ({"y": np.where(Y == 2, np.nan, Y)}, r"y has NaN or infinite values in 2 of its 8 rows, first in row 2"),
        ({"y": np.zeros((8, 3), int)}, r"y has shape \(8, 3\).*argmax\(1\) of a one-hot table"),
        ({"y": np.zeros((8, 3, 1))}, r"y has shape \(8, 3, 1\).*\(rows, targets\)"),
        ({"x": TOKENS, "y": TOKENS - 1}, r"y has token id -1 in row 0"),
        ({"x": TOKENS, "y": np.where(TOKENS > 20, -100, TOKENS)}, r"y is -100 at every place of row 7"),
        ({"y": Y[:, None]}, r"y has shape \(8, 1\).*y\.reshape\(-1\)"),
        ({"client": CLIENT / 2}, r"client has type float64.*client\.astype"),
        ({"client": np.array(["a", None] * 4)}, r"client has type object"),
        ({"client": np.stack([CLIENT, CLIENT], 1)}, r"client has shape \(8, 2\)"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_wrong_array_is_refused_with_its_name_and_the_fix(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        TensorData(**{"x": X, "y": Y, "client": CLIENT, **arguments})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_row_that_is_not_finite_is_named(value: float) -> None:
    x = X.copy()
    x[[3, 6], 1] = value
    with pytest.raises(DataError, match=r"2 of its 8 rows, first in row 3\. Remove these rows"):
        TensorData(x, Y, CLIENT)


def test_fewer_than_one_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_classes is 0"):
        TensorData(X, Y, CLIENT, num_classes=0)


def test_a_client_with_one_sample_trains_and_is_not_tested() -> None:
    data = ready(client=np.array([0, 0, 0, 0, 0, 0, 0, 1]))
    assert [len(data.everyone.train[1]), len(data.everyone.test[1])] == [1, 0]


@pytest.mark.parametrize("kind", ["int8", "int16", "uint16", "int32", "int64"])
def test_token_ids_reach_a_net_as_int64(kind: str) -> None:
    data = ready(TOKENS.astype(kind), TOKENS)
    x, y = data.rows(data.store, torch.tensor([2, 7]))
    assert (x.dtype, x.tolist(), y.tolist()) == (torch.int64, TOKENS[[2, 7]].tolist(), TOKENS[[2, 7]].tolist())


def test_tokens_are_counted_apart_from_the_classes_of_their_rows() -> None:
    assert (ready(TOKENS, Y).num_classes, ready(TOKENS, TOKENS).num_classes) == (3, 24)


@pytest.mark.parametrize(("kind", "kept"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")])
def test_numbers_are_kept_as_targets_and_have_no_classes(kind: str, kept: str) -> None:
    data = ready(y=Y.astype(kind))
    assert (data.store["y"].dtype, data.num_classes, data.is_labelled) == (getattr(torch, kept), 0, False)


def test_partition_of_targets_has_the_same_hash_in_every_precision() -> None:
    y = np.random.default_rng(0).normal(size=8)
    single, double, other = ready(y=y.astype("float32")), ready(y=y), ready(y=y + 1)
    assert single.partition_hash == double.partition_hash != other.partition_hash


def test_description_of_targets_counts_samples_and_no_classes() -> None:
    (first, _) = ready(y=Y.astype(float)).describe()["clients"]
    assert first == {"train": 3, "val": 0, "test": 1}
