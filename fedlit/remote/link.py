"""Link: how the server's half of a run reaches its nodes. A node is known by its name.

Messages are dicts of plain data and tensors (`client/messages.py`). A link only carries them: it decides nothing.
"""

import time
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
    after_s: dict[str, float] = field(default_factory=dict)
    """The name of a node that answered -> seconds until then, in the order of the answers."""


@dataclass(frozen=True)
class Answer:
    """The answer to one of the messages that were posted together, or why there is none."""

    posting: int
    """The number that `post` gave."""
    name: str
    message: Message | None
    why: str = ""
    """The end of a sentence that begins with the name."""
    at: float = 0.0
    """When it came, in seconds of the link's clock."""


@dataclass
class Link(ABC):
    """Carries messages to nodes."""

    aside: list[Answer] = field(default_factory=list, init=False, repr=False)
    """Answers to earlier postings, which came while `ask` waited for others."""

    @abstractmethod
    def present(self) -> Sequence[str]:
        """Names of the nodes that can be reached now."""

    @abstractmethod
    def post(self, messages: Mapping[str, Message]) -> int:
        """Send each node its message and wait for nothing; returns a number that the answers will have."""

    @abstractmethod
    def collect(self) -> list[Answer]:
        """The answers that have come since; waits for one. Every posted message gets one, if only a reason."""

    def now(self) -> float:
        """Seconds of the clock by which answers come."""
        return time.monotonic()

    def next_answers(self) -> list[Answer]:
        """As `collect`, beginning with those that were put aside."""
        waiting, self.aside = self.aside, []
        return waiting or self.collect()

    def ask(self, messages: Mapping[str, Message]) -> Answers:
        """Send each node its message, and wait for the answers; every node is either in `came` or in `missing`."""
        asked, answers = self.now(), Answers()
        posting = self.post(messages) if messages else 0
        while len(answers.came) + len(answers.missing) < len(messages):
            for answer in self.collect():
                if answer.posting != posting:
                    self.aside.append(answer)
                elif answer.message is None:
                    answers.missing[answer.name] = answer.why
                else:
                    answers.came[answer.name] = answer.message
                    answers.after_s[answer.name] = answer.at - asked
        return answers
