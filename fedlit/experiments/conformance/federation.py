"""A run whose clients are nodes in this process: what stays with a client cannot be read by the server there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.messages import Message, pack
from fedlit.data.one_client import one_client
from fedlit.experiments.conformance.problem import ROUNDS, Problem, everything, new_trainer
from fedlit.remote.gathering import TRAINED_IN
from fedlit.remote.in_process import InProcessLink
from fedlit.remote.loop import RemoteLoop
from fedlit.remote.node import Node
from fedlit.remote.nodes import Nodes, meet
from fedlit.remote.told_data import ToldData
from fedlit.trainer.trainer import FederatedTrainer

_DOWN = ("received", "received_buffers", "state", "sent")
_UP = ("model", "state", "reported_rows", "measured")


@dataclass
class CountingLink(InProcessLink):
    """Counts the numbers of what is sent to train, without what goes down at a first participation only."""

    numbers: list[tuple[int, int]] = field(default_factory=list)
    """(down, up) of each exchange that was not a client's first."""
    bytes_of: list[tuple[int, int]] = field(default_factory=list)
    """(down, up) of the whole messages."""

    def overhead(self) -> tuple[int, int]:
        """The most bytes, down and up, that a message had beside its numbers, which are in float64."""
        pairs = [
            [size - 8 * count for size, count in zip(*both, strict=True)]
            for both in zip(self.bytes_of, self.numbers, strict=True)
        ]
        return max(down for down, _ in pairs), max(up for _, up in pairs)

    def ask_one(self, node: Node, message: Message) -> Message:
        """As in the base; an exchange that trains is counted."""
        answer = super().ask_one(node, message)
        if message["kind"] == "train" and message["rows_of"] is not None and "plan" not in message:
            self.bytes_of.append((len(pack(message)), len(pack(answer))))
            down = {name: message["stacked"][name] for name in _DOWN}
            self.numbers.append((numbers_in(down), numbers_in({name: answer[name] for name in _UP})))
        return answer


def numbers_in(content: Mapping[str, Any]) -> int:
    """How many numbers the tensors of a message hold."""
    values = content.values()
    return sum(value.numel() if isinstance(value, Tensor) else numbers_in(value) for value in values)


@dataclass(frozen=True)
class Federated:
    """A finished run of a server and its nodes."""

    trainer: FederatedTrainer
    nodes: dict[str, Node]
    link: CountingLink

    def everything(self) -> dict[str, Tensor]:
        """All that the run came to: what the server holds, and what each node has on its disk."""
        held = everything(self.trainer)
        at_server = {name: value for name, value in held.items() if not name.startswith(TRAINED_IN)}
        return self.rows() | at_server

    def rows(self) -> dict[str, Tensor]:
        """The newest rows of all nodes."""
        runs = [node.run for node in self.nodes.values()]
        kept = {k: run.rows.read(run.rows.rounds[-1]) for k, run in enumerate(runs) if run and run.rows.rounds}
        return {f"{name} of {k}": value[0] for k, rows in kept.items() for name, value in rows.items()}


def federation(make: Callable[[], Client], problem: Problem, folder: Path) -> CountingLink:
    """A node for each client of the problem; their rows are kept in the folder."""
    data = problem.data()
    data.setup()
    count = data.num_clients
    nodes = {f"node-{k}": Node(f"node-{k}", one_client(data, k, 0, 1), folder / f"{k}", of(make)) for k in range(count)}
    return CountingLink(nodes)


def of(make: Callable[[], Client]) -> Callable[[Message], Client]:
    """Makes the same algorithm, whatever the server says of it."""
    return lambda described: make()


def federated(make: Callable[[], Client], problem: Problem, folder: Path, **options: Any) -> Federated:
    """A few rounds with three of the four clients."""
    link = federation(make, problem, folder)
    told = meet(link, link.present())
    trainer = new_trainer(**({"rounds": ROUNDS, "clients_per_round": 3} | options))
    trainer.use_loop(partial(RemoteLoop, nodes=Nodes(link, list(told)), model={}))
    trainer.fit(make(), datamodule=ToldData(told))
    return Federated(trainer, link.nodes, link)
