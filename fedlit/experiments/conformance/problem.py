"""The tiny problem on which algorithms are checked: four clients with ragged batches, in float64."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import Selection
from fedlit.data.tensor import TensorData
from fedlit.errors import ConfigError
from fedlit.models import Softmax
from fedlit.server.sampling import UniformSampler
from fedlit.server.server import Server
from fedlit.trainer.trainer import FederatedTrainer

FEATURES, CLASSES, SIZES, ROUNDS = 5, 3, (9, 14, 19, 26), 4
SIDES = (8, 16, 28, 32, 64, 224)
"""Sides of pictures that are tried, the smallest first."""
LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 4, "local_epochs": 2}
"""Local options of every check: the last batch of each client is ragged."""


def softmax() -> Softmax:
    """Softmax regression, unless another net is asked for."""
    return Softmax(FEATURES, CLASSES)


class Normed(nn.Module):
    """A net with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(torch.tanh(self.norm(self.body(x))))
        return logits


@dataclass(frozen=True)
class Problem:
    """A net, and four clients of different sizes and distributions whose samples it takes."""

    make_net: Callable[[], nn.Module] = softmax
    local: dict[str, Any] = field(default_factory=lambda: dict(LOCAL))
    """Local options: of what is checked, and of the plain averaging that it must differ from."""

    def net(self) -> nn.Module:
        """The net with weights that are not small, the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return self.make_net().double()

    def data(self, newcomers: float = 0.0) -> TensorData:
        """Samples of the shape that the net takes, in as many classes as it tells apart."""
        shape, classes = self._form
        rng = np.random.default_rng(5)
        client = np.repeat(np.arange(len(SIZES)), SIZES)
        x = rng.normal(size=(len(client), *shape)) + client.reshape(-1, *[1] * len(shape)) / 2
        y = rng.integers(classes, size=len(client))
        return TensorData(x, y, client, num_classes=classes, test_fraction=0.25, newcomers=newcomers)

    @cached_property
    def _form(self) -> tuple[tuple[int, ...], int]:
        """The shape of a sample, and the number of classes."""
        net = self.net().eval()
        for shape in accepted_shapes(net):
            try:
                with torch.no_grad():
                    return shape, int(net(torch.zeros(2, *shape, dtype=torch.float64)).shape[-1])
            except RuntimeError:  # another size of picture
                continue
        raise ConfigError(
            f"fedlit conformance found no samples that {type(net).__name__} takes. Its first layer with weights must "
            f"be nn.Linear, nn.Conv1d or nn.Conv2d (sides {', '.join(map(str, SIDES))}), and it must score classes."
        )


def accepted_shapes(net: nn.Module) -> Iterator[tuple[int, ...]]:
    """Shapes of a sample to try, by the net's first layer with weights."""
    weighted = (layer for layer in net.modules() if next(layer.parameters(recurse=False), None) is not None)
    first = next(weighted, None)
    if isinstance(first, nn.Linear):
        yield (first.in_features,)
    elif isinstance(first, nn.Conv1d | nn.Conv2d):
        yield from ((first.in_channels, *[side] * len(first.kernel_size)) for side in SIDES)


TINY = Problem()
NORMED = Problem(Normed)
"""The same clients, and a net whose statistics of batches differ from client to client."""


def tiny_net() -> nn.Module:
    """That of the tiny problem."""
    return TINY.net()


def tiny_data() -> TensorData:
    """Those of the tiny problem."""
    return TINY.data()


class ReversedSampler(UniformSampler):
    """The same cohorts, in the opposite order."""

    def select(self, seed: int, round: int, sizes: np.ndarray, count: int, **known: Any) -> Selection:
        """Reversed."""
        drawn = super().select(seed, round, sizes, count, **known)
        return Selection(drawn.train[::-1], drawn.report[::-1])


def users_alone(data: TensorData) -> TensorData:
    """The same users, as if there were no newcomers."""
    data.setup()
    data._held_back = None
    return data


def trained(
    client: Client, problem: Problem = TINY, *, data: TensorData | None = None, **options: Any
) -> FederatedTrainer:
    """A few rounds with three of the four clients; sequential unless asked otherwise."""
    defaults: dict[str, Any] = {"rounds": ROUNDS, "clients_per_round": 3, "engine": "sequential"}
    trainer = new_trainer(**(defaults | options))
    trainer.fit(client, datamodule=problem.data() if data is None else data)
    return trainer


def new_trainer(*, make_callbacks: Callable[[], Sequence[Callback]] = list, **options: Any) -> FederatedTrainer:
    """In float64, from the weights that the net brings, without a word.

    Args:
        make_callbacks: makes callbacks that every run gets anew, because they remember.
        options: of the trainer; callbacks among them come after those.
    """
    options["callbacks"] = [*make_callbacks(), *options.get("callbacks", [])]
    silent: dict[str, Any] = {"enable_progress_bar": False, "logger": False}
    return FederatedTrainer(**options, **silent, precision="64-true", initial_weights="net")


def everything(trainer: FederatedTrainer) -> dict[str, Tensor]:
    """All that a run came to, by name: every server's model and what it keeps, the measured model, clients' rows."""
    loop = trainer.loop
    kept = loop.states.state_dict()["rows"]
    rows = {f"{name} of {client}": loop.states.row(name, client) for name in kept for client in loop.states.touched}
    servers = [one for server in loop.federation.servers for one in tensors(held_by(server), f"server {server.id}")]
    measured = tensors(loop.federation.global_model, "measured")
    return {**dict(servers), **dict(measured), "time": torch.tensor(loop.federation.time), **rows}


def held_by(server: Server) -> dict[str, Any]:
    """A server's model, its optimiser's state, and what its callbacks keep."""
    callbacks = {type(callback).__name__: callback.state_dict() for callback in server.callbacks}
    return {"z": server.model, "optimizer": server.optimizer.state_dict()["state"], "callbacks": callbacks}


def tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors and numbers in a state, each with the names that lead to it."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from tensors(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        yield from tensors(dict(enumerate(value)), name)
    elif isinstance(value, int | float):
        yield name, torch.tensor(value)


def largest_gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest difference of any number; infinite where one has a number that the other lacks."""
    if a.keys() != b.keys():
        return float("inf")
    return max((float(gaps(a[name].double(), b[name].double()).max()) for name in a if a[name].numel()), default=0.0)


def gaps(a: Tensor, b: Tensor) -> Tensor:
    """|a - b|: 0 where both are the same, NaN and infinite too; infinite where one of them alone is."""
    same = (a == b) | (a.isnan() & b.isnan())
    return (a - b).abs().nan_to_num(nan=float("inf"), posinf=float("inf")).masked_fill(same, 0.0)
