"""The data of one client under its number in a run, where the other clients have no rows: what a node holds."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedlit.data.newcomers import OF_A_POPULATION, PARTS
from fedlit.data.ragged import Ragged

if TYPE_CHECKING:
    from fedlit.data.base import FederatedDataModule

    D = TypeVar("D", bound=FederatedDataModule)


def one_client(data: "D", client: int, number: int, count: int) -> "D":
    """The same data set with this client's rows alone, under a number among so many clients; the store is shared.

    Draws are keyed by a client's number, so it trains as the client with this number does in a simulation.
    """
    everyone = data.everyone
    rows: dict[str, Any] = {name: moved(getattr(everyone, name), client, number, count) for name in PARTS}
    groups = [everyone.groups[client] if place == number else "" for place in range(count)]
    other = copy.copy(data)
    for name in OF_A_POPULATION:
        vars(other).pop(name, None)
    other._everyone = replace(everyone, **rows, groups=groups)
    other._held_back = None
    vars(other)["largest"] = data.largest  # batches are as wide as in a run with all clients
    return other


def moved(pieces: Ragged, client: int, number: int, count: int) -> Ragged:
    """One client's piece under another number; all others are empty."""
    starts, sizes = np.zeros((2, count), dtype=np.int64)
    starts[number], sizes[number] = pieces.starts[client], pieces.sizes[client]
    return Ragged(pieces.values, starts, sizes)
