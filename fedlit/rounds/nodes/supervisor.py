"""Supervisor: starts the processes of a coordinator, receives their messages, and ends them with it."""

import logging
import multiprocessing
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from fedlit import errors
from fedlit.client.messages import Message
from fedlit.engines.processes.children import ending_of
from fedlit.errors import DivergedError, FedlitError, ProcessError
from fedlit.rounds.nodes.messages import ConnectionLostError, Wire, open_store
from fedlit.rounds.nodes.plan import COORDINATOR, NodeProcess, Plan
from fedlit.rounds.nodes.process import Build, run_part

log = logging.getLogger("fedlit")

_PRELOADED = ["fedlit.rounds.nodes.process", "fedlit.config.cloud_cli"]
"""Modules that the fork server imports once, so that a process starts in milliseconds instead of seconds."""
_POLL_S = 0.05


@dataclass(frozen=True)
class Heard:
    """A message of a process; without a message, the process has ended."""

    part: NodeProcess
    message: Message | None
    at: float
    """Seconds of this machine's clock at which it arrived."""


class Supervisor:
    """The other processes of a run.

    Args:
        plan: the processes.
        build: builds the run in each of them.
        port: port of the store through which they connect; 0 takes a free port.
    """

    def __init__(self, plan: Plan, build: Build, port: int = 0) -> None:
        self.plan = plan
        self.gone: set[int] = set()
        """Ranks that have ended."""
        self._inbox: queue.Queue[Heard] = queue.Queue()
        self._stamping = threading.Lock()
        self._store = open_store(port, plan.timeout)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._processes: dict[int, BaseProcess] = {
            part.rank: context.Process(
                target=run_part, args=(part, plan, build, self._store.port), name=f"fedlit {part.name}", daemon=True
            )
            for part in plan.parts
        }
        self._listeners: list[threading.Thread] = []

    def start(self) -> None:
        """Start all processes, and return when all are connected; ProcessError if one of them fails before that."""
        for process in self._processes.values():
            process.start()
        self._wait_until_ready()
        self._connect()
        for part in self.plan.parts:
            listener = threading.Thread(target=self._listen, args=(part,), daemon=True)
            listener.start()
            self._listeners.append(listener)
        log.info(self.plan.line())

    def _wait_until_ready(self) -> None:
        """Wait until all have built their run and data. A process that cannot has printed why."""
        until = time.monotonic() + self.plan.timeout
        for part in self.plan.parts:
            while not self._store.check([f"ready/{part.rank}"]):
                self._check_all_alive()
                if time.monotonic() > until:
                    raise ProcessError(
                        f"{part.name} was not ready within {self.plan.timeout:g} seconds. Raise --timeout, or start "
                        "fewer processes."
                    )
                time.sleep(_POLL_S)

    def _connect(self) -> None:
        """Connect in a thread, since gloo would wait for an ended process until its timeout."""
        made: list[Wire] = []

        def connect() -> None:
            made.append(Wire(self._store, COORDINATOR, self.plan.size, self.plan.timeout))

        connecting = threading.Thread(target=connect, daemon=True)
        connecting.start()
        while connecting.is_alive():
            self._check_all_alive()
            connecting.join(_POLL_S)
        if not made:
            raise ProcessError(
                f"The processes were not connected within {self.plan.timeout:g} seconds. Raise --timeout."
            )
        self._wire = made[0]

    def _check_all_alive(self) -> None:
        for rank, process in self._processes.items():
            if process.exitcode is not None:
                raise ProcessError(f"{self.ended(self.plan.part(rank))} before the run began.")

    def _listen(self, part: NodeProcess) -> None:
        """Put the messages of a process into the inbox, ordered by time, until it ends."""
        message: Message | None = {}
        while message is not None:
            try:
                message = self._wire.receive(part.rank)
            except ConnectionLostError:
                message = None
            with self._stamping:
                self._inbox.put(Heard(part, message, time.perf_counter()))

    def send(self, server: int, message: Message) -> None:
        """Send a message to a server. If it has ended, nothing is sent, and `hear` returns its end."""
        try:
            self._wire.send(self.plan.rank_of(server), message)
        except ConnectionLostError:
            return

    def hear(self, awaited: Iterable[int]) -> Heard:
        """Wait for the next message, or the end of a process; `awaited` are the servers that a timeout error names.

        The error of a process that failed is raised here.
        """
        try:
            heard = self._inbox.get(timeout=self.plan.timeout)
        except queue.Empty:
            names = " and ".join(self.plan.part(self.plan.rank_of(server)).name.lower() for server in awaited)
            raise ProcessError(
                f"Nothing was heard of {names} for {self.plan.timeout:g} seconds. Raise --timeout where a round takes "
                "longer, and continue with --resume."
            ) from None
        if heard.message is not None and "error" in heard.message:
            raise raised_by(heard.part, heard.message["error"])
        if heard.message is None:
            self.gone.add(heard.part.rank)
        return heard

    def ended(self, part: NodeProcess) -> str:
        """Which process has ended, and how, as the beginning of a sentence."""
        process = self._processes[part.rank]
        process.join(5)
        how = "does not answer" if process.exitcode is None else ending_of(process.exitcode)
        return f"{part.name} (process {process.pid}) {how}"

    def culprit(self, server: int) -> NodeProcess:
        """The process of a server that failed: those that end only because another has ended have exit code 0."""
        parts = [self.plan.part(self.plan.rank_of(server)), *self.plan.workers_of(server)]
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for part in parts:
                if self._processes[part.rank].exitcode:
                    return part
            time.sleep(_POLL_S)
        return parts[0]

    def dismiss(self, server: int) -> None:
        """End a server and its client processes."""
        self._end([self.plan.rank_of(server), *(part.rank for part in self.plan.workers_of(server))])

    def close(self) -> None:
        """Kill all processes. They hold nothing that must be saved."""
        self._end(list(self._processes))
        for listener in self._listeners:
            listener.join(5)

    def _end(self, ranks: list[int]) -> None:
        started = [self._processes[rank] for rank in ranks if self._processes[rank].pid is not None]
        for process in started:
            process.kill()
        for process in started:
            process.join()


def raised_by(part: NodeProcess, error: dict[str, Any]) -> FedlitError:
    """The error of a process, as an exception to raise here."""
    kind = getattr(errors, error["kind"], None)
    if kind is DivergedError:
        return DivergedError(error["text"], round=error["round"], client=error["client"])
    if isinstance(kind, type) and issubclass(kind, FedlitError):
        return kind(error["text"])
    return ProcessError(f"{part.name} failed with {error['kind']}: {error['text']} Its traceback is above.")
