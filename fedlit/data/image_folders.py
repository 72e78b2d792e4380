"""Pictures in folders, ROOT/<domain>/<class>/*.png or *.jpg: one client per domain, cut as in Exp-α's tables 5 and 6.

Office-Caltech10 and DomainNet as pictures, or a user's own. All are kept in memory as bytes: 3 size² for each picture.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit import keys
from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.domain_split import cut, one_client_each
from fedlit.data.files.folders import read_folders
from fedlit.data.mapped_arrays import shared
from fedlit.data.normalise import normalisation, normalised
from fedlit.data.partition.base import Parts
from fedlit.errors import DataError, nearest, require
from fedlit.keys import Purpose

HALF = (0.5, 0.5, 0.5)


class ImageFolders(FederatedDataModule):
    """Pictures below <domain>/<class>, one client per domain. Defaults: the shares of Exp-α's tables 5 and 6.

    `class_names` has the names of the classes, in the order of their numbers; it is filled by `setup`.

    Args:
        root: folder that holds <domain>/<class>/*.png or *.jpg
        domains: names of the domains to use, in this order; all, sorted, when not given
        size: height and width in pixels to which every picture is resized
        mean: mean of each channel that is subtracted, of values from 0 to 1
        std: deviation of each channel that is divided by
        test_fraction: share of each domain that is kept for testing, rounded up
        val_fraction: share of the remaining samples that is kept for validation, rounded up
        common: options of every data set (FederatedDataModule): limit, seed ...; the split is always shuffled
    """

    def __init__(
        self,
        root: str,
        *,
        domains: Sequence[str] | None = None,
        size: int = 64,
        mean: Sequence[float] = HALF,
        std: Sequence[float] = HALF,
        test_fraction: float = 0.2,
        val_fraction: float = 0.3,
        **common: Any,
    ) -> None:
        super().__init__(test_fraction=test_fraction, val_fraction=val_fraction, split="shuffled", **common)
        require(
            domains is None or 0 < len(domains) == len(set(domains)),
            f"data.domains is {domains}. Name each domain once, and at least one, or leave it out for all.",
        )
        require(len(mean) == 3, f"data.mean is {list(mean)}. Give three numbers in mean and std: red, green, blue.")
        self.root = Path(root).expanduser()
        self.domains = domains
        self.size = size
        self.normalisation = normalisation(mean, std)
        self.class_names: list[str] = []

    def build(self) -> tuple[Store, Parts]:
        pictures = read_folders(self.root, self.size)
        self.class_names = pictures.classes
        numbers = {name: self._number(name, pictures.domains) for name in self.domains or pictures.domains}
        used = np.flatnonzero(np.isin(pictures.domain, list(numbers.values())))
        domain = pictures.domain[used]
        cuts = {
            name: cut(
                np.flatnonzero(domain == number),
                self.shares,
                keys.generator(self.seed, Purpose.DATA, client=number),
            )
            for name, number in numbers.items()
        }
        x = pictures.x if len(used) == len(pictures.x) else pictures.x[used]
        store = {"x": torch.from_numpy(shared(x)), "y": torch.from_numpy(pictures.y[used]), **self.normalisation}
        return store, one_client_each(cuts)

    def _number(self, name: str, known: list[str]) -> int:
        if name not in known:
            raise DataError(
                f"data.domains has '{name}', which is not a folder of {self.root}. {nearest(name, known)}"
                f"Choose from {', '.join(known)}."
            )
        return known.index(name)

    def rows(self, store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
        return normalised(store, index), self.labels(store, index)

    def count_classes(self, store: Store) -> int:
        return len(self.class_names)
