"""ToldData: the data of a federation as its server knows them, from what nodes say: sizes and form, no samples."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit.client.messages import Message
from fedlit.data.base import ClientData, FederatedDataModule, Store
from fedlit.data.partition.base import Parts
from fedlit.data.ragged import Ragged
from fedlit.errors import DataError

PARTS = ("train", "val", "test", "adapt")
"""Of a client's samples."""


class ToldData(FederatedDataModule):
    """Sizes, groups and form of the clients' data. Its one row is zeros: whatever reads samples here reads nothing.

    Args:
        told: the node's name -> what it says of its data (`Node.hello`), in the order of the clients' numbers.
    """

    def __init__(self, told: Mapping[str, Message]) -> None:
        super().__init__()
        self.client_names = list(told)
        self._told = list(told.values())
        check_alike(told)

    def build(self) -> tuple[Store, Parts]:
        """Never called: `setup` does what it would be called for."""
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Every row of every client is the one of zeros."""
        if self._everyone is not None:
            return
        form: dict[str, Tensor] = self._told[0]["form"]
        sizes = {part: [one["sizes"][part] for one in self._told] for part in PARTS}
        parts: dict[str, Any] = {
            part: Ragged.of(np.zeros(size, dtype=np.int64) for size in sizes[part]) for part in PARTS
        }
        store = {name: torch.zeros_like(value) for name, value in form.items()}
        self._everyone = ClientData(store, **parts, groups=[one["group"] for one in self._told])

    def count_classes(self, store: Store) -> int:
        """The most that a node knows: some may lack the last class."""
        return max(int(one["classes"]) for one in self._told)

    def probe_rows(self) -> Tensor:
        """The row of zeros, twice."""
        return torch.zeros(2, dtype=torch.int64)


def check_alike(told: Mapping[str, Message]) -> None:
    """DataError if a node's samples have another form than the first one's, or it has nothing to train with."""
    first, *others = told
    forms = {name: {key: described(value) for key, value in one["form"].items()} for name, one in told.items()}
    for name in others:
        if forms[name] != forms[first]:
            raise DataError(
                f"{name} has samples of another form than {first}: {shown(forms[name])} and {shown(forms[first])}. "
                "All nodes of a run need samples of the same shapes and types; prepare its data again."
            )
    for name, one in told.items():
        if one["sizes"]["train"] == 0:
            raise DataError(f"{name} has no training samples. Give it data, or leave it out.")


def described(value: Tensor) -> str:
    """Type and shape of one sample."""
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape[1:])}"


def shown(form: Mapping[str, str]) -> str:
    """`x float32 (60,), y int64 ()`."""
    return ", ".join(f"{name} {what}" for name, what in form.items())
