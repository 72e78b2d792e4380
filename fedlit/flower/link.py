"""FlowerLink: reaches nodes through the ServerApp of a run, which this process has submitted."""

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Self

from fedlit.client.messages import Message, pack, unpack
from fedlit.client.row_layout import bytes_as_tensor
from fedlit.errors import MessageError, ProcessError
from fedlit.flower.frames import ClosedError, Head, receive, send
from fedlit.flower.timings import Timings
from fedlit.remote.link import Answer, Link

log = logging.getLogger("fedlit")

Frame = tuple[Head, list[bytes]]
_ENDED = (
    "The ServerApp of this run has ended, or the SuperLink has. The round is undone; start the SuperLink if it is "
    "gone, and continue with --resume."
)


class FlowerLink(Link):
    """Listens for the ServerApp, and carries messages through it.

    Args:
        folder: of the Unix socket; only this user can enter it.
        deadline: seconds within which a node must answer.
    """

    def __init__(self, folder: Path, deadline: float) -> None:
        super().__init__()
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
        """Of all answers so far."""
        self._kind_of: dict[int, str] = {}
        """Posting -> the kind of its messages."""
        self._postings = 0
        self._frames: Queue[Frame | Exception] = Queue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        for connection in (self._app, self._listening):
            if connection is not None:
                with suppress(OSError):  # it may be closed already
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
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
                Thread(target=self._read, args=(connection,), daemon=True).start()

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
        self._send({"kind": "present"})
        while True:
            head, contents = self._next_frame()
            if head["kind"] == "names":
                return list(head["names"])
            self.aside.append(self._answer(head, contents))

    def post(self, messages: Mapping[str, Message]) -> int:
        """Send all messages at once; each is answered within the deadline, or given up."""
        contents = [pack(message).numpy().tobytes() for message in messages.values()]
        self._postings += 1
        head = {"kind": "post", "posting": self._postings, "names": list(messages), "deadline": self.deadline}
        self._send(head, contents)
        self._kind_of[self._postings] = next((str(message.get("kind")) for message in messages.values()), "")
        return self._postings

    def collect(self) -> list[Answer]:
        """The next answer."""
        return [self._answer(*self._next_frame())]

    def _answer(self, head: Message, contents: Sequence[bytes]) -> Answer:
        posting, name, at = int(head["posting"]), str(head["name"]), float(head["at"])
        if head["missing"] is not None:
            return Answer(posting, name, None, str(head["missing"]), at)
        [content] = contents
        self.timings.add(self._kind_of[posting], name, head["seconds"])
        try:
            return Answer(posting, name, unpack(bytes_as_tensor(content)), at=at)
        except MessageError as error:
            return Answer(posting, name, None, f"sent what is not a message ({error})", at)

    def _read(self, connection: socket.socket) -> None:
        """Take frames as they come: the ServerApp must never wait for this process, which may be sending to it."""
        try:
            while True:
                self._frames.put(receive(connection))
        except (OSError, ClosedError, ValueError) as error:
            self._frames.put(error)

    def _next_frame(self) -> Frame:
        frame = self._frames.get()
        if isinstance(frame, Exception):
            raise ProcessError(_ENDED) from frame
        return frame

    def _send(self, head: dict[str, object], contents: Sequence[bytes] = ()) -> None:
        assert self._app is not None, "wait_for_app comes first"
        try:
            send(self._app, head, contents)
        except OSError as error:
            raise ProcessError(_ENDED) from error


def private_folder(path: Path) -> Path:
    """A folder for sockets that only this user can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(path, 0o700)
    return path
