"""One `fedlit fit` as a process: started, watched through the files of its run, and told why it ended."""

import os
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from fedlit.engines.processes.children import signal_of
from fedlit.errors import RunError, explained
from fedlit.experiments.fork_server import ForkServer
from fedlit.results.folder import RunFolder
from fedlit.results.lock import locked
from fedlit.results.runs import read_json

Status = Literal["finished", "failed", "stopped"]

STOPPED = (130, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a run that somebody stopped; negative ones are signals that came before it could finish its round."""
_TAIL = 4096  # bytes: more than the last row of metrics.csv takes


@dataclass(frozen=True)
class Job:
    """A run that is to be made."""

    name: str
    folder: Path
    """The run's folder; the log of the process stands beside it."""
    arguments: tuple[str, ...]
    """Of `fedlit fit`, without --run and --resume."""
    rounds: int
    """How many the run is to have."""
    parameters: Mapping[str, Any]
    """What is set in this run and not in all."""
    about: str = ""
    """What is special about it, in a few words."""
    cost: float = 1.0
    """How long it takes beside the others of its experiment, in any unit."""

    @property
    def log(self) -> Path:
        """What the process says, of all attempts one after the other."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def command(self) -> str:
        """The command line that makes the same run by itself, as it can be typed."""
        return shlex.join(["fedlit", "fit", *self.arguments])

    def summary(self) -> dict[str, Any]:
        """summary.json of the run; empty if there is none that can be read."""
        try:
            return read_json(RunFolder(self.folder).summary)
        except RunError:
            return {}

    def share_done(self) -> float:
        """How much of the run is done, from 0 to 1."""
        return min(1.0, rounds_done(RunFolder(self.folder).metrics) / max(self.rounds, 1))


@dataclass(frozen=True)
class JobResult:
    """How a job ended."""

    job: Job
    status: Status
    seconds: float
    reason: str = ""
    """Why it failed, in a paragraph."""
    note: str = ""
    """What it came to, in a few words."""


class Process:
    """The process of a job that was started; `start` makes one."""

    def __init__(self, job: Job, log: IO[bytes], seat: ForkServer, start_of_log: int) -> None:
        self.job = job
        self.started = time.monotonic()
        self.share_at_start = job.share_done()
        self._log, self._seat, self._start_of_log = log, seat, start_of_log

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.started

    def stop(self) -> None:
        """Let it finish its round and end."""
        self._seat.terminate()

    def kill(self) -> None:
        """End it and everything it started, at once; its last checkpoint stays good."""
        self._seat.kill()

    def outcome(self, *, stop_request: bool) -> JobResult | None:
        """How it ended, or None while it runs; whoever stops the runs must not take their end for a failure."""
        code = self._seat.poll()
        if code is None:
            return None
        self._log.close()
        if code == 0:
            return JobResult(self.job, "finished", self.seconds)
        if stop_request or code in STOPPED:
            return JobResult(self.job, "stopped", self.seconds)
        said = self.job.log.read_bytes()[self._start_of_log :].decode(errors="replace")
        return JobResult(self.job, "failed", self.seconds, reason_of(code, said))

    def wait(self) -> None:
        """Until it has ended."""
        self._seat.wait()
        self._log.close()


def start(job: Job, seat: ForkServer) -> Process | None:
    """Start the job in this seat, resuming what its folder holds; None while an earlier process still writes there.

    The log is locked for as long as the process lives, even if the one that started it is killed.
    """
    with explained(job.log):
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        log = job.log.open("ab", buffering=0)
        if not is_free(log):
            log.close()
            return None
        log.write(f"$ {job.command} --run {shlex.quote(str(job.folder))} --resume\n".encode())
    seat.start(["fit", *job.arguments, "--run", str(job.folder), "--resume"], log)
    return Process(job, log, seat, log.tell())


def is_free(log: IO[bytes]) -> bool:
    """Lock it for this process and its child; where the file system has no locks, nobody else is known to have it."""
    try:
        return locked(log.fileno())
    except OSError:
        return True


def share_cores(jobs: int) -> list[list[int]]:
    """The cores of each of so many jobs: equally many, so that a run does not depend on where it ran."""
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return [[] for _ in range(jobs)]
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // jobs)
    return [[cores[(k * share + i) % len(cores)] for i in range(share)] for k in range(jobs)]


def rounds_done(metrics: Path) -> int:
    """The last round in metrics.csv, 0 where there is none."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - _TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return 0
    first = lines[-1].split(b",")[0] if lines else b""
    return int(first) if first.isdigit() else 0


def reason_of(code: int, said: str) -> str:
    """The last paragraph that fedlit said, else the last line of all, with how the process ended."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("fedlit: ") for line in lines if line.startswith("fedlit: ")]
    last = (errors or lines or ["it said nothing"])[-1]
    killer = signal_of(code)
    if killer is None:
        return last
    why = ", often for lack of memory" if killer == "SIGKILL" else ""
    return f"killed by {killer}{why}; the last words were: {last}"
