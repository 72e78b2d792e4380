"""The file of one client: its samples as arrays in an .npz, as `fedlit data export` writes it and a node reads it.

    train/x  train/y        rows to train on
    test/x   test/y         rows on which models are measured; val and adapt likewise, where there are any
    about                   optional: JSON with `classes` and `group`

Several inputs are train/x.input_ids and so on. Samples are stored as the net gets them, and nothing is unpickled.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit.data.base import ClientData, FederatedDataModule, Store
from fedlit.data.newcomers import PARTS
from fedlit.data.partition.base import Parts
from fedlit.data.ragged import Ragged
from fedlit.data.tensor import check_finite, to_tensor
from fedlit.errors import DataError
from fedlit.files import writing
from fedlit.inputs import stored


class ClientFile(FederatedDataModule):
    """The data of one client, from a file.

    Args:
        file: an .npz file with the arrays that are named above.
    """

    def __init__(self, file: str | Path) -> None:
        super().__init__()
        self.file = Path(file)

    def build(self) -> tuple[Store, Parts]:
        """Never called: the file says which rows are for what."""
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Read the file, at the first call only."""
        if self._everyone is not None:
            return
        arrays, about = read_arrays(self.file)
        parts = {part: {name: arrays[f"{part}/{name}"] for name in names_of(arrays, part)} for part in PARTS}
        check_parts(self.file, parts)
        held = {part: entries for part, entries in parts.items() if entries}
        store = {name: torch.cat([entries[name] for entries in held.values()]) for name in held["train"]}
        ends = np.cumsum([0, *(len(parts[part].get("y", ())) for part in PARTS)])
        pieces: dict[str, Any] = {
            part: Ragged.of([np.arange(start, end)])
            for part, start, end in zip(PARTS, ends[:-1], ends[1:], strict=True)
        }
        self._classes = about.get("classes")
        self._everyone = ClientData(store, **pieces, groups=[str(about.get("group", ""))])

    def count_classes(self, store: Store) -> int:
        """As the file says: a client may lack the last class."""
        return super().count_classes(store) if self._classes is None else int(self._classes)


def write_client_file(path: Path, data: FederatedDataModule, client: int) -> None:
    """Write the samples of one client, as its net gets them."""
    arrays: dict[str, np.ndarray] = {}
    for part in PARTS:
        rows = getattr(data.everyone, part)[client]
        if len(rows):
            x, y = data.rows(data.store, rows)
            arrays |= {f"{part}/{name}": value.numpy() for name, value in {**stored(x), "y": y}.items()}
    about = {"classes": data.num_classes, "group": data.groups[client]}
    with writing(path) as draft, draft.open("wb") as file:
        np.savez(file, about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8), **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arrays of a file, and what it says about itself; DataError if it is no such file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise DataError(
            f"There is no file {path}. Make it with fedlit data export, or from your own arrays."
        ) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Give an .npz file with the arrays train/x, train/y, test/x and test/y, "
            "as numpy.savez writes it; objects are not allowed in it."
        ) from error
    try:
        about = json.loads(arrays.pop("about", np.frombuffer(b"{}", dtype=np.uint8)).tobytes())
    except ValueError as error:
        raise DataError(f"{path}: 'about' is not JSON ({error}). Leave it out, or export the file again.") from error
    return {name: to_tensor(array) for name, array in arrays.items()}, about


def names_of(arrays: dict[str, Tensor], part: str) -> list[str]:
    """`x`, or `x.name` of several inputs, and `y`, as far as a part has them."""
    return [name.partition("/")[2] for name in arrays if name.partition("/")[0] == part]


def check_parts(path: Path, parts: dict[str, dict[str, Tensor]]) -> None:
    """DataError if a part lacks an array, or arrays do not fit together."""
    first = parts["train"]
    if "y" not in first or len(first) < 2:
        raise DataError(f"{path} has no arrays train/x and train/y, so there is nothing to train on. Add them.")
    for part, entries in parts.items():
        if entries and entries.keys() != first.keys():
            raise DataError(
                f"{path}: {part} has {', '.join(entries)}, but train has {', '.join(first)}. Give the same."
            )
        for name, values in entries.items():
            if values.shape[1:] != first[name].shape[1:] or values.dtype != first[name].dtype:
                raise DataError(
                    f"{path}: {part}/{name} has shape {tuple(values.shape)} and type {values.dtype}, but train/{name} "
                    f"has {tuple(first[name].shape)} and {first[name].dtype}. Give both the same form."
                )
            if len(values) != len(entries["y"]):
                raise DataError(f"{path}: {part}/{name} has {len(values)} rows, but {part}/y has {len(entries['y'])}.")
            check_finite(f"{path}: {part}/{name}", values)
