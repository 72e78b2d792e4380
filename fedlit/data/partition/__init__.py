"""Partition recipes: labels in, the rows of each client out; `base.py` holds the contract."""

from fedlit.data.partition.base import Labels, Partition, Parts, RowNumbers, tail_split
from fedlit.data.partition.classes_per_client import ClassesPerClient
from fedlit.data.partition.dirichlet import Dirichlet
from fedlit.data.partition.diversity import Diversity
from fedlit.data.partition.iid import IID
from fedlit.data.partition.natural import Natural
from fedlit.data.partition.power_law import PowerLaw
from fedlit.data.partition.shards import Shards

__all__ = [
    "IID",
    "ClassesPerClient",
    "Dirichlet",
    "Diversity",
    "Labels",
    "Natural",
    "Partition",
    "Parts",
    "PowerLaw",
    "RowNumbers",
    "Shards",
    "tail_split",
]
