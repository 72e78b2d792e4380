"""Laws of row numbers in one array: they are the lists that they were made of."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlit.data.ragged import Ragged

LISTS = st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=6)


def lists(rows: Ragged) -> list[list[int]]:
    return [own.tolist() for own in rows]


@given(LISTS)
def test_the_pieces_come_back(pieces: list[list[int]]) -> None:
    rows = Ragged.of(pieces)
    assert lists(rows) == [rows[k].tolist() for k in range(len(pieces))] == pieces
    assert rows.joined.tolist() == [row for own in pieces for row in own]
    assert rows.owners.tolist() == [client for client, own in enumerate(pieces) for _ in own]
    assert rows.sizes.tolist() == [len(own) for own in pieces]


@given(LISTS, st.data())
def test_some_clients_in_any_order_and_often(pieces: list[list[int]], data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.sampled_from(range(len(pieces))), max_size=8)) if pieces else []
    some = Ragged.of(pieces).of_clients(ids)
    assert lists(some) == [pieces[client] for client in ids]
    assert some.joined.tolist() == [row for client in ids for row in pieces[client]]


@given(LISTS, st.integers(0, 4), st.integers(0, 8))
def test_a_cut_is_a_slice_of_everyones_rows(pieces: list[list[int]], first: int, last: int) -> None:
    cut = Ragged.of(pieces).cut(np.full(len(pieces), first), np.full(len(pieces), last))
    assert lists(cut) == [own[first:last] for own in pieces]
    assert cut.joined.tolist() == [row for own in pieces for row in own[first:last]]


def test_a_slice_is_of_clients_and_everything_is_int64() -> None:
    rows = Ragged.of([[1, 2], [], [3]])
    assert lists(rows[1:]) == [[], [3]]
    assert rows[-1].dtype == rows.joined.dtype == torch.int64
    assert lists(Ragged.empty(2)) == [[], []]
