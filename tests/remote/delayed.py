"""A link to nodes in this process that answer after chosen seconds, of a clock that nobody waits for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from fedlit.client.messages import Message
from fedlit.remote.in_process import InProcessLink
from fedlit.remote.link import Answer


def uneven(name: str, times: int) -> float:
    """Seconds that this node takes when it trains for this time; no two are alike."""
    return 1 + sum(map(ord, name)) % 3 + (7 * times + sum(map(ord, name))) % 11 * 0.37


@dataclass
class DelayedLink(InProcessLink):
    """Nodes answer in the order of their delays, each of which counts from the message."""

    delay: Callable[[str, int], float] = uneven
    """(name, how often it was asked to train) -> seconds."""
    seconds: float = 0.0
    """Of the link's clock."""
    asked: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    due: list[tuple[float, int, int, str, Message]] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def post(self, messages: Mapping[str, Message]) -> int:
        self.postings += 1
        for name, message in messages.items():
            takes = 0.01
            if message["kind"] == "train" and "plan" not in message:
                self.asked[name] = self.asked.get(name, 0) + 1
                takes = self.delay(name, self.asked[name])
            self.messages += 1
            heappush(self.due, (self.seconds + takes, self.messages, self.postings, name, message))
        return self.postings

    def collect(self) -> list[Answer]:
        at, _, posting, name, message = heappop(self.due)
        self.seconds = max(self.seconds, at)
        return [self.answer_to(posting, name, message)]
