"""MNIST, Fashion-MNIST, EMNIST, CIFAR-10 and CIFAR-100: once in memory as bytes, divided by a partition recipe.

Samples are normalised, and augmented where asked, batch by batch inside the engine's program. A corruption recipe may
then change what the clients train on; with `fresh`, every round draws new clients from the training pictures.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedlit import keys
from fedlit.data.base import ClientData, FederatedDataModule, Store
from fedlit.data.corruption import Corrupted, Corruption, Pool
from fedlit.data.files import Pictures, Published
from fedlit.data.files.cifar import CIFAR10 as CIFAR10_FILES
from fedlit.data.files.cifar import CIFAR100 as CIFAR100_FILES
from fedlit.data.files.cifar import read_cifar10, read_cifar100
from fedlit.data.files.emnist import KINDS, Kind, read_emnist
from fedlit.data.files.fetch import fetch
from fedlit.data.files.mnist import FASHION_MNIST as FASHION_MNIST_FILES
from fedlit.data.files.mnist import MNIST as MNIST_FILES
from fedlit.data.files.mnist import read_fashion_mnist, read_mnist
from fedlit.data.mapped_arrays import shared
from fedlit.data.newcomers import check_not_fresh
from fedlit.data.normalise import normalisation, pixel_normalisation, scaled
from fedlit.data.partition.base import Labels, Partition, Parts, RowNumbers
from fedlit.data.partition.power_law import PowerLaw
from fedlit.data.ragged import Ragged
from fedlit.data.row_encoding import Augmentation, RowCode, viewed
from fedlit.data.split import Splits, share
from fedlit.errors import DataError, nearest, require
from fedlit.files import data_root
from fedlit.keys import Purpose


@dataclass(frozen=True)
class Fresh:
    """Clients that are drawn anew every round: the population is a distribution, not a list.

    Args:
        clients: clients of each round; trainer.clients_per_round must be the same
        samples: training samples of each of them
    """

    clients: int = 10
    samples: int = 1280

    def __post_init__(self) -> None:
        require(self.clients >= 1, f"data.fresh.clients is {self.clients}. Set it to 1 or more.")
        require(self.samples >= 1, f"data.fresh.samples is {self.samples}. Set it to 1 or more.")


class PictureData(FederatedDataModule):
    """Base of the sets of small labelled pictures.

    Args:
        root: folder of the data sets, laid out as by torchvision; FEDLIT_DATA or ./data when not given
        partition: recipe that hands out the pictures; FedBC's PowerLaw when not given
        corruption: recipe that spoils the clients' training data; none by default
        fresh: draw the clients anew every round instead of partitioning once
        global_test: what global/acc is measured on: the clients' tests, or the official test pictures, kept apart
        augment: what training pictures go through: a random crop after padding by 4, and a random mirroring
        normalise: what a mean and a deviation are taken of: each channel, or each pixel over all pictures (pFedMe)
        mean: mean of each channel that is subtracted; the set's usual one when not given
        std: deviation of each channel that is divided by; the set's usual one when not given
        common: options of every data set (FederatedDataModule): test_fraction, val_fraction, seed ...
    """

    published: Published
    usual_mean: ClassVar[tuple[float, ...]]
    usual_std: ClassVar[tuple[float, ...]]
    classes: int = 10

    def __init__(
        self,
        root: str | None = None,
        partition: Partition | None = None,
        corruption: Corruption | None = None,
        fresh: Fresh | None = None,
        global_test: Literal["clients", "official"] = "clients",
        augment: Augmentation = "none",
        normalise: Literal["channel", "pixel"] = "channel",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        require(
            fresh is None or partition is None,
            "data.fresh and data.partition are both given, but fresh clients are drawn, not partitioned. "
            "Leave one of them out.",
        )
        require(
            normalise == "channel" or (mean is None and std is None),
            "data.normalise is pixel, which gives every pixel a mean and a deviation of its own, but data.mean or "
            "data.std is given too. Leave them out, or set data.normalise to channel.",
        )
        self.root = data_root(root)
        self.partition = partition or PowerLaw()
        self.corruption = corruption
        self.fresh = fresh
        self.is_fresh = fresh is not None
        check_not_fresh(self)
        self.keeps_official_test = global_test == "official" or self.is_fresh
        self.augment = augment
        self.normalises_pixels = normalise == "pixel"
        self.channel_normalisation = normalisation(mean or self.usual_mean, std or self.usual_std)
        if augment != "none":
            self.vary = self._vary

    # ---- the pictures ----------------------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Download the files where they are missing and the machine can."""
        if self.published.layout.missing(self.root):
            fetch(self.published.layout, self.root)

    @abstractmethod
    def read(self, root: Path) -> Pictures:
        """The set as published, verified."""

    @cached_property
    def pictures(self) -> Pictures:
        """The set as published, read on first use."""
        self.prepare_data()
        published = self.read(self.root)
        return replace(published, x=shared(published.x))

    @cached_property
    def code(self) -> RowCode:
        """The meaning of row numbers."""
        return RowCode(len(self.pictures.y), self.classes)

    def build_store(self) -> Store:
        """Pictures as bytes, labels, and the numbers to normalise with."""
        normal = pixel_normalisation(self.pictures.x) if self.normalises_pixels else self.channel_normalisation
        return {"x": torch.from_numpy(self.pictures.x), "y": torch.from_numpy(self.pictures.y), **normal}

    def rows(self, store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
        """Gather, augment and normalise pictures."""
        x = store["x"].index_select(0, self.code.picture(index))
        if self.augment != "none":
            x = viewed(x, self.code.view(index))
        return scaled(store, x), self.labels(store, index)

    def plain_rows(self, store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
        """Gather and normalise without augmentation, which would take longer than LeNet's forward pass."""
        x = store["x"].index_select(0, self.code.picture(index))
        return scaled(store, x), self.labels(store, index)

    def labels(self, store: Store, index: Tensor) -> Tensor:
        return self.code.label(index, store["y"].index_select(0, self.code.picture(index)))

    def count_classes(self, store: Store) -> int:
        return self.classes

    def _vary(self, rows: RowNumbers, generator: np.random.Generator) -> RowNumbers:
        return self.code.varied(rows, generator, flip=self.augment == "crop_flip")

    # ---- a list of clients -----------------------------------------------------------------------------------------

    def build(self) -> tuple[Store, Parts]:
        pictures = self.pictures
        labels = Labels(
            pictures.y, pictures.official_train, pictures.official_test, self.classes, self.keeps_official_test
        )
        return self.build_store(), self.partition.assign(labels, self.seed)

    def adjusted(self, splits: Splits) -> Splits:
        if self.corruption is None:
            return splits
        train = (rows.numpy() for rows in splits.train)
        drawn = [self._corrupted(rows, len(rows), round=0, position=client) for client, rows in enumerate(train)]
        return replace(splits, train=Ragged.of(one.rows for one in drawn), groups=[one.group for one in drawn])

    def _corrupted(self, rows: RowNumbers, size: int, *, round: int, position: int) -> Corrupted:
        generator = keys.generator(self.seed, Purpose.CORRUPT, round=round, client=position)
        if self.corruption is None:
            return Corrupted(generator.choice(rows, size, replace=size > len(rows)), "")
        return self.corruption.draw(Pool(rows, self.pictures.y, self.code), size, position, generator)

    @cached_property
    def global_test(self) -> Tensor:
        if not self.keeps_official_test:
            return super().global_test
        return torch.from_numpy(self.pictures.official_test[: self.limit])

    # ---- or clients drawn every round ------------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        if self.fresh is None or self._everyone is not None:
            super().setup(stage)
            return
        nobody = Ragged.empty(0)
        self._everyone = ClientData(self.build_store(), nobody, nobody, nobody, nobody, groups=[])
        self._everyone = self.load(0, range(self.fresh.clients))

    @cached_property
    def _pool_and_val(self) -> tuple[RowNumbers, RowNumbers]:
        """The official training pictures: those that fresh clients draw from, and those for validation."""
        rows = self.pictures.official_train
        shuffled = keys.generator(self.seed, Purpose.SPLIT).permutation(rows)
        val, pool = np.split(shuffled, [share(len(rows), self.shares.val, least=0)])
        return pool, val

    @cached_property
    def global_val(self) -> Tensor:
        if self.fresh is None:
            return super().global_val
        return torch.from_numpy(np.sort(self._pool_and_val[1][: self.limit]))

    def client_ids(self, round: int) -> Sequence[int]:
        first = round * self.num_clients if self.is_fresh else 0
        return range(first, first + self.num_clients)

    def load(self, round: int, ids: Sequence[int]) -> ClientData:
        if self.fresh is None:
            return super().load(round, ids)
        unknown = [k for k in ids if not 0 <= k < self.fresh.clients]
        if unknown:
            raise DataError(f"Client {unknown[0]} does not exist. A round has clients 0 to {self.fresh.clients - 1}.")
        drawn = [self._drawn(round, k) for k in ids]
        nothing = Ragged.empty(len(ids))
        return ClientData(
            self.store,
            train=Ragged.of(client.rows for client in drawn),
            val=nothing,
            test=nothing,
            adapt=nothing,
            groups=[client.group for client in drawn],
            vary=self.vary,
            largest=self._fresh_samples,
        )

    @property
    def _fresh_samples(self) -> int:
        assert self.fresh is not None
        return self.fresh.samples if self.limit is None else min(self.limit, self.fresh.samples)

    def _drawn(self, round: int, k: int) -> Corrupted:
        return self._corrupted(self._pool_and_val[0], self._fresh_samples, round=round, position=k)


class MNIST(PictureData):
    """MNIST: 70,000 handwritten digits, 1x28x28."""

    published = MNIST_FILES
    usual_mean, usual_std = (0.1307,), (0.3081,)

    def read(self, root: Path) -> Pictures:
        return read_mnist(root)


class FashionMNIST(PictureData):
    """Fashion-MNIST: 70,000 articles of clothing, 1x28x28."""

    published = FASHION_MNIST_FILES
    usual_mean, usual_std = (0.2860,), (0.3530,)

    def read(self, root: Path) -> Pictures:
        return read_fashion_mnist(root)


class CIFAR10(PictureData):
    """CIFAR-10: 60,000 photographs in 10 classes, 3x32x32."""

    published = CIFAR10_FILES
    usual_mean, usual_std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

    def read(self, root: Path) -> Pictures:
        return read_cifar10(root)


class CIFAR100(PictureData):
    """CIFAR-100: 60,000 photographs in 100 classes, 3x32x32."""

    published = CIFAR100_FILES
    usual_mean, usual_std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    classes = 100

    def read(self, root: Path) -> Pictures:
        return read_cifar100(root)


class EMNIST(PictureData):
    """EMNIST: handwritten digits and letters, 1x28x28, upright.

    Args:
        kind: which of its six sets: balanced (47 classes), byclass (62), bymerge (47), letters (26), digits, mnist
        options: of the other picture sets: root, partition, global_test, augment ..., and of every data set
    """

    usual_mean, usual_std = (0.1736,), (0.3317,)

    def __init__(self, kind: Kind = "balanced", **options: Any) -> None:
        super().__init__(**options)
        require(kind in KINDS, f"data.kind is {kind!r}. {nearest(kind, KINDS)}Known: {', '.join(KINDS)}.")
        self.kind = kind
        self.classes = KINDS[kind].classes
        self.published = KINDS[kind].published

    def read(self, root: Path) -> Pictures:
        return read_emnist(root, self.kind)
