"""Data sets, each cut into clients; `base.py` holds the contract."""

from fedlit.data.base import ClientData, FederatedDataModule, Store
from fedlit.data.partition.base import Parts
from fedlit.data.synthetic import Synthetic
from fedlit.data.tensor import TensorData

__all__ = ["ClientData", "FederatedDataModule", "Parts", "Store", "Synthetic", "TensorData"]
