"""Where jobs are started, one after the other: a process that has imported fedlit already, on cores of its own.

A command has one process that imports everything, `Imported`, and a seat for each job at a time. A seat is forked from
it, and forks in turn for every job. `cli/fork_server_main.py` is the other end.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from fedlit.engines.processes.children import end_children

PATIENCE_S = 10.0
"""What the process that imports may take to end when it is told to."""


class Imported:
    """The process that imports everything, while the command that starts it does the same and reads its options."""

    def __init__(self) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._popen is not None and self._popen.poll() is None:
            return
        self.close()
        self._link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with other:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "fedlit.cli.fork_server_main", str(os.getpid()), str(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                process_group=0,  # a Ctrl-C of the terminal comes to us alone: a child that got two would stop at once
            )

    def fork(self, cores: Sequence[int], link: socket.socket) -> None:
        """Fork a seat on these cores, which answers by this socket."""
        self.start()
        assert self._link is not None, "it was started"
        with suppress(BrokenPipeError, ConnectionResetError):  # the seat's socket is closed then
            socket.send_fds(self._link, [json.dumps(list(cores)).encode()], [link.fileno()])

    def close(self) -> None:
        """Let it end, and with it all seats."""
        if self._link is not None:
            self._link.close()
        if self._popen is not None:
            self._popen.terminate()
            end_children([self._popen], PATIENCE_S)
        self._link = self._popen = None


IMPORTED = Imported()
"""That of this command."""


class ForkServer:
    """One job at a time; the seat is forked with the first, and again if somebody killed it."""

    def __init__(self, cores: Sequence[int]) -> None:
        self.cores = cores
        self._link: socket.socket | None = None
        self._seat: int | None = None
        self._pid: int | None = None
        self._code: int | None = None
        self._heard = b""
        self._told = signal.SIGKILL
        """The signal by which the seat must have ended when it says no more."""

    def start(self, words: Sequence[str], log: IO[bytes]) -> None:
        """Start `fedlit` with these words; what it says goes to the log."""
        if self._link is None or self._is_gone():
            self.close()
            self._open()
        assert self._link is not None, "it is open"
        self._pid, self._code = None, None
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
            self._listen()
            if self._seat is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._seat, signal.SIGTERM)
            self._link.close()
        self._link = self._seat = None
        self._heard, self._told = b"", signal.SIGKILL

    def _signal(self, which: signal.Signals) -> None:
        """To the process; to the seat while it has not forked yet, and where there is no seat yet, to what imports."""
        self._listen()
        if self._code is not None:
            return
        with suppress(ProcessLookupError):
            if self._pid is None:
                self._told = which
                if self._seat is None:
                    IMPORTED.close()
                else:
                    os.kill(self._seat, which)
            elif which == signal.SIGKILL:
                os.killpg(self._pid, which)
            else:
                os.kill(self._pid, which)

    def _listen(self) -> None:
        """Take what the seat has answered: its own id, then for each process its id and its exit code, a line each."""
        assert self._link is not None, "it was started"
        while self._code is None:
            try:
                heard = self._link.recv(64)
            except BlockingIOError:
                return
            except ConnectionResetError:
                heard = b""
            self._heard += heard
            *lines, self._heard = self._heard.split(b"\n")
            for line in map(int, lines):
                if self._seat is None:
                    self._seat = line
                elif self._pid is None:
                    self._pid = line
                else:
                    self._code = line
            if not heard and self._code is None:
                self._code = -self._told

    def _is_gone(self) -> bool:
        """Whether the seat has died since its last job."""
        assert self._link is not None, "it is open"
        with suppress(BlockingIOError):
            return not self._link.recv(1, socket.MSG_PEEK)
        return False

    def _open(self) -> None:
        """Have the seat forked."""
        self._link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.setblocking(False)
        with other:
            IMPORTED.fork(self.cores, other)
