"""TensorData: a user's own arrays, with one column that says which client each sample belongs to.

x is pictures, numbers or token ids, or several of these; y is labels, numbers to be predicted, or the next token at
each position. Errors of the arrays are raised here, when the object is made, not hours later in a round.
"""

import math
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.partition.base import Parts
from fedlit.errors import DataError, require
from fedlit.inputs import Inputs, in_store, mapped, tensors
from fedlit.metrics.measures import NOT_COUNTED

Array = Tensor | NDArray[Any]

_TESTED_NUMBERS = 2**20
"""How many numbers are tested at a time."""
_FLOAT_TYPES = ("float16", "bfloat16", "float32", "float64")
_LABEL_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class TensorData(FederatedDataModule):
    """A data set from arrays: `TensorData(x, y, client)`, torch or NumPy, sample by sample.

    Clients are numbered 0, 1, ... in the sorted order of their ids; `client_names` keeps the ids.
    The arrays are not copied where that can be avoided, so do not change them afterwards.

    Args:
        x: samples (rows, ...): uint8 (pictures) or floating point, or token ids as any other whole number; or a dict or
            tuple of such arrays and of masks (bool), which the net gets as its keyword or positional arguments
        y: class labels (rows,), whole numbers from 0; or numbers (rows,) or (rows, targets), floating point; or tokens
            (rows, length) in the shape of x, -100 where none is to be guessed
        client: whose sample it is (rows,), whole numbers or strings
        num_classes: number of classes; the largest label + 1 when not given
        num_tokens: number of tokens in x, and in y where that has the shape of x; the largest one + 1 when not given;
            with several inputs, number of tokens in y alone
        common: options of every data set (FederatedDataModule): test_fraction, val_fraction, seed ...
    """

    def __init__(
        self,
        x: Array | Mapping[str, Array] | tuple[Array, ...],
        y: Array,
        client: Array,
        *,
        num_classes: int | None = None,
        num_tokens: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        require(
            num_classes is None or num_classes >= 1,
            f"num_classes is {num_classes}. Set it to 1 or more, or leave it out to count the labels.",
        )
        require(
            num_tokens is None or num_tokens >= 1,
            f"num_tokens is {num_tokens}. Set it to 1 or more, or leave it out to count the tokens.",
        )
        arrays = arrays_of(x)
        check_lengths(
            **{input_name(entry): one for entry, one in arrays.items()}, y=as_array(y), client=as_array(client)
        )
        self._store = {entry: samples(one, num_tokens, entry) for entry, one in arrays.items()}
        self._store["y"] = targets(as_array(y), in_store(self._store), num_classes, num_tokens)
        self._num_classes = num_tokens if is_next_tokens(self._store["y"], in_store(self._store)) else num_classes
        names, self._owners = np.unique(client_ids(as_array(client)), return_inverse=True)
        self.client_names: list[int | str] = names.tolist()

    def build(self) -> tuple[Store, Parts]:
        by_client = np.argsort(self._owners, kind="stable")
        ends = np.cumsum(np.bincount(self._owners))
        return self._store, Parts(np.split(by_client, ends[:-1]))

    def rows(self, store: Store, index: Tensor) -> tuple[Any, Tensor]:
        x, y = super().rows(store, index)
        return mapped(lambda one: one.to(torch.int64) if is_tokens(one) else one, x), y

    def probe_rows(self) -> Tensor:
        """For token ids, the rows with the smallest and the largest one: an embedding must have both."""
        tokens = [one.reshape(len(one), -1) for one in tensors(in_store(self._store)) if is_tokens(one)]
        if not tokens:
            return super().probe_rows()
        return torch.stack([row for flat in tokens for row in (flat.amin(1).argmin(), flat.amax(1).argmax())])

    def count_classes(self, store: Store) -> int:
        return super().count_classes(store) if self._num_classes is None else self._num_classes


def is_tokens(x: Tensor) -> bool:
    """Whether samples are token ids: whole numbers, but not the bytes of pictures or masks."""
    return not x.is_floating_point() and x.dtype not in (torch.uint8, torch.bool)


def is_several(x: Any) -> TypeGuard[Mapping[str, Array] | tuple[Array, ...]]:
    """Whether x is several arrays; a tuple of numbers or lists is one."""
    return isinstance(x, Mapping) or (isinstance(x, tuple) and all(isinstance(one, Tensor | np.ndarray) for one in x))


def arrays_of(x: Any) -> dict[str, Array]:
    """Entry of the store -> array: `x`, or one for each of several inputs."""
    if not is_several(x):
        return {"x": as_array(x)}
    if not x:
        raise DataError("x is empty. Give a dict or tuple of arrays, one for each input of the net.")
    wrong = next((name for name in x if not is_argument(name)), None) if isinstance(x, Mapping) else None
    if wrong is not None:
        raise DataError(
            f"x has the key {wrong!r}, but the net gets the values of a dict as keyword arguments. Give keys that are "
            "names of its forward's arguments, such as input_ids; or a tuple of arrays."
        )
    return {f"x.{name}": as_array(one) for name, one in (x.items() if isinstance(x, Mapping) else enumerate(x))}


def is_argument(name: object) -> bool:
    """Whether a key can be the name of an argument."""
    return isinstance(name, str) and name.isidentifier() and not iskeyword(name)


def input_name(entry: str) -> str:
    """The name of a store's entry for errors: x, x['input_ids'] or x[0]."""
    x, several, name = entry.partition(".")
    return f"{x}[{int(name) if name.isdigit() else repr(name)}]" if several else x


def samples(x: Array, num_tokens: int | None, entry: str = "x") -> Tensor:
    """x as a tensor of its own type, finite throughout; token ids in 0 .. num_tokens - 1.

    Of several inputs one may be a mask, and `num_tokens` says nothing of them.
    """
    name, is_one = input_name(entry), entry == "x"
    if type_name(x) not in (*_FLOAT_TYPES, *_LABEL_TYPES, *(() if is_one else ("bool",))):
        raise DataError(
            f"{name} has type {type_name(x)}, but samples are uint8 (images), floating point, or whole numbers (token "
            f"ids). Convert it, for example with {name}.astype('float32') in NumPy or {name}.float() in torch."
        )
    tensor = to_tensor(x)
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch can hardly compute with them
        tensor = tensor.to(torch.int64)
    if is_tokens(tensor):
        check_range(name, tensor, num_tokens if is_one else None, "token id", "num_tokens")
    check_finite(name, tensor)
    return tensor


def check_finite(name: str, values: Tensor) -> None:
    """Refuse NaN and infinite values."""
    damaged = damaged_rows(values)
    if len(damaged):
        raise DataError(
            f"{name} has NaN or infinite values in {len(damaged)} of its {len(values)} rows, first in row "
            f"{int(damaged[0])}. Remove these rows from x, y and client, or fill in the values."
        )


def check_range(
    name: str, values: Tensor, limit: int | None, what: str, option: str, spared: int | None = None
) -> None:
    """Refuse labels or tokens outside 0 .. limit - 1; `spared` is allowed too."""
    outside = (values < 0) | (values >= (math.inf if limit is None else limit))
    if spared is not None:
        outside &= values != spared
    wrong = outside.nonzero()
    if len(wrong):
        row = int(wrong[0, 0])
        top = f"{option} - 1" if limit is None else f"{limit - 1} ({option} is {limit})"
        raise DataError(
            f"{name} has {what} {int(values[tuple(wrong[0])])} in row {row}, but {what}s go from 0 to {top}. "
            f"Renumber the {'classes' if what == 'label' else 'tokens'} from 0, or correct {option}."
        )


def damaged_rows(x: Tensor) -> Tensor:
    """Numbers of the rows with NaN or infinite values; tested in parts, because all at once would double the memory."""
    if not x.is_floating_point():
        return torch.empty(0, dtype=torch.int64)
    parts = torch.split(x, max(1, _TESTED_NUMBERS // max(1, x[0].numel())))
    finite = torch.cat([torch.isfinite(part).reshape(len(part), -1).all(dim=1) for part in parts])
    return (~finite).nonzero()


def targets(y: Array, x: Inputs, num_classes: int | None, num_tokens: int | None) -> Tensor:
    """y as numbers, as one token for each token of x, as one label for each pixel, or as one for each row."""
    if type_name(y) in _FLOAT_TYPES:
        return numbers(y, num_classes)
    if type_name(y) not in _LABEL_TYPES:
        raise DataError(
            f"y has type {type_name(y)}, but class labels and tokens are whole numbers from 0, and targets of a "
            "regression are floating point. Number the classes, and convert with y.astype('int64') in NumPy or "
            "y.long() in torch."
        )
    if is_next_tokens(y, x):
        return next_tokens(y, num_tokens)
    if y.ndim == 3:
        return pixels(y, num_classes)
    check_one_per_sample("y", y)
    tensor = to_tensor(y).to(torch.int64)
    check_range("y", tensor, num_classes, "label", "num_classes")
    return tensor


def is_next_tokens(y: Array, x: Inputs) -> bool:
    """Whether y has a token for each token of x."""
    return y.ndim > 1 and any(is_tokens(one) and tuple(y.shape) == tuple(one.shape) for one in tensors(x))


def pixels(y: Array, num_classes: int | None) -> Tensor:
    """The class of each pixel, -100 where none is to be predicted."""
    tensor = to_tensor(y).to(torch.int64)
    check_range("y", tensor, num_classes, "label", "num_classes", spared=NOT_COUNTED)
    return tensor


def numbers(y: Array, num_classes: int | None) -> Tensor:
    """Targets of a regression, (rows,) or (rows, targets)."""
    if num_classes is not None:
        raise DataError(
            f"y has type {type_name(y)}, the targets of a regression, but num_classes is {num_classes}. Convert y with "
            "y.astype('int64') or y.long() if these are classes, or leave num_classes out."
        )
    if y.ndim > 2:
        raise DataError(f"y has shape {tuple(y.shape)}, but targets have shape (rows,) or (rows, targets). Reshape it.")
    tensor = to_tensor(y)
    tensor = tensor.float() if tensor.itemsize < 4 else tensor
    check_finite("y", tensor)
    return tensor


def next_tokens(y: Array, num_tokens: int | None) -> Tensor:
    """The next token at each position, -100 where none is to be predicted; every row needs at least one."""
    tensor = to_tensor(y).to(torch.int64)
    check_range("y", tensor, num_tokens, "token id", "num_tokens", spared=NOT_COUNTED)
    empty = (tensor == NOT_COUNTED).reshape(len(tensor), -1).all(1).nonzero()
    if len(empty):
        raise DataError(
            f"y is {NOT_COUNTED} at every place of row {int(empty[0])}, so the row has no token to predict. Remove "
            "such rows from x, y and client."
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
    """The values as an array; lists are allowed, sparse, quantized and masked arrays are not."""
    if isinstance(values, Tensor) and (values.layout != torch.strided or values.is_quantized or values.is_meta):
        raise DataError("An array is sparse, quantized or without values. Pass plain ones: x.to_dense() in torch.")
    if np.ma.is_masked(values):
        raise DataError("An array is masked: some of its values do not count. Fill them in, or remove these rows.")
    try:
        return values if isinstance(values, Tensor) else np.asarray(values)
    except ValueError as error:
        raise DataError(
            f"A {type(values).__name__} is not an array: its parts have different shapes ({error}). Give one array; or "
            "x as a dict or tuple of arrays, where the net takes several inputs."
        ) from error


def to_tensor(array: Array) -> Tensor:
    """A tensor that shares the array's memory, unless torch could not use that (read-only, foreign byte order)."""
    if isinstance(array, Tensor):
        return array.detach().cpu()
    return torch.from_numpy(np.require(array, dtype=array.dtype.newbyteorder("="), requirements=["C", "W"]))


def type_name(array: Array) -> str:
    """'float32' for both torch.float32 and NumPy's, whatever its byte order."""
    return str(array.dtype).removeprefix("torch.") if isinstance(array, Tensor) else array.dtype.name
