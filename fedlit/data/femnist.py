"""FEMNIST: a client is a writer of digits and letters, from LEAF's files.

Caldas et al., LEAF: a benchmark for federated settings (2018). LEAF's own split into training and test samples is not
kept: `test_fraction` of each writer's samples is drawn, as in every data set here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit import keys
from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.files.femnist import CLASSES, LAYOUT, read_femnist
from fedlit.data.mapped_arrays import shared
from fedlit.data.normalise import normalisation, normalised
from fedlit.data.partition.base import Parts
from fedlit.errors import DataError, require
from fedlit.files import data_root
from fedlit.keys import Purpose


class FEMNIST(FederatedDataModule):
    """FEMNIST by writer: digits and letters in 62 classes, 1x28x28, dark on light.

    `client_names` has the writer of each client in alphabetical order; it is filled by `setup`.

    Args:
        root: folder of the data sets, which has LEAF's files in femnist; FEDLIT_DATA or ./data when not given
        num_clients: N: number of writers, drawn by the seed; all that have enough samples when not given
        min_samples: fewest samples of a writer that may be drawn
        mean: mean that is subtracted
        std: deviation that is divided by
        common: options of every data set (FederatedDataModule): test_fraction, val_fraction, split, seed ...
    """

    def __init__(
        self,
        root: str | None = None,
        *,
        num_clients: int | None = None,
        min_samples: int = 20,
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
        **common: Any,
    ) -> None:
        super().__init__(**common)
        require(
            num_clients is None or num_clients >= 1,
            f"data.num_clients is {num_clients}. Set it to 1 or more, or to null for all writers.",
        )
        require(min_samples >= 1, f"data.min_samples is {min_samples}. Set it to 1 or more.")
        self.root = data_root(root)
        self.writers_wanted = num_clients  # the property `num_clients` counts the clients that were built
        self.min_samples = min_samples
        self.normalisation = normalisation(mean, std)
        self.client_names: list[str] = []

    def build(self) -> tuple[Store, Parts]:
        read = read_femnist(self.root)
        enough = [k for k, rows in enumerate(read.rows) if len(rows) >= self.min_samples]
        wanted = len(enough) if self.writers_wanted is None else self.writers_wanted
        if not 1 <= wanted <= len(enough):
            raise DataError(
                f"data.num_clients is {'null (all)' if self.writers_wanted is None else wanted}, but {len(enough)} of "
                f"the {len(read.writers)} writers in {self.root / LAYOUT.folder} have {self.min_samples} samples or "
                "more. Lower data.num_clients or data.min_samples."
            )
        drawn = np.sort(keys.generator(self.seed, Purpose.DATA).choice(len(enough), wanted, replace=False))
        self.client_names = [read.writers[enough[k]] for k in drawn]
        store = {"x": torch.from_numpy(shared(read.x)), "y": torch.from_numpy(read.y), **self.normalisation}
        return store, Parts([read.rows[enough[k]] for k in drawn])

    def rows(self, store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised pictures and their classes."""
        return normalised(store, index), self.labels(store, index)

    def count_classes(self, store: Store) -> int:
        return CLASSES
