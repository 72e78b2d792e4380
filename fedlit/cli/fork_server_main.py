"""A seat: a process that has imported everything once, and is forked for every `fedlit` that is asked of it.

Importing takes longer than many a run of a search. What is asked for comes by a socket: the words of the command as
JSON, with the log that it writes to. The answers are the process's id and, when it has ended, its exit code.

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


def serve(link: socket.socket) -> list[str]:
    """Answer until the other side is gone; returns in the forked process alone, with its words."""
    seat = os.getpid()
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
    asked = serve(socket.socket(fileno=int(sys.argv[2])))
    if not FORKS:
        os.execv(sys.executable, [sys.executable, "-m", "fedlit_start", *asked])
    try:
        main(asked)
    except SystemExit as end:
        ending.code = int(end.code or 0)
        raise
