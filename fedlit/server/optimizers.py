"""Server optimisers: what turns the pseudo-gradient into the next z. SGD with rate 1 is plain averaging."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from fedlit.errors import ConfigError, nearest, require


class ServerOptimizer:
    """Base of the server optimisers: options that build a real torch optimiser over z."""

    def build(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser."""
        raise NotImplementedError


@dataclass
class SGD(ServerOptimizer):
    """z <- z - lr * pseudo_gradient; rate 1 is plain averaging.

    Args:
        lr: η_s: server learning rate.
    """

    lr: float = 1.0

    def __post_init__(self) -> None:
        require(self.lr > 0, f"The server optimiser's lr is {self.lr}; it must be above 0 (1 is plain averaging).")

    def build(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch's SGD."""
        return torch.optim.SGD(params, lr=self.lr)


_BY_NAME: dict[str, type[ServerOptimizer]] = {"SGD": SGD}


def find_server_optimizer(optimizer: str | ServerOptimizer) -> ServerOptimizer:
    """A server optimiser from its name in configs, or itself."""
    if isinstance(optimizer, ServerOptimizer):
        return optimizer
    if optimizer not in _BY_NAME:
        raise ConfigError(
            f"trainer.server_optimizer is '{optimizer}', which is none. {nearest(optimizer, _BY_NAME)}"
            f"Known: {', '.join(_BY_NAME)}."
        )
    return _BY_NAME[optimizer]()
