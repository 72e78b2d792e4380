"""Newcomers: clients that are held back during the whole training, and come when it is over.

Users are numbered first, in the order that they had, and newcomers after them. So nothing of a run can read a newcomer
by mistake: its data have no such client.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from fedlit.data.partition.base import RowNumbers
from fedlit.data.ragged import Ragged
from fedlit.data.split import share, union
from fedlit.errors import require
from fedlit.keys import Purpose, generator

if TYPE_CHECKING:
    from fedlit.data.base import ClientData, FederatedDataModule

    D = TypeVar("D", bound=FederatedDataModule)

PARTS = ("train", "val", "test", "adapt")
OF_A_POPULATION = ("sizes", "global_test", "global_val", "partition_hash", "newcomer_data")
"""Cached properties of a data module that another population has otherwise."""


def check_share(newcomers: float) -> None:
    """Refuse a share that leaves nobody to train, or is none."""
    require(
        0 <= newcomers < 1,
        f"data.newcomers is {newcomers}. It is the share of the clients that are held back: set it to 0 or more and "
        "below 1, such as 0.2.",
    )


def check_not_fresh(data: "FederatedDataModule") -> None:
    """Refuse newcomers where all clients of every round are new."""
    require(
        not (data.newcomers and data.is_fresh),
        f"data.newcomers is {data.newcomers}, but these data draw new clients in every round (data.fresh), so nobody "
        "can be held back. Leave one of them out.",
    )


def order_of(clients: int, newcomers: float, seed: int) -> tuple[RowNumbers, int]:
    """(the clients' numbers in the data, users first and then newcomers, how many are users).

    A share above 0 is one client or more, and leaves at least one user.
    """
    count = share(clients, newcomers, least=1)
    is_user = np.ones(clients, dtype=np.bool_)
    is_user[generator(seed, Purpose.NEWCOMERS).choice(clients, count, replace=False)] = False
    return np.argsort(~is_user, kind="stable"), clients - count


def of_clients(data: "ClientData", ids: Sequence[int] | RowNumbers) -> "ClientData":
    """The data of some clients, in this order."""
    chosen = np.asarray(ids).tolist()
    parts = {name: getattr(data, name).of_clients(chosen) for name in PARTS}
    return replace(data, **parts, groups=[data.groups[client] for client in chosen])


def without_users(data: "ClientData", users: int) -> "ClientData":
    """The same clients by number, but users have no rows."""
    rows = {name: getattr(data, name) for name in PARTS}
    is_newcomer = np.arange(len(data.groups)) >= users
    return replace(data, **{name: part.cut(0, np.where(is_newcomer, part.sizes, 0)) for name, part in rows.items()})


def population_of(data: "D", everyone: "ClientData") -> "D":
    """The same data set with other clients; the store is shared."""
    other = copy.copy(data)
    for name in OF_A_POPULATION:
        vars(other).pop(name, None)
    other._everyone = everyone
    vars(other)["largest"] = data.largest  # batches have the width that the run's programs were compiled for
    vars(other)["global_test"] = union([everyone.test])  # official tests are for the users' model
    vars(other)["global_val"] = torch.empty(0, dtype=torch.int64)
    return other


def largest_part(pieces: Ragged) -> int:
    """The most rows of any client."""
    return int(pieces.sizes.max(initial=0))
