"""FlowerLink: reaches nodes through the ServerApp of a run, which this process has submitted."""

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from fedlit.client.messages import Message, pack, unpack
from fedlit.client.row_layout import bytes_as_tensor
from fedlit.errors import MessageError, ProcessError
from fedlit.flower.frames import ClosedError, receive, send
from fedlit.flower.timings import Timings
from fedlit.remote.link import Answers, Link

log = logging.getLogger("fedlit")


class FlowerLink(Link):
    """Listens for the ServerApp, and carries messages through it.

    Args:
        folder: of the Unix socket; only this user can enter it.
        deadline: seconds within which a node must answer.
    """

    def __init__(self, folder: Path, deadline: float) -> None:
        self.deadline = deadline
        self.token = secrets.token_hex(16)
        """The ServerApp of this run, and no other process, knows it."""
        self.path = folder / "link.sock"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(self.path))
        self.path.chmod(0o600)
        self._listening.listen()
        self._app: socket.socket | None = None
        self.timings = Timings()
        """Of all exchanges so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        for connection in (self._app, self._listening):
            if connection is not None:
                connection.close()
        self.path.unlink(missing_ok=True)

    def wait_for_app(self, patience: float, check: Callable[[], None]) -> None:
        """Wait until the ServerApp has connected; `check` raises if it cannot any more."""
        until = time.monotonic() + patience
        self._listening.settimeout(0.5)
        while self._app is None:
            check()
            if time.monotonic() > until:
                raise ProcessError(
                    f"The ServerApp did not start within {patience:g} s. Look into the log of the SuperLink."
                )
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            connection.settimeout(None)
            head, _ = receive(connection)
            if secrets.compare_digest(str(head.get("token")), self.token):
                self._app = connection

    def wait_for_nodes(self, count: int, patience: float, check: Callable[[], None]) -> list[str]:
        """Names of the nodes, once so many are there."""
        until, names = time.monotonic() + patience, self.present()
        while len(names) < count:
            check()
            if time.monotonic() > until:
                raise ProcessError(
                    f"{len(names)} of {count} nodes are there after {patience:g} s ({', '.join(names) or 'none'}). "
                    "Start the others with fedlit flower node, or lower --nodes."
                )
            time.sleep(1)
            names = self.present()
        return names

    def present(self) -> list[str]:
        """Names of the nodes that are connected."""
        head, _ = self._through_app({"kind": "present"})
        return list(head["names"])

    def ask(self, messages: Mapping[str, Message]) -> Answers:
        """Send all messages at once, and wait until all are answered, or the deadline has passed."""
        contents = [pack(message).numpy().tobytes() for message in messages.values()]
        head = {"kind": "ask", "names": list(messages), "deadline": self.deadline}
        answer, received = self._through_app(head, contents)
        self.timings.add(next(iter(messages.values()), {}).get("kind", ""), answer["seconds"])
        answers = Answers(missing=dict(answer["missing"]))
        for name, content in zip(answer["names"], received, strict=True):
            try:
                answers.came[name] = unpack(bytes_as_tensor(content))
            except MessageError as error:
                answers.missing[name] = f"sent what is not a message ({error})"
        return answers

    def _through_app(self, head: dict[str, object], contents: Sequence[bytes] = ()) -> tuple[Message, list[bytes]]:
        assert self._app is not None, "wait_for_app comes first"
        try:
            send(self._app, head, contents)
            return receive(self._app)
        except (OSError, ClosedError) as error:
            raise ProcessError(
                "The ServerApp of this run has ended, or the SuperLink has. The round is undone; start the SuperLink "
                "if it is gone, and continue with --resume."
            ) from error


def private_folder(path: Path) -> Path:
    """A folder for sockets that only this user can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(path, 0o700)
    return path
