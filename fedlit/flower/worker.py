"""The worker of a node: stays, with data and net loaded, and answers what the ClientApp passes on."""

import logging
import socket
from pathlib import Path

from fedlit.client.messages import pack, unpack
from fedlit.client.row_layout import bytes_as_tensor
from fedlit.errors import MessageError
from fedlit.flower.frames import MOST_BYTES, ClosedError, receive, send
from fedlit.remote.node import Node

log = logging.getLogger("fedlit")


class Worker:
    """Answers the messages of a node, one after the other.

    Args:
        node: computes the answers.
        path: of the Unix socket; its folder is only this user's.
        most: bytes of a message, at most.
    """

    def __init__(self, node: Node, path: Path, most: int = MOST_BYTES) -> None:
        self.node, self.path, self.most = node, path, most
        self.asked = 0
        """Messages that it has got."""
        path.unlink(missing_ok=True)  # of a worker that was killed
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        path.chmod(0o600)
        self._listening.listen()

    def serve(self) -> None:
        """Answer until the socket is closed."""
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self.serve_one(connection)

    def serve_one(self, connection: socket.socket) -> None:
        """One message and its answer; a message that cannot be read gets one that says so."""
        try:
            _, [content] = receive(connection, self.most)
            self.asked += 1
            try:
                answer = self.node.answer(unpack(bytes_as_tensor(content)))
            except (MessageError, ValueError) as error:
                answer = {"failed": f"got a message that cannot be read ({error})"}
            send(connection, {}, [pack(answer).numpy().tobytes()])
        except (OSError, ClosedError, ValueError) as error:
            log.warning(f"A message was not answered ({type(error).__name__}: {error}).")

    def close(self) -> None:
        """Listen no longer."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.path.unlink(missing_ok=True)
