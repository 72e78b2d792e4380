"""The ServerApp of a run: passes messages of `fedlit flower run` on to the nodes, and their answers back.

fedlit decides who is asked, and when; nothing is drawn, weighed or averaged here. Nodes are known by the names that
their owners gave them (`node_config`), because Flower draws a new number for a node that is started again.
"""

import time
from collections.abc import Mapping

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedlit.flower.frames import ClosedError, connect, receive, send
from fedlit.flower.records import PHASES, Plain, bytes_of, plain_of, records_of

app = ServerApp()

_PAUSE_S = 0.2
"""Between two looks for answers. Flower's own wait takes 3 s, which is longer than many rounds."""
_NAMES_WITHIN_S = 60.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the process that submitted this run, until it closes the connection."""
    nodes = KnownNodes(grid)
    with connect(str(context.run_config["socket"])) as fedlit:
        send(fedlit, {"token": str(context.run_config["token"])})
        while True:
            try:
                head, contents = receive(fedlit)
            except ClosedError:
                return
            if head["kind"] == "present":
                send(fedlit, {"names": nodes.look()})
            else:
                asked = dict(zip(head["names"], contents, strict=True))
                came, missing = nodes.ask(asked, head["deadline"])
                told = {"names": list(came), "missing": missing, "seconds": nodes.seconds}
                send(fedlit, told, list(came.values()))


class KnownNodes:
    """The nodes that are connected, by name.

    Args:
        grid: Flower's.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.name_of: dict[int, str] = {}
        self.seconds: dict[str, dict[str, float]] = {}
        """Of the last exchange: name -> seconds until its answer came (`total`), of its relay, and of its worker."""

    def look(self) -> list[str]:
        """Names of the nodes that are connected now; a name that two nodes have is there twice."""
        present = set(self.grid.get_node_ids())
        self.name_of = {node: name for node, name in self.name_of.items() if node in present}
        strangers = {node: b"" for node in present - self.name_of.keys()}
        replies = self._exchange({"kind": "who"}, strangers, _NAMES_WITHIN_S)
        for node, (reply, _) in replies.items():
            if not reply.has_error():
                self.name_of[node] = plain_of(reply.content)["name"]
        return sorted(self.name_of.values())

    def ask(self, contents: Mapping[str, bytes], deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """(name -> answer, name -> why there is none) of these messages, after at most so many seconds."""
        self.look()
        node_of = {name: node for node, name in sorted(self.name_of.items())}
        there = {node_of[name]: content for name, content in contents.items() if name in node_of}
        replies = self._exchange({"kind": "message"}, there, deadline)
        self.seconds = {self.name_of[node]: seconds_of(reply, arrived) for node, (reply, arrived) in replies.items()}
        came: dict[str, bytes] = {}
        missing = {name: "is not connected" for name in contents if name not in node_of}
        for node in there:
            name, (reply, _) = self.name_of[node], replies.get(node, (None, 0.0))
            if reply is None:
                missing[name] = f"did not answer within {deadline:g} s"
            elif reply.has_error():
                missing[name] = f"is lost (Flower says: {reply.error.reason})"
                self.name_of.pop(node)
            elif "failed" in plain_of(reply.content):
                missing[name] = plain_of(reply.content)["failed"]
            else:
                came[name] = bytes_of(reply.content)
        return came, missing

    def _exchange(
        self, plain: Plain, contents: Mapping[int, bytes], deadline: float
    ) -> dict[int, tuple[Message, float]]:
        """Node -> its reply, and after how many seconds it came, of those that came in time."""
        began = time.monotonic()
        messages = [
            Message(records_of(plain, content), node, "query", ttl=deadline + 60) for node, content in contents.items()
        ]
        ids = list(self.grid.push_messages(messages)) if messages else []
        waiting = {id for id in ids if id}
        replies: dict[int, tuple[Message, float]] = {}
        until = time.monotonic() + deadline
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies[reply.metadata.src_node_id] = reply, time.monotonic() - began
            if waiting:
                time.sleep(_PAUSE_S)
        return replies


def seconds_of(reply: Message, total: float) -> dict[str, float]:
    """Seconds of an answer by phase; the relay has written down its own and those of the worker."""
    if reply.has_error():
        return {"total": total}
    told = plain_of(reply.content)
    return {"total": total} | {phase: float(told[phase]) for phase in PHASES if phase in told}
