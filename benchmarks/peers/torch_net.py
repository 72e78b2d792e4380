"""The workload's network in PyTorch, for peers that train with it. Imports nothing of fedlit and of no peer."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """Layers in words, with weights in the order in which they came."""

    def __init__(self, layers: Sequence[str], weights: Sequence[np.ndarray]) -> None:
        super().__init__()
        self.layers = layers
        self.params = nn.ParameterList(torch.from_numpy(value.copy()) for value in weights)

    def forward(self, x: Tensor) -> Tensor:
        """Logits; a layer with weights takes the next two of them."""
        left = iter(self.params)
        for layer in self.layers:
            if layer == "linear":
                x = F.linear(x, next(left), next(left))
            elif layer == "conv":
                x = F.conv2d(x, next(left), next(left))
            elif layer == "pool":
                x = F.max_pool2d(x, 2)
            else:
                x = F.relu(x) if layer == "relu" else x.flatten(1)
        return x
