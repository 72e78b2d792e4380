"""The ServerApp of a run: passes messages of `fedlit flower run` on to the nodes, and their answers back.

fedlit decides who is asked, and when; nothing is drawn, weighed or averaged here. Nodes are known by the names that
their owners gave them (`node_config`), because Flower draws a new number for a node that is started again.
"""

import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedlit.flower.frames import ClosedError, connect, receive, send
from fedlit.flower.records import Plain, bytes_of, plain_of, records_of

app = ServerApp()

_PAUSE_S = 0.2
"""Between two looks for answers. Flower's own wait takes 3 s, which is longer than many rounds."""
_NAMES_WITHIN_S = 60.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the process that submitted this run, until it closes the connection."""
    with connect(str(context.run_config["socket"])) as fedlit:
        send(fedlit, {"token": str(context.run_config["token"])})
        Courier(grid, fedlit).serve()


@dataclass(frozen=True)
class Posted:
    """A message that a node has not answered yet."""

    posting: int
    """Number of the messages that were posted together."""
    name: str
    node: int
    deadline: float
    until: float
    """The deadline's end, in seconds of this machine's clock."""


class Courier:
    """Passes messages on as they are posted, and answers back as they come.

    Args:
        grid: Flower's.
        fedlit: the connection to the process that submitted the run.
    """

    def __init__(self, grid: Grid, fedlit: socket.socket) -> None:
        self.grid, self.fedlit = grid, fedlit
        self.nodes = KnownNodes(grid)
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
        node_of = {name: node for node, name in sorted(self.nodes.name_of.items())}
        until = time.monotonic() + deadline
        there = [Posted(posting, name, node_of[name], deadline, until) for name in contents if name in node_of]
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
            elif "failed" in plain_of(reply.content):
                self.hand_back(one.posting, one.name, plain_of(reply.content)["failed"])
            else:
                self.hand_back(one.posting, one.name, None, bytes_of(reply.content))
        late = [id for id, one in self.waiting.items() if time.monotonic() > one.until]
        for one in [self.waiting.pop(id) for id in late]:
            self.hand_back(one.posting, one.name, f"did not answer within {one.deadline:g} s")

    def hand_back(self, posting: int, name: str, missing: str | None, content: bytes = b"") -> None:
        """An answer, or why there is none; with the time, which is that of the machine and not of a process."""
        head = {"kind": "answer", "posting": posting, "name": name, "missing": missing, "at": time.monotonic()}
        send(self.fedlit, head, [content])


class KnownNodes:
    """The nodes that are connected, by name.

    Args:
        grid: Flower's.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.name_of: dict[int, str] = {}

    def look(self) -> list[str]:
        """Names of the nodes that are connected now; a name that two nodes have is there twice."""
        present = set(self.grid.get_node_ids())
        self.name_of = {node: name for node, name in self.name_of.items() if node in present}
        strangers = {node: b"" for node in present - self.name_of.keys()}
        replies = self._exchange({"kind": "who"}, strangers, _NAMES_WITHIN_S)
        for node, reply in replies.items():
            if not reply.has_error():
                self.name_of[node] = plain_of(reply.content)["name"]
        return sorted(self.name_of.values())

    def _exchange(self, plain: Plain, contents: Mapping[int, bytes], deadline: float) -> dict[int, Message]:
        """Node -> its reply, of those that came in time."""
        waiting = set(push(self.grid, plain, contents, deadline).values())
        replies: dict[int, Message] = {}
        until = time.monotonic() + deadline
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies[reply.metadata.src_node_id] = reply
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
