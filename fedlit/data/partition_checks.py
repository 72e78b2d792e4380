"""What a data set may hand out: checked once, before anything is split."""

import numpy as np

from fedlit.data.partition.base import Parts
from fedlit.data.ragged import Ragged
from fedlit.errors import DataError


def check_clients(parts: Parts, *, rows: int, allow_empty: bool) -> None:
    """Refuse a partition that would fail, or give wrong results, later in the training."""
    if not parts.clients or not rows:
        raise DataError(f"The data set has {rows} rows and {len(parts.clients)} clients. Both must be 1 or more.")
    check_rows(parts, rows)
    empty = [client for client, rows_of in enumerate(parts.clients) if len(rows_of) == 0]
    if empty and not allow_empty:
        raise DataError(
            f"Client {empty[0]} has no training data ({len(empty)} of {len(parts.clients)} clients have none). "
            "Make fewer or larger clients, or set data.allow_empty to true to keep clients that never train."
        )


def check_rows(parts: Parts, rows: int) -> None:
    """A row outside the store cannot be read; a row listed twice could be trained on and tested on."""
    pieces = [Ragged.of(part) for part in (parts.clients, parts.tests, parts.vals) if part is not None]
    owners = np.concatenate([piece.owners for piece in pieces])
    numbers = np.concatenate([piece.values for piece in pieces])
    outside = (numbers < 0) | (numbers >= rows)
    if outside.any():
        client = owners[outside].min()
        of_client = numbers[owners == client]
        raise DataError(
            f"Client {client} is given rows {of_client.min()} to {of_client.max()} of a store that has {rows}. "
            f"Let build() return row numbers from 0 to {rows - 1}."
        )
    ordered = np.sort(owners * rows + numbers)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise DataError(
            f"Client {twice[0] // rows} is given the same row twice, which could put it in both its training and its "
            "test samples. Let build() return each row number at most once per client."
        )
