"""Digits of up to five origins, as 28 x 28 in colour: one client per origin, cut as in table 7 of Exp-α.

The official training and test part of each set are merged, and 20 % of them, rounded up, become its test. Some of the
others become training and validation samples; the rest is not used.

    expalpha    892 to train, 595 to validate; the test is drawn from all pictures alike
    fedbn       743 to train, none to validate; the test has the same share of every digit (to one picture)

The numbers come from FedBN's data_preprocess.py: the smallest set, USPS, has 7,438 pictures beside its test, and FedBN
trains on a tenth of that, 743, in every set. Exp-α's 892 + 595 are two such tenths, cut 60 to 40.
Readings: Exp-α does not say how its pictures were drawn. We draw by our own seed: not the pictures of either paper.

Li et al., FedBN (2021), and table 7 of Exp-α. fedlit/data/files/digits.py says which files are read, and how.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedlit import keys
from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.domain_split import Cut, one_client_each, rounded_up, rows_of_each
from fedlit.data.files import Labels
from fedlit.data.files.digits import DOMAINS, read_digits
from fedlit.data.mapped_arrays import shared
from fedlit.data.normalise import normalisation, normalised
from fedlit.data.partition.base import Parts, RowNumbers
from fedlit.errors import DataError, nearest, require
from fedlit.files import data_root
from fedlit.keys import Purpose

HALF = (0.5, 0.5, 0.5)  # FedBN's mean and deviation of each channel


class Digits(FederatedDataModule):
    """MNIST, SVHN, USPS, SynthDigits, MNIST-M: 3x28x28, one client each. Defaults: the sizes of Exp-α's table 7.

    Args:
        root: folder of the data sets, laid out as docs/data.md says; FEDLIT_DATA or ./data when not given
        domains: origins of the digits, clients in this order; any of mnist, svhn, usps, synthdigits, mnistm
        protocol: whose cut: Exp-α's, or FedBN's, which has fewer training samples, no validation and a stratified test
        train_samples: training samples of each domain; 892 for expalpha and 743 for fedbn when not given
        val_samples: validation samples of each domain; 595 for expalpha and 0 for fedbn when not given
        test_fraction: share of each domain that is kept for testing, rounded up
        common: options of every data set (FederatedDataModule): limit, seed ...; the split is always shuffled
    """

    def __init__(
        self,
        root: str | None = None,
        *,
        domains: Sequence[str] = ("mnist", "mnistm", "usps"),
        protocol: Literal["expalpha", "fedbn"] = "expalpha",
        train_samples: int | None = None,
        val_samples: int | None = None,
        test_fraction: float = 0.2,
        **common: Any,
    ) -> None:
        super().__init__(test_fraction=test_fraction, val_fraction=0.0, split="shuffled", **common)
        require(
            0 < len(domains) == len(set(domains)),
            f"data.domains is {list(domains)}. Name each domain once, and at least one of {', '.join(DOMAINS)}.",
        )
        require(
            protocol in PROTOCOLS,
            f"data.protocol is '{protocol}'. {nearest(protocol, PROTOCOLS)}Choose from {', '.join(PROTOCOLS)}.",
        )
        defaults = PROTOCOLS[protocol]
        self.root = data_root(root)
        self.domains = domains
        self.draw_test = defaults.draw_test
        self.train_samples = defaults.train_samples if train_samples is None else train_samples
        self.val_samples = defaults.val_samples if val_samples is None else val_samples
        require(self.train_samples >= 1, f"data.train_samples is {train_samples}. Set it to 1 or more.")
        require(self.val_samples >= 0, f"data.val_samples is {val_samples}. Set it to 0 or more.")

    def build(self) -> tuple[Store, Parts]:
        sets = read_digits(self.root, self.domains)
        x = np.concatenate([pictures.x for pictures in sets.values()])
        y = np.concatenate([pictures.y for pictures in sets.values()])
        rows = rows_of_each(len(pictures.y) for pictures in sets.values())
        cuts = {name: self._cut(name, rows_of_set, y) for name, rows_of_set in zip(sets, rows, strict=True)}
        store = {"x": torch.from_numpy(shared(x)), "y": torch.from_numpy(y), **normalisation(HALF, HALF)}
        return store, one_client_each(cuts)

    def _cut(self, name: str, rows: RowNumbers, y: Labels) -> Cut:
        """Test, training and validation rows of one domain; they do not depend on the other domains."""
        generator = keys.generator(self.seed, Purpose.DATA, client=list(DOMAINS).index(name))
        count = rounded_up(len(rows), self.shares.test)
        needed = self.train_samples + self.val_samples
        if len(rows) - count < needed:
            raise DataError(
                f"The digits '{name}' have {len(rows) - count} samples beside their {count} for testing, but "
                f"data.train_samples ({self.train_samples}) and data.val_samples ({self.val_samples}) "
                f"ask for {needed}. Lower these or data.test_fraction, or leave the domain out of data.domains."
            )
        test, rest = self.draw_test(rows, y, count, generator)
        return Cut(train=rest[: self.train_samples], val=rest[self.train_samples : needed], test=test)

    def rows(self, store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
        return normalised(store, index), self.labels(store, index)

    def count_classes(self, store: Store) -> int:
        return 10


Drawn = tuple[RowNumbers, RowNumbers]  # the test, and the other rows shuffled


def from_all(rows: RowNumbers, y: Labels, count: int, generator: np.random.Generator) -> Drawn:
    """Any `count` of the rows."""
    shuffled = generator.permutation(rows)
    return shuffled[:count], shuffled[count:]


def from_each_label(rows: RowNumbers, y: Labels, count: int, generator: np.random.Generator) -> Drawn:
    """`count` of the rows, with the same share of every label up to one row."""
    shuffled = generator.permutation(rows)
    by_label = shuffled[np.argsort(y[shuffled], kind="stable")]
    chosen = np.arange(count) * len(rows) // max(count, 1)  # evenly spread, and so over the labels
    return by_label[chosen], generator.permutation(np.delete(by_label, chosen))


@dataclass(frozen=True)
class Protocol:
    """How a paper cuts each domain."""

    train_samples: int
    val_samples: int
    draw_test: Callable[[RowNumbers, Labels, int, np.random.Generator], Drawn]


PROTOCOLS = {"expalpha": Protocol(892, 595, from_all), "fedbn": Protocol(743, 0, from_each_label)}
