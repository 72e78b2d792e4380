"""A link to nodes in the same process: messages become bytes and back, as on a network."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedlit.client.messages import Message, pack, unpack
from fedlit.remote.link import Answer, Link
from fedlit.remote.node import Node


@dataclass
class Traffic:
    """Bytes of the messages of one kind, each way."""

    down: int = 0
    up: int = 0


@dataclass
class InProcessLink(Link):
    """Nodes in this process, which answer one after the other, in the order in which they were asked.

    Args:
        nodes: by name.
    """

    nodes: dict[str, Node]
    carried: dict[str, Traffic] = field(default_factory=dict)
    """Kind of message -> bytes of all of them so far."""
    postings: int = field(default=0, init=False)
    waiting: deque[tuple[int, str, Message]] = field(default_factory=deque, init=False, repr=False)
    """Number of the posting, name and message of all that are not answered yet."""

    def present(self) -> Sequence[str]:
        """All nodes."""
        return list(self.nodes)

    def post(self, messages: Mapping[str, Message]) -> int:
        """Nothing is computed yet."""
        self.postings += 1
        self.waiting.extend((self.postings, name, message) for name, message in messages.items())
        return self.postings

    def collect(self) -> list[Answer]:
        """The next node's answer."""
        return [self.answer_to(*self.waiting.popleft())]

    def answer_to(self, posting: int, name: str, message: Message) -> Answer:
        """A node's answer, or that it is gone."""
        if name not in self.nodes:
            return Answer(posting, name, None, "is gone", self.now())
        answer = self.ask_one(self.nodes[name], message)
        return Answer(posting, name, answer, at=self.now())

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
