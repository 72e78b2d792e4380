"""A whole federation on this machine: SuperLink, SuperNodes and workers as processes that end with this one.

Workers are forked before anything is computed: a fork shares what is imported, and must not share threads.
"""

import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedlit.engines.processes.children import end_with
from fedlit.files import write_json
from fedlit.flower.make_keys import make_keys
from fedlit.flower.programs import Programs, free_port
from fedlit.flower.superlink import Listening, start_superlink
from fedlit.flower.supernode import NodeOptions, SuperNode, make_worker, start_supernode

_LOOK_S = 0.1


class Trial:
    """The folder and the processes of a try.

    Args:
        count: how many nodes there are.
        folder: of data, rows, sockets and logs; its path is short, because sockets are in it.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self.folder = count, folder
        self.data = folder / "data"
        """Files of the clients; written after the workers were forked."""
        self.workers: dict[int, int] = {}
        """Number of a node -> process of its worker."""
        self.programs = Programs(folder)

    def socket(self, number: int) -> Path:
        """The socket of a worker."""
        return self.folder / f"{number}.sock"

    def fork_workers(self) -> None:
        """Start all workers, which wait for their data."""
        for number in range(self.count):
            self.workers[number] = self.fork_worker(number)

    def fork_worker(self, number: int) -> int:
        """Start one worker; returns its process."""
        parent = os.getpid()
        child = os.fork()
        if child:
            return child
        try:
            os.setpgid(0, 0)  # Ctrl-C is for the parent, which ends this process
            end_with(parent, signal.SIGKILL, 1)
            self._work(number)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)

    def _work(self, number: int) -> None:
        log = os.open(self.folder / f"worker-{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(log, stream)
        logging.getLogger("fedlit").setLevel(logging.WARNING)
        torch.set_num_threads(1)
        while not self._told.exists():
            time.sleep(_LOOK_S)
        told = json.loads(self._told.read_text())
        name = told["names"][number]
        options = NodeOptions(name, self.data / f"{name}.npz", Path(told["rows"]) / name)
        make_worker(options, self.socket(number)).serve()

    @property
    def _told(self) -> Path:
        """What workers wait for."""
        return self.folder / "nodes.json"

    def start_nodes(self, names: Sequence[str], rows: Path, *, secure: bool) -> Listening:
        """Start SuperLink and SuperNodes; the files of these clients are there.

        Args:
            names: of the nodes.
            rows: folder of what they keep; the same one continues a run.
            secure: whether they use TLS and keys.
        """
        keys = make_keys(self.folder / "keys", ["127.0.0.1", "localhost"], names) if secure else None
        listening = Listening("127.0.0.1", free_port(), keys)
        write_json(self._told, {"names": list(names), "rows": str(rows.absolute())})
        start_superlink(self.programs, listening)
        for number, name in enumerate(names):
            self.start_node(number, name, listening)
        return listening

    def start_node(self, number: int, name: str, listening: Listening) -> SuperNode:
        """Start the programs of a node besides its worker."""
        keys = listening.keys
        ca, key = (None, None) if keys is None else (keys.ca, keys.private(name))
        return start_supernode(self.programs, name, self.socket(number), listening.address, ca, key)

    def processes(self) -> list[tuple[str, int]]:
        """Name and number of each process."""
        workers = [(f"worker {number}", process) for number, process in self.workers.items()]
        return [*self.programs.processes(), *workers]

    def end(self) -> None:
        """End all processes."""
        self.programs.end()
        for worker in self.workers.values():
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)


@contextmanager
def trial(count: int) -> Iterator[Trial]:
    """A try with so many nodes; its processes end with the block, and its files are removed."""
    with TemporaryDirectory(prefix="fedlit-", ignore_cleanup_errors=True) as folder:
        one = Trial(count, Path(folder))
        try:
            one.fork_workers()
            yield one
        finally:
            one.end()
