"""The ServerApp of a run: passes messages of `fedlit flower run` on to the nodes, and their answers back.

fedlit decides who is asked, and when; nothing is drawn, weighed or averaged here. Nodes are known by names: that of the
key with which they connect, or without keys the one that they give themselves.
"""

import json
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedlit.flower.frames import ClosedError, connect, receive, send
from fedlit.flower.records import PHASES, Plain, bytes_of, plain_of, records_of

app = ServerApp()

_PAUSE_S = 0.2
"""Between two looks for answers. Flower's own wait takes 3 s, which is longer than many rounds."""
_NAMES_WITHIN_S = 60.0
_MOST_TIMES, _MOST_BESIDE = 8, 2**26
"""An answer has at most so many times the bytes of the message, and so many besides: a large sample for its form."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the process that submitted this run, until it closes the connection."""
    with connect(str(context.run_config["socket"])) as fedlit:
        send(fedlit, {"token": str(context.run_config["token"])})
        Courier(KnownNodes(grid, json.loads(str(context.run_config["names"]))), fedlit).serve()


@dataclass(frozen=True)
class Posted:
    """A message that a node has not answered yet."""

    posting: int
    """Number of the messages that were posted together."""
    name: str
    node: int
    deadline: float
    at: float
    """When it was posted, in seconds of this machine's clock."""
    size: int
    """Its bytes."""


class Courier:
    """Passes messages on as they are posted, and answers back as they come.

    Args:
        nodes: those that are connected.
        fedlit: the connection to the process that submitted the run.
    """

    def __init__(self, nodes: "KnownNodes", fedlit: socket.socket) -> None:
        self.nodes, self.grid, self.fedlit = nodes, nodes.grid, fedlit
        self.waiting: dict[str, Posted] = {}
        """Flower's id of a message -> what waits for its answer."""

    def serve(self) -> None:
        """Until the connection is closed."""
        while True:
            ready, _, _ = select.select([self.fedlit], [], [], _PAUSE_S if self.waiting else None)
            if ready:
                try:
                    head, contents = receive(self.fedlit)
                except ClosedError:
                    return
                if head["kind"] == "present":
                    send(self.fedlit, {"kind": "names", "names": self.nodes.look()})
                else:
                    self.post(head["posting"], dict(zip(head["names"], contents, strict=True)), head["deadline"])
            self.pull()

    def post(self, posting: int, contents: Mapping[str, bytes], deadline: float) -> None:
        """Send each node its message; who is not there is told at once."""
        self.nodes.look()
        node_of = {name: node for node, name in self.nodes.name_of.items()}  # the newest, if one was started again
        there = [
            Posted(posting, name, node_of[name], deadline, time.monotonic(), len(content))
            for name, content in contents.items()
            if name in node_of
        ]
        pushed = push(self.grid, {"kind": "message"}, {one.node: contents[one.name] for one in there}, deadline)
        for name in contents:
            if name not in node_of:
                self.hand_back(posting, name, "is not connected")
        for one in there:
            if one.node in pushed:
                self.waiting[pushed[one.node]] = one
            else:
                self.hand_back(posting, one.name, "is lost (Flower did not take the message)")

    def pull(self) -> None:
        """Hand back the answers that have come, and say who is late."""
        for reply in self.grid.pull_messages(list(self.waiting)) if self.waiting else ():
            one = self.waiting.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                self.nodes.name_of.pop(one.node, None)
                self.hand_back(one.posting, one.name, f"is lost (Flower says: {reply.error.reason})")
                continue
            told, content = plain_of(reply.content), bytes_of(reply.content)
            seconds = {phase: float(told[phase]) for phase in PHASES if phase in told}
            seconds["total"] = time.monotonic() - one.at
            why = told.get("failed") or oversized(content, one.size)
            self.hand_back(one.posting, one.name, why, content if why is None else b"", seconds)
        late = [id for id, one in self.waiting.items() if time.monotonic() > one.at + one.deadline]
        for one in [self.waiting.pop(id) for id in late]:
            self.hand_back(one.posting, one.name, f"did not answer within {one.deadline:g} s")

    def hand_back(
        self,
        posting: int,
        name: str,
        missing: str | None,
        content: bytes = b"",
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """An answer, or why there is none; with the time, which is that of the machine and not of a process."""
        head = {"kind": "answer", "posting": posting, "name": name, "missing": missing, "at": time.monotonic()}
        send(self.fedlit, head | {"seconds": dict(seconds or {})}, [content])


class KnownNodes:
    """The nodes that are connected, by name.

    Args:
        grid: Flower's.
        registered: Flower's number of a node -> its name, by its key, so that none can take another one's name.
            Without keys it is empty, and nodes are asked for their names.
    """

    def __init__(self, grid: Grid, registered: Mapping[str, str]) -> None:
        self.grid = grid
        self.registered = {int(node): name for node, name in registered.items()}
        self.name_of: dict[int, str] = {}

    def look(self) -> list[str]:
        """Names of the nodes that are connected now; a name that two nodes have is there twice."""
        present = set(self.grid.get_node_ids())
        if self.registered:
            self.name_of = {node: name for node, name in self.registered.items() if node in present}
            return sorted(self.name_of.values())
        self.name_of = {node: name for node, name in self.name_of.items() if node in present}
        strangers = {node: b"" for node in present - self.name_of.keys()}
        replies = self._exchange({"kind": "who"}, strangers, _NAMES_WITHIN_S)
        for node, reply in replies.items():
            if not reply.has_error():
                self.name_of[node] = plain_of(reply.content)["name"]
        return sorted(self.name_of.values())

    def _exchange(self, plain: Plain, contents: Mapping[int, bytes], deadline: float) -> dict[int, Message]:
        """Node -> its reply, of those that came in time."""
        waiting = {id: node for node, id in push(self.grid, plain, contents, deadline).items()}
        replies: dict[int, Message] = {}
        until = time.monotonic() + deadline
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                replies[waiting.pop(reply.metadata.reply_to_message_id)] = reply
            if waiting:
                time.sleep(_PAUSE_S)
        return replies


def push(grid: Grid, plain: Plain, contents: Mapping[int, bytes], deadline: float) -> dict[int, str]:
    """Node -> Flower's id of its message, of those that Flower has taken."""
    messages = [
        Message(records_of(plain, content), node, "query", ttl=deadline + 60) for node, content in contents.items()
    ]
    ids = list(grid.push_messages(messages)) if messages else []
    return {node: id for node, id in zip(contents, ids, strict=True) if id}


def oversized(answer: bytes, asked: int) -> str | None:
    """Why an answer is not taken, if it is much larger than the bytes that were asked."""
    most = _MOST_BESIDE + _MOST_TIMES * asked
    return None if len(answer) <= most else f"sent {len(answer):,} bytes, and at most {most:,} are taken"
