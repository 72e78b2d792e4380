"""A process that imports everything and is forked for each seat; a seat is forked for every `fedlit` asked of it.

Importing takes longer than many a run of a search. For a seat a list of cores comes by a socket, with the socket by
which the seat is asked: the words of a command as JSON, with the log that it writes to. A seat answers with its own id,
and for each command with the process's id and, when it has ended, its exit code.

python -m fedlit.cli.fork_server_main PARENT SOCKET
"""

import atexit
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib import import_module

from fedlit.cli.main import import_all, main
from fedlit.engines.processes.children import end_with

FORKS = sys.platform == "linux"
"""Elsewhere libraries may have threads after an import, which a fork does not survive: there every run imports anew."""
BYTES = 1 << 16
DEATH = signal.SIGTERM, 130
"""When its parent dies, a run ends with its round and can be resumed; its exit code if the parent is dead already."""
LATER = ("fedlit.cli.fit", "matplotlib.backends.backend_agg", "PIL.PngImagePlugin")
"""What a run imports when it comes to it, but for pyarrow, which starts a thread."""


def make_ready() -> None:
    """Import all that a run needs, and let go of nothing: memory that a run does not write to is shared by all runs.

    Python's collector would write to every object, and take longer for it than a small run for its rounds.
    """
    import_all()
    for name in LATER:
        import_module(name)
    logging.disable(logging.INFO)  # each run says itself what it is missing
    import_module("fedlit.engines.compiler").warm_up()
    import_module("fedlit.engines.native").missing_lanes()
    logging.disable(logging.NOTSET)
    gc.collect()
    gc.freeze()


def fork_seats(link: socket.socket) -> list[str]:
    """Fork seats until the other side is gone; returns in the process of a command alone, with its words."""
    own = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a seat says all itself, and nobody waits for its end
    while True:
        cores, links, _, _ = socket.recv_fds(link, BYTES, 1)
        if not cores:
            sys.exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            link.close()
            os.setpgid(0, 0)
            end_with(own, *DEATH)
            return serve(socket.socket(fileno=links[0]), json.loads(cores))
        os.close(links[0])


def serve(link: socket.socket, cores: Sequence[int]) -> list[str]:
    """Answer until the other side is gone; returns in the forked process alone, with its words."""
    seat = os.getpid()
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        os.sched_setaffinity(0, cores)  # engines count the cores that they may use
    link.send(f"{seat}\n".encode())
    while True:
        message, logs, _, _ = socket.recv_fds(link, BYTES, 1)
        while message and not message.endswith(b"\n"):
            message += link.recv(BYTES)
        if not message:
            sys.exit(0)
        pid = os.fork()
        if pid == 0:
            link.close()
            become(seat, logs[0])
            return list(json.loads(message))
        os.close(logs[0])
        link.send(f"{pid}\n".encode())
        link.send(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())


def become(seat: int, log: int) -> None:
    """A process of its own group, so that all it starts can be ended with it, whose words go to the log."""
    os.setpgid(0, 0)
    end_with(seat, *DEATH)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


class Ending:
    """The end of a process: after all other exit handlers, and without taking the interpreter apart.

    That would write to all memory that the process was forked with, which takes longer than a small run.
    """

    code = 1
    """Its exit code; 1 for an error that nobody caught."""

    def __init__(self) -> None:
        atexit.register(self.leave)  # the first to be registered is the last to run

    def leave(self) -> None:
        """End."""
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.code)


if __name__ == "__main__":
    end_with(int(sys.argv[1]), *DEATH)
    ending = Ending()
    if FORKS:
        make_ready()
    asked = fork_seats(socket.socket(fileno=int(sys.argv[2])))
    if not FORKS:
        os.execv(sys.executable, [sys.executable, "-m", "fedlit_start", *asked])
    try:
        main(asked)
    except SystemExit as end:
        ending.code = int(end.code or 0)
        raise
