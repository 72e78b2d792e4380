"""Tiny federated problems and one way to run them, for tests of algorithms and engines."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fedlit import Client, FederatedTrainer, Softmax, TensorData

FEATURES, CLASSES = 5, 3
SIZES = (7, 12, 16, 23)
"""Samples of each client: with batches of 4, some last batches are ragged."""


def tiny_data(
    sizes: tuple[int, ...] = SIZES, shape: tuple[int, ...] = (FEATURES,), val_fraction: float = 0, newcomers: float = 0
) -> TensorData:
    """Clients of these sizes, in float64; a quarter of each is for testing, none for validation unless given."""
    rng = np.random.default_rng(7)
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(sum(sizes), *shape)) + client.reshape(-1, *[1] * len(shape)) / 2
    y = rng.integers(CLASSES, size=sum(sizes))
    shares = {"test_fraction": 0.25, "val_fraction": val_fraction, "newcomers": newcomers}
    return TensorData(x, y, client, num_classes=CLASSES, **shares)


def tiny_net(seed: int = 3) -> Softmax:
    """Softmax regression in float64 with weights that are not small."""
    torch.manual_seed(seed)
    return Softmax(FEATURES, CLASSES).double()


def run(client: Client, data: TensorData | None = None, **trainer: Any) -> FederatedTrainer:
    """Train in float64 without a progress bar; three of four clients a round and five rounds unless given."""
    options: dict[str, Any] = {"rounds": 5, "clients_per_round": 3, "engine": "sequential", "precision": "64-true"}
    options["initial_weights"] = "net"
    fitted = FederatedTrainer(**(options | trainer), enable_progress_bar=False)
    fitted.fit(client, datamodule=data or tiny_data())
    return fitted


def weights_of(trainer: FederatedTrainer) -> dict[str, Tensor]:
    """z at the end of a run."""
    return {name: value.detach().clone() for name, value in trainer.loop.server.params.items()}


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest difference of two models in any parameter."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def kept_rows(trainer: FederatedTrainer) -> dict[str, Tensor]:
    """Everything that is kept for clients."""
    rows: dict[str, Tensor] = trainer.loop.states.state_dict()["rows"]
    return rows


class TinyConv(nn.Module):
    """A small convolutional net for 8x8 pictures, with pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.head = nn.Linear(27, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        pooled = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        logits: Tensor = self.head(pooled.flatten(1))
        return logits


def traced_program(program: Callable[..., Any], args: Sequence[Tensor], **_: Any) -> Callable[..., Any]:
    """In place of `compile_program`: what the compiler is given, run as it stands. The C++ takes ten seconds more."""
    with torch.no_grad():
        return make_fx(program, tracing_mode="fake")(*args)
