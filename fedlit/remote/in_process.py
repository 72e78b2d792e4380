"""A link to nodes in the same process: messages become bytes and back, as on a network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedlit.client.messages import Message, pack, unpack
from fedlit.remote.link import Answers, Link
from fedlit.remote.node import Node


@dataclass
class Traffic:
    """Bytes of the messages of one kind, each way."""

    down: int = 0
    up: int = 0


@dataclass
class InProcessLink(Link):
    """Nodes in this process.

    Args:
        nodes: by name.
    """

    nodes: dict[str, Node]
    carried: dict[str, Traffic] = field(default_factory=dict)
    """Kind of message -> bytes of all of them so far."""

    def present(self) -> Sequence[str]:
        """All nodes."""
        return list(self.nodes)

    def ask(self, messages: Mapping[str, Message]) -> Answers:
        """One node after the other."""
        answers = Answers()
        for name, message in messages.items():
            if name in self.nodes:
                answers.came[name] = self.ask_one(self.nodes[name], message)
            else:
                answers.missing[name] = "is gone"
        return answers

    def ask_one(self, node: Node, message: Message) -> Message:
        """A node's answer; both ways are counted."""
        down = pack(message)
        up = pack(node.answer(unpack(down)))
        self._count(message["kind"], down, up)
        return unpack(up)

    def _count(self, kind: str, down: Tensor, up: Tensor) -> None:
        counted = self.carried.setdefault(kind, Traffic())
        counted.down += len(down)
        counted.up += len(up)
