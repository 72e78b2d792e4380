"""Office-Caltech10 as SURF features: one client per domain, cut as in table 5 of Exp-α.

x is a histogram of 800 visual words, standardised over all samples of its domain, those for testing included, as usual
with these features (fedlit/data/files/office.py). Exp-α trains a ResNet-18 on the pictures; `ImageFolders` reads those.
"""

from typing import Any

import numpy as np
import torch

from fedlit import keys
from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.domain_split import cut, one_client_each, rows_of_each
from fedlit.data.files.office import CLASSES, read_office
from fedlit.data.partition.base import Parts
from fedlit.files import data_root
from fedlit.keys import Purpose


class OfficeCaltech10(FederatedDataModule):
    """Office-Caltech10: amazon, caltech, dslr, webcam, 800 SURF features. Defaults: the sizes of Exp-α's table 5.

    Args:
        root: folder of the data sets, which has office/office_caltech10_surf.npz; FEDLIT_DATA or ./data when not given
        test_fraction: share of each domain that is kept for testing, rounded up
        val_fraction: share of the remaining samples that is kept for validation, rounded up
        common: options of every data set (FederatedDataModule): limit, seed ...; the split is always shuffled
    """

    def __init__(
        self,
        root: str | None = None,
        *,
        test_fraction: float = 0.2,
        val_fraction: float = 0.3,
        **common: Any,
    ) -> None:
        super().__init__(test_fraction=test_fraction, val_fraction=val_fraction, split="shuffled", **common)
        self.root = data_root(root)

    def build(self) -> tuple[Store, Parts]:
        domains = read_office(self.root)
        x = np.concatenate([features.x for features in domains.values()])
        y = np.concatenate([features.y for features in domains.values()])
        rows = rows_of_each(len(features.y) for features in domains.values())
        cuts = {
            name: cut(rows_of_domain, self.shares, keys.generator(self.seed, Purpose.DATA, client=number))
            for number, (name, rows_of_domain) in enumerate(zip(domains, rows, strict=True))
        }
        return {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, one_client_each(cuts)

    def count_classes(self, store: Store) -> int:
        return len(CLASSES)
