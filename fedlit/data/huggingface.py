"""HuggingFaceData: a data set of the package `datasets`, or a folder that it saved, column by column.

Everything is read into memory once, when the object is made; errors of a column are raised then.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedlit.data.base import Store
from fedlit.data.normalise import normalisation, scaled
from fedlit.data.partition.base import Labels, Partition, Parts
from fedlit.data.tensor import TensorData
from fedlit.errors import DataError, nearest, require
from fedlit.inputs import in_store, stored
from fedlit.recorded import ReadFromFile, arguments_of

_PICTURE = "Image"
"""The feature of `datasets` that holds encoded pictures."""


class HuggingFaceData(TensorData, ReadFromFile):
    """A data set of Hugging Face's `datasets`: which column is x, which is y, and whose row it is.

    Args:
        dataset: a Dataset or DatasetDict, whose splits are joined, or a folder that its save_to_disk wrote
        x: column of the samples: pictures, numbers, or token ids of the same length in every row; or several columns,
            which the net gets as keyword arguments: a list of their names, or a mapping from arguments to columns
        y: column of the targets: class labels, numbers, or tokens; when not given, the tokens that follow those of x
        client: column that says whose row it is; clients are numbered in the sorted order of its values
        partition: recipe that hands out the rows by their labels, instead of `client`
        num_classes: number of classes; as many as a ClassLabel names, else the largest label + 1
        num_tokens: number of tokens; the largest one + 1 when not given
        mean: of each channel of pictures, that is subtracted
        std: of each channel of pictures, that is divided by
        common: options of every data set (FederatedDataModule): test_fraction, val_fraction, seed ...
    """

    def __init__(
        self,
        dataset: Any,
        *,
        x: str | list[str] | dict[str, str],
        y: str | None = None,
        client: str | None = None,
        partition: Partition | None = None,
        num_classes: int | None = None,
        num_tokens: int | None = None,
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
        **common: Any,
    ) -> None:
        require(
            (client is None) != (partition is None),
            "Give data.client, the column that says whose row it is, or data.partition, a recipe that hands the rows "
            "out: one of them, and not both.",
        )
        parts = splits_of(dataset)
        samples = columns(parts, x)
        if y is None:
            require(
                isinstance(x, str),
                f"data.x names several columns, {x}, so data.y must name the column of the targets; without it, the "
                "targets are the tokens that follow those of one column.",
            )
            samples, targets = samples[:, :-1], samples[:, 1:]
        else:
            targets = column(parts, y, "y")
        rows = np.arange(len(targets))
        owners = column(parts, client, "client") if client is not None else rows
        classes = num_classes if num_classes is not None or y is None else named_classes(parts, y)
        super().__init__(samples, targets, owners, num_classes=classes, num_tokens=num_tokens, **common)
        self.partition = partition
        names = {"x": x} if isinstance(x, str) else {f"x.{name}": one for name, one in named(x).items()}
        self.pictures = [entry for entry, one in names.items() if feature_name(parts[0], one) == _PICTURE]
        if self.pictures:
            channels = {self._store[entry].shape[1] for entry in self.pictures}
            require(
                len(channels) == 1 or len(mean) == len(std) == 1,
                f"data.mean is {list(mean)} and data.std is {list(std)}, but pictures of several columns have "
                f"{sorted(channels)} channels. Give one number in each.",
            )
            spread = 1 if len(channels) > 1 else channels.pop()  # one number for all channels
            wide = [tuple(values) * spread if len(values) == 1 else tuple(values) for values in (mean, std)]
            self._store |= normalisation(*wide)
        if partition is not None:
            self.client_names = []

    def build(self) -> tuple[Store, Parts]:
        if self.partition is None:
            return super().build()
        y = self._store["y"]
        require(
            not y.is_floating_point() and y.dim() == 1,
            "data.partition hands out rows by their labels, but y has no labels. Name the column of owners in "
            "data.client instead.",
        )
        labels = Labels(y.numpy(), np.arange(len(y)), np.arange(0), self.count_classes(self._store))
        return self._store, self.partition.assign(labels, self.seed)

    def rows(self, store: Store, index: Tensor) -> tuple[Any, Tensor]:
        x, y = super().rows(store, index)
        if not self.pictures:
            return x, y
        return in_store({k: scaled(store, v) if k in self.pictures else v for k, v in stored(x).items()}), y

    def known_by(self) -> dict[str, Any]:
        """The arguments, with the arrays themselves in place of the object or the folder."""
        arguments = arguments_of(self)
        dataset = arguments["dataset"]
        where = str(dataset) if isinstance(dataset, str | Path) else type(dataset).__name__
        content = {"source": where, **stored(in_store(self._store)), "y": self._store["y"], "owners": self._owners}
        return arguments | {"dataset": content}


def splits_of(dataset: Any) -> list[Any]:
    """The data set's parts, in their order: one, or the splits of a DatasetDict."""
    if isinstance(dataset, str | Path):
        dataset = read_folder(Path(dataset).expanduser())
    parts = list(dataset.values()) if isinstance(dataset, Mapping) else [dataset]
    for part in parts:
        if not hasattr(part, "column_names") or not hasattr(part, "features") or not hasattr(part, "__len__"):
            raise DataError(
                f"data.dataset is a {type(part).__name__}, but it has to be a Dataset or DatasetDict of the package "
                "datasets, not streamed, or a folder that save_to_disk wrote."
            )
    if not any(len(part) for part in parts):
        raise DataError("data.dataset has no rows. Give one with samples.")
    return parts


