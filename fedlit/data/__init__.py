"""Data sets, each cut into clients; `base.py` holds the contract.

Nothing here knows a model or a round.
"""

from fedlit.data.base import ClientData, FederatedDataModule, Store
from fedlit.data.corruption import Corruption, Imbalance, LabelFlip
from fedlit.data.digits import Digits
from fedlit.data.femnist import FEMNIST
from fedlit.data.generated import Generated
from fedlit.data.huggingface import HuggingFaceData
from fedlit.data.image_datasets import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST, Fresh
from fedlit.data.image_folders import ImageFolders
from fedlit.data.office import OfficeCaltech10
from fedlit.data.partition.base import Parts
from fedlit.data.shakespeare import Shakespeare
from fedlit.data.synthetic import Synthetic
from fedlit.data.tensor import TensorData

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "EMNIST",
    "FEMNIST",
    "MNIST",
    "ClientData",
    "Corruption",
    "Digits",
    "FashionMNIST",
    "FederatedDataModule",
    "Fresh",
    "HuggingFaceData",
    "ImageFolders",
    "Imbalance",
    "LabelFlip",
    "OfficeCaltech10",
    "Parts",
    "Shakespeare",
    "Store",
    "Generated",
    "Synthetic",
    "TensorData",
]
