"""Where the processes of a run find each other: torch's store, reachable from this machine alone unless there are more.

A command that starts all ranks gives them a file in a folder that only its user may enter. torchrun and SLURM give an
address, at which torch's store answers everybody: docs/scaling.md says what that means.
"""

import atexit
import hashlib
import hmac
import json
import os
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import astuple, dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # not listed

from fedlit.engines.processes.monitor import Member
from fedlit.errors import ConfigError, RankError

START_S = 600.0
"""Seconds that ranks wait for each other at the start: a cluster's machines do not start at the same moment."""
HOST = "127.0.0.1"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
FOLDER = "FEDLIT_RANKS"
"""Environment variable with the private folder of ranks that one command started."""
SECRETS = ("FEDLIT_SECRET", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
"""Environment variables that are equal on all ranks of a run, the best first: the user's, then those of launchers."""


@dataclass(frozen=True)
class RankInfo:
    """This process's rank and the run's size, as its launcher says."""

    rank: int
    size: int
    """Number of processes of the run."""
    nodes: int
    """Number of machines of the run."""
    address: str
    """Address of the first process's machine."""
    port: int


class Rendezvous:
    """The meeting of ranks, for all runs of this process: they share one store."""

    def __init__(self) -> None:
        self.store: Store | None = None
        self.runs = 0

    def open(self, info: RankInfo) -> Store:
        """Open the store: a private file if one command started all ranks; else the launcher's or the first rank's."""
        if info.nodes == 1:
            os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
            if FOLDER in os.environ:
                folder = os.environ.pop(FOLDER)  # it is not for processes that this one starts
                atexit.register(remove_if_orphaned, folder, os.getppid())
                return FileStore(f"{folder}/store", -1)
        is_server = info.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if is_server and info.nodes == 1:
            return serve_here(info.port, START_S, f"MASTER_PORT is {info.port}", "Give another one")
        address, patience = HOST if info.nodes == 1 else info.address, timedelta(seconds=START_S)
        return TCPStore(address, info.port, is_master=is_server, timeout=patience, wait_for_workers=False)

    def meet(self, info: RankInfo, check: Callable[[], None]) -> tuple[Store, list[Member]]:
        """Wait until every rank has joined this run; returns the run's own store, and its members.

        Args:
            info: of this process.
            check: raises an error if a rank cannot join.
        """
        self.store = self.store or PrefixStore("fedlit", self.open(info))
        self.runs += 1
        size, store = info.size, PrefixStore(str(self.runs), self.store)
        me = Member(info.rank, os.getpid(), socket.gethostname(), machine())
        store.set(f"member/{info.rank}", introduce(me, self.runs))
        missing, deadline = list(range(size)), time.monotonic() + START_S
        while missing := [rank for rank in missing if not store.check([f"member/{rank}"])]:
            check()
            if time.monotonic() > deadline:
                raise RankError(
                    f"Rank {missing[0]} has not come within {START_S:.0f} s ({len(missing)} of {size} are missing). "
                    "Start every rank with the same command, and let it reach the first rank's machine."
                )
            time.sleep(0.02)
        return store, [recognize(store.get(f"member/{rank}"), rank, self.runs) for rank in range(size)]


RENDEZVOUS = Rendezvous()


def make_private_folder() -> None:
    """Make the folder in which the ranks of this command meet; only this user may enter it."""
    main, folder = os.getpid(), tempfile.mkdtemp(prefix="fedlit-")  # mode 700
    os.environ[FOLDER] = folder
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == main else None)


def remove_if_orphaned(folder: str, parent: int) -> None:
    """Remove the folder if the process that made it was killed."""
    if os.getppid() != parent:
        shutil.rmtree(folder, ignore_errors=True)


def serve_here(port: int, patience: float, asked: str, remedy: str) -> TCPStore:
    """A store that only processes of this machine reach: torch's own socket would listen on all addresses.

    Args:
        port: to listen on; 0 takes a free one.
        patience: seconds that others may wait for an answer.
        asked: begins the error's sentence; says where the port comes from.
        remedy: the last sentence of the error, without its full stop.
    """
    try:
        listener = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"{asked}, on which this process cannot listen: it is in use, or not allowed to this user. {remedy}."
        ) from error
    return TCPStore(
        HOST,
        listener.getsockname()[1],
        is_master=True,
        timeout=timedelta(seconds=patience),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


# ---- who is trusted --------------------------------------------------------------------------------------------------


def introduce(member: Member, run: int) -> str:
    """A rank's description of itself, signed with a secret that only ranks of this run know."""
    text = json.dumps(astuple(member))
    return json.dumps({"member": text, "signature": sign(text, run)})


def recognize(introduction: bytes, rank: int, run: int) -> Member:
    """The member that introduced itself as this rank; RankError if it does not know the secret."""
    try:
        record = json.loads(introduction)
        if hmac.compare_digest(record["signature"], sign(record["member"], run)):
            member = Member(*json.loads(record["member"]))
            if member.rank == rank:
                return member
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise RankError(
        f"A process came as rank {rank} that does not know this run's secret ({' or '.join(SECRETS)}): it belongs to "
        "another run, or to somebody else. Give every machine the same FEDLIT_SECRET, and this run its own MASTER_PORT."
    )


def sign(text: str, run: int) -> str:
    """The signature of a text in the run with this number."""
    secret = next((os.environ[name] for name in SECRETS if name in os.environ), "")
    return hmac.new(secret.encode(), f"{run} {text}".encode(), hashlib.sha256).hexdigest()


def machine() -> str:
    """An id that is equal for processes that see each other's process ids, unlike two containers with one host name."""
    if sys.platform != "linux":
        return str(uuid.getnode())
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
