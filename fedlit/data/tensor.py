"""TensorData: a user's own arrays, with one column that says which client each sample belongs to.

Everything that is wrong with the arrays is said here, when the object is made, not hours later in a round.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.partition.base import Parts
from fedlit.errors import DataError, require

Array = Tensor | NDArray[Any]

_SAMPLE_TYPES = ("uint8", "float16", "bfloat16", "float32", "float64")
_LABEL_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class TensorData(FederatedDataModule):
    """A data set from arrays: `TensorData(x, y, client)`, torch or NumPy, sample by sample.

    Clients are numbered 0, 1, ... in the sorted order of their ids; `client_names` keeps the ids.
    The arrays are not copied where that can be avoided, so do not change them afterwards.

    Args:
        x: samples (rows, ...), uint8 or floating point, kept in that type
        y: class labels (rows,), whole numbers from 0
        client: whose sample it is (rows,), whole numbers or strings
        num_classes: number of classes; the largest label + 1 when not given
        common: options of every data set (FederatedDataModule): test_fraction, val_fraction, seed ...
    """

    def __init__(
        self,
        x: Array,
        y: Array,
        client: Array,
        *,
        num_classes: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        require(
            num_classes is None or num_classes >= 1,
            f"num_classes is {num_classes}. Set it to 1 or more, or leave it out to count the labels.",
        )
        check_lengths(x=as_array(x), y=as_array(y), client=as_array(client))
        self._store = {"x": samples(as_array(x)), "y": labels(as_array(y), num_classes)}
        self._num_classes = num_classes
        names, self._owners = np.unique(client_ids(as_array(client)), return_inverse=True)
        self.client_names: list[int | str] = names.tolist()

    def build(self) -> tuple[Store, Parts]:
        by_client = np.argsort(self._owners, kind="stable")
        ends = np.cumsum(np.bincount(self._owners))
        return self._store, Parts(np.split(by_client, ends[:-1]))

    def count_classes(self, store: Store) -> int:
        return super().count_classes(store) if self._num_classes is None else self._num_classes


def samples(x: Array) -> Tensor:
    """x as a tensor of its own type, finite throughout."""
    if type_name(x) not in _SAMPLE_TYPES:
        raise DataError(
            f"x has type {type_name(x)}, but samples are uint8 (images) or floating point. "
            "Convert it, for example with x.astype('float32') in NumPy or x.float() in torch."
        )
    tensor = to_tensor(x)
    damaged = (~torch.isfinite(tensor)).reshape(len(tensor), -1).any(dim=1).nonzero()
    if len(damaged):
        raise DataError(
            f"x has NaN or infinite values in {len(damaged)} of its {len(tensor)} rows, first in row "
            f"{int(damaged[0])}. Remove these rows from x, y and client, or fill in the values."
        )
    return tensor


def labels(y: Array, num_classes: int | None) -> Tensor:
    """y as int64, each label in 0 .. num_classes - 1."""
    check_one_per_sample("y", y)
    if type_name(y) not in _LABEL_TYPES:
        raise DataError(
            f"y has type {type_name(y)}, but class labels are whole numbers from 0. Number the classes, and "
            "convert with y.astype('int64') in NumPy or y.long() in torch."
        )
    tensor = to_tensor(y).to(torch.int64)
    limit = math.inf if num_classes is None else num_classes
    wrong = ((tensor < 0) | (tensor >= limit)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        top = "num_classes - 1" if num_classes is None else f"{num_classes - 1} (num_classes is {num_classes})"
        raise DataError(
            f"y has label {int(tensor[row])} in row {row}, but labels go from 0 to {top}. "
            "Renumber the classes from 0, or correct num_classes."
        )
    return tensor


def client_ids(client: Array) -> NDArray[Any]:
    """The ids as a sortable array: whole numbers or strings (which pandas gives as objects)."""
    check_one_per_sample("client", client)
    ids = client.detach().cpu().numpy() if isinstance(client, Tensor) else client
    if ids.dtype.kind == "O" and all(isinstance(name, str) for name in ids):
        ids = ids.astype(str)
    if ids.dtype.kind not in "iuU":
        raise DataError(
            f"client has type {type_name(client)}, but a client's id is a whole number or a string. "
            "Convert it, for example with client.astype('int64') or client.astype(str) in NumPy."
        )
    return ids


def check_lengths(**arrays: Array) -> None:
    """One entry per sample in each array, and at least one sample."""
    for name, array in arrays.items():
        if 0 in array.shape or not array.shape:
            raise DataError(f"{name} is empty: its shape is {tuple(array.shape)}. Pass at least one sample.")
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        seen = ", ".join(f"{name} has {n}" for name, n in rows.items())
        raise DataError(f"The arrays have different lengths: {seen}. Pass one entry per sample in each.")


def check_one_per_sample(name: str, array: Array) -> None:
    """Refuse columns and one-hot tables, which would otherwise be taken for something else."""
    if array.ndim != 1:
        raise DataError(
            f"{name} has shape {tuple(array.shape)}, but it needs one entry per sample, shape ({len(array)},). "
            f"Flatten a column with {name}.reshape(-1), or take argmax(1) of a one-hot table."
        )


def as_array(values: Array) -> Array:
    """Lists are welcome too."""
    return values if isinstance(values, Tensor) else np.asarray(values)


def to_tensor(array: Array) -> Tensor:
    """A tensor that shares the array's memory, unless torch could not use that (read-only, foreign byte order)."""
    if isinstance(array, Tensor):
        return array.detach().cpu()
    return torch.from_numpy(np.require(array, dtype=array.dtype.newbyteorder("="), requirements=["C", "W"]))


def type_name(array: Array) -> str:
    """'float32' for both torch.float32 and NumPy's, whatever its byte order."""
    return str(array.dtype).removeprefix("torch.") if isinstance(array, Tensor) else array.dtype.name
