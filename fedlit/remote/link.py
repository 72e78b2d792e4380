"""Link: how the server's half of a run reaches its nodes. A node is known by its name.

Messages are dicts of plain data and tensors (`client/messages.py`). A link only carries them: it decides nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedlit.client.messages import Message


@dataclass(frozen=True)
class Answers:
    """What came back of some messages."""

    came: dict[str, Message] = field(default_factory=dict)
    """The node's name -> its answer."""
    missing: dict[str, str] = field(default_factory=dict)
    """The name of a node that did not answer -> why, as the end of a sentence that begins with its name."""


class Link(ABC):
    """Carries messages to nodes."""

    @abstractmethod
    def present(self) -> Sequence[str]:
        """Names of the nodes that can be reached now."""

    @abstractmethod
    def ask(self, messages: Mapping[str, Message]) -> Answers:
        """Send each node its message, and wait for the answers; every node is either in `came` or in `missing`."""
