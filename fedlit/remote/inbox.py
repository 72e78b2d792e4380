"""Inbox: reports of nodes as they come, for servers that do not wait for each other."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedlit.client.messages import Message
from fedlit.remote.link import Answer
from fedlit.remote.nodes import Nodes
from fedlit.results.events import Asked


@dataclass
class Asking:
    """The clients of a server that were asked to train."""

    requests: Mapping[int, Message]
    reporting: frozenset[int]
    """Those of them who report; the others only train."""
    asked_at: float
    """In seconds of the link's clock."""
    answers: dict[int, Message] = field(default_factory=dict)
    came_at: dict[int, float] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    """Those who did not know the run, and were told."""
    last_at: float = 0.0
    """When the last of them had answered, or was given up."""

    @property
    def is_complete(self) -> bool:
        """Whether all have answered or are given up."""
        return len(self.answers) + len(self.missing) == len(self.requests)

    @property
    def has_reports(self) -> bool:
        """Whether the server can step."""
        return self.is_complete and not self.reporting.isdisjoint(self.answers)

    @property
    def asked(self) -> Asked:
        """Who was asked, for the record."""
        return Asked({client: at - self.asked_at for client, at in self.came_at.items()}, self.missing)


class Inbox:
    """What servers have asked of their nodes, and what has come.

    Args:
        nodes: of all servers.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.askings: dict[int, Asking] = {}
        """Server -> its clients of the present round."""
        self._server_of: dict[int, int] = {}
        """Number of a posting -> the server that asked."""

    def ask(self, server: int, requests: Mapping[int, Message], reporting: Iterable[int]) -> None:
        """Ask the clients of a server to train, and wait for nothing."""
        messages = self.nodes.addressed("train", requests)
        self.askings[server] = Asking(messages, frozenset(reporting), self.nodes.link.now())
        self._post(server, messages)

    def _post(self, server: int, messages: Mapping[int, Message]) -> None:
        named = {self.nodes.names[client]: message for client, message in messages.items()}
        self._server_of[self.nodes.link.post(named)] = server

    def needs_asking(self, server: int) -> bool:
        """Whether a server has asked nobody in its present round, or none of those has answered who report."""
        asking = self.askings.get(server)
        return asking is None or (asking.is_complete and not asking.has_reports)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return any(not asking.is_complete for asking in self.askings.values())

    def wait(self) -> None:
        """Wait for the next answers."""
        for answer in self.nodes.link.next_answers():
            server = self._server_of.get(answer.posting)
            if server is not None:  # else it is an answer to what was undone
                self._take(server, self.askings[server], answer)

    def _take(self, server: int, asking: Asking, answer: Answer) -> None:
        client, message = self.nodes.names.index(answer.name), answer.message
        if message is not None and "unknown_run" in message and client not in asking.told:
            asking.told.add(client)
            self._post(server, {client: asking.requests[client] | {"plan": self.nodes.plan_of(client).message()}})
            return
        asking.last_at = answer.at
        if message is None:
            asking.missing[client] = answer.why
        elif message.keys() & {"unknown_run", "failed"}:
            asking.missing[client] = str(message.get("failed", "does not know the run"))
        else:
            asking.answers[client], asking.came_at[client] = message, answer.at
        if asking.is_complete:
            self.nodes.note(asking.requests, asking.missing)

    def taken(self, clients: Iterable[int]) -> dict[int, Message]:
        """Client -> its answer, of these who have answered. Who was asked, and who answered, is noted."""
        wanted = set(clients)
        askings = [asking for asking in self.askings.values() if wanted & asking.requests.keys()]
        asked = [asking.asked for asking in askings]
        answered = {client: after_s for one in asked for client, after_s in one.answered.items()}
        missing = {client: why for one in asked for client, why in one.missing.items()}
        self.nodes.asked["train"] = Asked(answered, missing)
        return {client: answer for asking in askings for client, answer in asking.answers.items()}

    def asked_in(self, client: int) -> int:
        """The round of the run in which a client was asked."""
        return next(int(one.requests[client]["run_round"]) for one in self.askings.values() if client in one.requests)

    def forget(self, servers: Iterable[int]) -> None:
        """These servers begin a new round."""
        gone = set(servers)
        self.askings = {server: asking for server, asking in self.askings.items() if server not in gone}
        self._server_of = {posting: server for posting, server in self._server_of.items() if server not in gone}
