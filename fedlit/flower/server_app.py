"""The ServerApp of a run: passes messages of `fedlit flower run` on to the nodes, and their answers back.

fedlit decides who is asked, and when; nothing is drawn, weighed or averaged here. Nodes are known by names: that of the
key with which they connect, or without keys the one that they give themselves.
"""

import json
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
_MOST_TIMES, _MOST_BESIDE = 8, 2**26
"""An answer has at most so many times the bytes of the message, and so many besides: a large sample for its form."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the process that submitted this run, until it closes the connection."""
    nodes = KnownNodes(grid, json.loads(str(context.run_config["names"])))
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
        registered: Flower's number of a node -> its name, by its key, so that none can take another one's name.
            Without keys it is empty, and nodes are asked for their names.
    """

    def __init__(self, grid: Grid, registered: Mapping[str, str]) -> None:
        self.grid = grid
        self.registered = {int(node): name for node, name in registered.items()}
        self.name_of: dict[int, str] = {}
        self.seconds: dict[str, dict[str, float]] = {}
        """Of the last exchange: name -> seconds until its answer came (`total`), of its relay, and of its worker."""

    def look(self) -> list[str]:
        """Names of the nodes that are connected now; a name that two nodes have is there twice."""
        present = set(self.grid.get_node_ids())
        if self.registered:
            self.name_of = {node: name for node, name in self.registered.items() if node in present}
            return sorted(self.name_of.values())
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
        node_of = {name: node for node, name in self.name_of.items()}  # the newest, if one was started again
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
            elif (why := oversized(bytes_of(reply.content), there[node])) is not None:
                missing[name] = why
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
        asked = {id: node for id, node in zip(ids, contents, strict=True) if id}
        replies: dict[int, tuple[Message, float]] = {}
        until = time.monotonic() + deadline
        while asked and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(asked)):
                replies[asked.pop(reply.metadata.reply_to_message_id)] = reply, time.monotonic() - began
            if asked:
                time.sleep(_PAUSE_S)
        return replies


def seconds_of(reply: Message, total: float) -> dict[str, float]:
    """Seconds of an answer by phase; the relay has written down its own and those of the worker."""
    if reply.has_error():
        return {"total": total}
    told = plain_of(reply.content)
    return {"total": total} | {phase: float(told[phase]) for phase in PHASES if phase in told}


def oversized(answer: bytes, asked: bytes) -> str | None:
    """Why an answer is not taken, if it is much larger than what was asked."""
    most = _MOST_BESIDE + _MOST_TIMES * len(asked)
    return None if len(answer) <= most else f"sent {len(answer):,} bytes, and at most {most:,} are taken"
