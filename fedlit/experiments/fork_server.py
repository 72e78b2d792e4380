"""Where jobs are started, one after the other: a process that has imported fedlit already, on cores of its own."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from fedlit.engines.processes.children import end_children

PATIENCE_S = 10.0
"""What a seat may take to end when it is told to."""


class ForkServer:
    """One process at a time; the seat itself is started with the first, and again if somebody killed it.

    child.py is the other end.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self.cores = cores
        self._popen: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._pid: int | None = None
        self._code: int | None = None
        self._heard = b""

    def start(self, words: Sequence[str], log: IO[bytes]) -> None:
        """Start `fedlit` with these words; what it says goes to the log."""
        if self._popen is None or self._popen.poll() is not None:
            self.close()
            self._open()
        assert self._link is not None, "it is open"
        self._pid, self._code, self._heard = None, None, b""
        with suppress(BrokenPipeError, ConnectionResetError):  # poll finds that the seat has died
            socket.send_fds(self._link, [json.dumps(list(words)).encode() + b"\n"], [log.fileno()])

    def poll(self) -> int | None:
        """The exit code of what was started, None while it runs; that of the seat if that has died."""
        self._listen()
        return self._code

    def wait(self) -> int:
        """Until what was started has ended."""
        while (code := self.poll()) is None:
            assert self._link is not None, "it was started"
            select.select([self._link], [], [])
        return code

    def terminate(self) -> None:
        """SIGTERM for what was started."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for what was started and all that it has started."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Let the seat end; what still runs there is told to."""
        if self._link is not None:
            self._link.close()
        if self._popen is not None:
            self._popen.terminate()
            end_children([self._popen], PATIENCE_S)
        self._link = self._popen = None

    def _signal(self, which: signal.Signals) -> None:
        """To the process; to the seat while it has not forked yet."""
        self._listen()
        if self._code is not None or self._popen is None:
            return
        with suppress(ProcessLookupError):
            if self._pid is None:
                self._popen.send_signal(which)
            elif which == signal.SIGKILL:
                os.killpg(self._pid, which)
            else:
                os.kill(self._pid, which)

    def _listen(self) -> None:
        """Take what the seat has answered: a line with the process's id, then one with its exit code."""
        assert self._link is not None, "it was started"
        assert self._popen is not None, "it was started"
        while self._code is None:
            try:
                heard = self._link.recv(64)
            except BlockingIOError:
                return
            except ConnectionResetError:
                heard = b""
            self._heard += heard
            answers = [int(line) for line in self._heard.split(b"\n")[:-1]]
            self._pid = answers[0] if answers else None
            self._code = answers[1] if len(answers) > 1 else None if heard else self._popen.wait()

    def _open(self) -> None:
        """Start the process that is forked."""
        self._link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.setblocking(False)
        with on_cores(self.cores), other:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "fedlit.cli.fork_server_main", str(os.getpid()), str(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                process_group=0,  # a Ctrl-C of the terminal comes to us alone: a child that got two would stop at once
            )


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What this thread starts meanwhile may use these cores only: engines count the cores that they may use."""
    if not hasattr(os, "sched_setaffinity"):  # macOS
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
