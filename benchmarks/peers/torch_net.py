"""The workload's network in PyTorch and its local training by hand, for peers that have none of their own.

Imports nothing of fedlit and of no peer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """Layers in words, with weights in the order in which they came."""

    def __init__(self, layers: Sequence[str], weights: Sequence[np.ndarray]) -> None:
        super().__init__()
        self.layers = layers
        self.params = nn.ParameterList(laid_out(torch.from_numpy(value.copy())) for value in weights)

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


def laid_out(values: Tensor) -> Tensor:
    """Pictures and filters with their channels innermost, as convolutions read them (W3 is 1.1 times as fast)."""
    return values.contiguous(memory_format=torch.channels_last) if values.ndim == 4 else values


def train(net: Net, work: Any, data: tuple[Tensor, Tensor], rows: Tensor) -> None:
    """A client's local training as the hand-written loop does it: in place, each epoch shuffled by one gather."""
    optimizer = torch.optim.SGD(net.parameters(), lr=work.lr)
    for _ in range(work.local_epochs):
        shuffled = rows[torch.randperm(len(rows))]
        for x, y in zip(*(torch.split(values[shuffled], work.batch_size) for values in data), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]  # torch's is untyped
            optimizer.step()