def read_folder(path: Path) -> Any:
    """The data set in a folder that save_to_disk wrote."""
    try:
        import datasets  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise DataError(
            f"data.dataset is the folder {path}, and reading it needs the package datasets, which is not installed: "
            "pip install 'fedlit[hf]'."
        ) from error
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # on damaged files the package fails in more ways than it documents
        raise DataError(
            f"data.dataset is {path}, which is not a folder that save_to_disk of the package datasets wrote "
            f"({' '.join(str(error).split())}). Give such a folder, or the object itself."
        ) from error


def named(x: list[str] | dict[str, str]) -> dict[str, str]:
    """Argument of the net -> column."""
    return x if isinstance(x, dict) else {name: name for name in x}


def columns(parts: Sequence[Any], x: str | list[str] | dict[str, str]) -> Any:
    """The column, or a dict of several."""
    return column(parts, x, "x") if isinstance(x, str) else {k: column(parts, v, "x") for k, v in named(x).items()}


def column(parts: Sequence[Any], name: str, option: str) -> NDArray[Any]:
    """All rows of a column, as an array; pictures as bytes (rows, channels, height, width)."""
    arrays = []
    for part in parts:
        if name not in part.column_names:
            raise DataError(
                f"data.{option} is '{name}', but the data set has no such column. {nearest(name, part.column_names)}"
                f"It has {', '.join(part.column_names)}."
            )
        arrays.append(array_of(part, name, option))
    shapes = {values.shape[1:] for values in arrays if len(values)}
    if len(shapes) > 1:
        raise DataError(f"data.{option}: the column '{name}' has rows of the shapes {sorted(shapes)}. Make them alike.")
    return np.concatenate([values for values in arrays if len(values)])


def array_of(part: Any, name: str, option: str) -> NDArray[Any]:
    """A column of one split."""
    if feature_name(part, name) == _PICTURE:
        return stacked([picture(one) for one in part.with_format(None)[:][name]], name, option)
    values = np.asarray(part.with_format("numpy")[:][name])
    if values.dtype.kind == "O" and not isinstance(values[0] if len(values) else "", str):
        values = stacked([np.asarray(one) for one in values], name, option)
    if values.dtype.kind in "OUS" and option != "client":
        how = {
            "x": "Turn text into token ids of one length with dataset.map and a tokenizer.",
            "y": f"Number the classes with dataset.class_encode_column('{name}').",
        }[option]
        raise DataError(f"data.{option}: the column '{name}' holds text, but a net takes numbers. {how}")
    return values


def stacked(rows: Sequence[NDArray[Any]], name: str, option: str) -> NDArray[Any]:
    """Rows of the same shape as one array."""
    shapes = sorted({row.shape for row in rows})
    if len(shapes) > 1:
        raise DataError(
            f"data.{option}: the rows of the column '{name}' have different shapes, such as {shapes[0]} and "
            f"{shapes[-1]}. Bring them to one shape with dataset.map: resize pictures, cut or fill token ids (y = -100 "
            "does not count)."
        )
    return np.stack(rows)


def picture(image: Any) -> NDArray[np.uint8]:
    """A picture as bytes, channels first."""
    grey = image.mode in ("1", "L", "I", "F", "I;16", "LA")
    pixels = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
    return pixels[np.newaxis] if grey else pixels.transpose(2, 0, 1)


def feature_name(part: Any, name: str) -> str:
    """The kind of a column: `Image`, `ClassLabel`, `Value` …"""
    return type(part.features[name]).__name__ if name in part.column_names else ""


def named_classes(parts: Sequence[Any], name: str) -> int | None:
    """The number of classes of a ClassLabel column; None for other columns."""
    counts = {getattr(part.features[name], "num_classes", None) for part in parts if name in part.column_names}
    return next(iter(counts)) if len(counts) == 1 else None
