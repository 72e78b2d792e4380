"""The papers' networks."""

from fedlit.models.dense import MLP, Softmax
from fedlit.models.lenet import LeNet

__all__ = ["MLP", "LeNet", "Softmax"]
