"""Processes of a session's tests: forks of one that has imported fedlit, where a start from nothing is not tested."""

import multiprocessing
import os
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from fedlit.cli.fork_server_main import DEATH, serve
from fedlit.cli.main import main
from fedlit.engines.processes.children import end_with
from fedlit.experiments.fork_server import ForkServer

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["fedlit.cli.fit", "fedlit.cli.fork_server_main", "fedlit.experiments.fork_server"])


class Fork:
    """A fork, as `subprocess.Popen` would show it."""

    def __init__(self, process: ForkServerProcess) -> None:
        self.process = process
        process.start()
        assert process.pid is not None
        self.pid = process.pid

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self.process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """The exit code, when it has ended."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "it does not end"
        return self.process.exitcode

    def send_signal(self, which: signal.Signals) -> None:
        os.kill(self.pid, which)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


def forked(words: str, said: Path | None = None) -> Fork:
    """The command line in a process of its own, in this working folder; what it says goes to the file."""
    return Fork(PROCESSES.Process(target=_run, args=(Path.cwd(), dict(os.environ), shlex.split(words), said)))


def _run(folder: Path, environment: dict[str, str], words: list[str], said: Path | None) -> None:
    _move(folder, environment)
    with Path(said or os.devnull).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    main(words)


def _move(folder: Path, environment: dict[str, str]) -> None:
    """To where it would have been started: its folder, from which it can import, and its environment."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ.clear()
    os.environ.update(environment)


def open_forked(self: ForkServer) -> None:
    """In place of `Seat._open`: no import for each seat."""
    self._link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    self._link.setblocking(False)
    with other:
        PROCESSES.Process(target=_sit, args=(Path.cwd(), dict(os.environ), self.cores, other)).start()


def _sit(folder: Path, environment: dict[str, str], cores: Sequence[int], link: socket.socket) -> None:
    _move(folder, environment)
    os.setpgid(0, 0)
    end_with(os.getppid(), *DEATH)
    main(serve(link, cores))
