"""The relay of a node, a program that stays: takes messages from its SuperNode to its worker, and answers back.

It stands in the place of Flower's SuperExec, which would start a process for every message and run in it the app that
was submitted. Here nothing that was submitted is run, or even unpacked: only what the node's owner has installed.
Torch is not imported, so flwr and fedlit may live in two environments.
"""

import logging
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedlit.flower.frames import ClosedError, connect, receive, send
from fedlit.flower.records import NotOursError, bytes_of, plain_of, records_of

log = logging.getLogger("fedlit.relay")

_PAUSE_S = 0.3
"""Between two looks for messages. A SuperNode that is idle asks its server every 3 s."""
_BEAT_S = 10.0
"""Flower gives up a message after 30 s without a sign of life."""


class Relay:
    """Answers what a SuperNode was sent.

    Args:
        runtime: host:port on which the SuperNode listens for apps, on this machine.
        secret: by which the SuperNode knows this process.
        name: of the node.
        worker: path of the socket on which the worker listens.
    """

    def __init__(self, runtime: str, secret: bytes, name: str, worker: str) -> None:
        self.runtime, self.name, self.worker = runtime, name, worker
        signed = frozenset({"/flwr.proto.Runtime/AcquireTask"})
        self.tasks = self.client(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=signed))

    def client(self, *interceptors: SuperExecAuthHttpInterceptor | RuntimeTokenHttpInterceptor) -> RuntimeHttpClient:
        """A client of the SuperNode's interface for apps."""
        return RuntimeHttpClient.from_server_address(
            server_address=self.runtime,
            insecure=True,  # on this machine; the secret and the tokens of messages guard it
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), *interceptors],
            retry_invoker=make_simple_http_retry_invoker(),
        )

    def serve(self) -> None:
        """Answer one message after the other, for ever."""
        kinds = [*TaskType]  # also those that are refused: the SuperNode waits for an answer
        while True:
            found = self.tasks.AcquireTask(AcquireTaskRequest(supported_task_types=kinds))
            if not found.token:
                time.sleep(_PAUSE_S)
                continue
            try:
                self.play(found.task.type, found.token)
            except (httpx.HTTPError, RuntimeError) as error:
                log.warning("A message was not answered (%s: %s).", type(error).__name__, error)

    def play(self, kind: str, token: str) -> None:
        """Answer one message."""
        client, began = self.client(RuntimeTokenHttpInterceptor(token)), time.monotonic()
        try:
            with beating(client) as is_over:
                message, context, _, _ = pull_task_input(client)
                reply = self.replied(message, kind, is_over, time.monotonic() - began)
                push_message(client, reply, context)
                push_task_output(client, None, SubStatus.COMPLETED, "")
        finally:
            client.close()

    def replied(self, message: Message, kind: str, is_over: Event, fetched: float) -> Message:
        """The answer to a message, or an error if it is not fedlit's; its arguments are those of `answer`.

        Args:
            kind: of the program that Flower would start for it.
        """
        try:
            if kind != TaskType.CLIENT_APP:
                raise NotOursError(f"it is for a {kind}")
            return self.answer(message, is_over, fetched)
        except NotOursError as error:
            return refusal(message, error)

    def answer(self, message: Message, is_over: Event, fetched: float) -> Message:
        """The name of the node, or the worker's answer; a plain answer says why there is no other.

        Args:
            message: of fedlit's ServerApp.
            is_over: says that nobody waits for the answer any more.
            fetched: seconds that it took to get the message from the SuperNode.
        """
        if plain_of(message.content).get("kind") == "who":
            return Message(records_of({"name": self.name}), reply_to=message)
        asked = time.monotonic()
        try:
            with connect(self.worker) as worker, ended_by(is_over, worker):
                send(worker, {}, [bytes_of(message.content)])
                _, [content] = receive(worker)
        except (OSError, ClosedError, ValueError) as error:
            why = f"has no worker that answers ({type(error).__name__}: {error}); start fedlit flower node there again"
            return Message(records_of({"failed": why}), reply_to=message)
        seconds = {"relay": str(fetched), "work": str(time.monotonic() - asked)}
        return Message(records_of(seconds, content), reply_to=message)


def refusal(message: Message, why: Exception) -> Message:
    """The answer to a message of an app that is not fedlit's; none of its code was loaded."""
    log.warning(
        "A message of run %s was refused: this node runs no app that was submitted (%s).", message.metadata.run_id, why
    )
    reason = "This node runs what its owner has installed, and no app that was submitted."
    return Message(Error(ErrorCode.INVALID_FAB, reason), reply_to=message)


@contextmanager
def beating(client: RuntimeHttpClient) -> Iterator[Event]:
    """Tell the SuperNode that a message is being answered; the event says that nobody waits for the answer any more."""
    is_done, is_over = Event(), Event()

    def beat() -> None:
        while not is_done.wait(_BEAT_S):
            if not client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                is_over.set()
                return

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield is_over
    finally:
        is_done.set()


@contextmanager
def ended_by(is_over: Event, connection: socket.socket) -> Iterator[None]:
    """Close a connection on which this thread waits, once nobody waits for the answer."""
    is_done = Event()

    def watch() -> None:
        while not is_done.wait(_PAUSE_S):
            if is_over.is_set():
                connection.shutdown(socket.SHUT_RDWR)
                return

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def wait_for(runtime: str) -> None:
    """Wait until a SuperNode listens; who has started both ends this process if it never does."""
    host, _, port = runtime.rpartition(":")
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(_PAUSE_S)


def main(arguments: list[str]) -> None:
    """Serve: host:port of the SuperNode, file of the secret, name of the node, socket of its worker."""
    runtime, secret, name, worker = arguments
    logging.basicConfig(format="%(message)s")
    wait_for(runtime)
    Relay(runtime, Path(secret).read_bytes(), name, worker).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
