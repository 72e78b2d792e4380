"""The monitor of a rank: through torch's store, ranks see who is alive, who makes progress, and why the run ends.

gloo reports at once that a process died, but not which one, and it cannot tell a hanging process from one that works
long. So every rank regularly writes two counters into the store, and reads those of others. Everything there is plain
numbers or JSON: somebody with access to the store could disturb a run, but not execute code in it.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]  # torch does not list it

from fedlit.engines.processes import error_json
from fedlit.errors import RankError

RESUME = "The last checkpoint is good: continue with --resume."
GOODBYE_S = 2.0
"""Seconds that a rank waits at its end until the others know of it."""
SIGN_S = 5.0
"""Most seconds between two signs; each adds 40 bytes to a store that is a file."""


@dataclass(frozen=True)
class Member:
    """A process of the run."""

    rank: int
    pid: int
    host: str
    machine: str
    """Equal for processes that see each other's process ids; two machines may have the same host name."""

    def __str__(self) -> str:
        return f"Rank {self.rank} (process {self.pid} on {self.host})"


@dataclass(frozen=True)
class Ending:
    """Why a run ends."""

    rank: int
    """The rank that caused it."""
    is_lost: bool
    """Whether that rank died or was given up, and so cannot report itself."""
    error: BaseException


@dataclass
class Signs:
    """The counters of a rank as they were read last, and the seconds for which each has not changed."""

    beats: int = -1
    steps: int = -1
    without_beat: float = 0.0
    without_step: float = 0.0

    def see(self, beats: int, steps: int, passed: float) -> None:
        """Compare with the counters read `passed` seconds later."""
        self.without_beat = self.without_beat + passed if beats == self.beats else 0.0
        self.without_step = self.without_step + passed if steps == self.steps else 0.0
        self.beats, self.steps = beats, steps


class IdleTimer:
    """Measures time, but not while this process was itself stopped or starved: it must not blame others then.

    Args:
        period: seconds between two readings; more than twice that means that this process did not run.
    """

    def __init__(self, period: float) -> None:
        self.most = 2 * period
        self._read = time.monotonic()

    def passed(self) -> float:
        """Seconds since the last reading."""
        now = time.monotonic()
        passed, self._read = min(now - self._read, self.most), now
        return passed


class Monitor(threading.Thread):
    """Watches one run. Only its thread uses the store, which blocks its callers if the store's machine is lost.

    Args:
        store: for this run alone.
        members: the processes of the run, by rank.
        rank: of this process.
        timeout: seconds without a sign of progress after which a rank is given up.
    """

    def __init__(self, store: Store, members: Sequence[Member], rank: int, timeout: float) -> None:
        super().__init__(name="fedlit-monitor", daemon=True)
        self.store, self.members, self.rank, self.timeout = store, members, rank, timeout
        self.me = members[rank]
        self.period, self.sign_period = min(1.0, timeout / 8), min(SIGN_S, timeout / 8)
        self.ending: Ending | None = None
        """Why the run ends; None while it goes on."""
        self._steps, self._is_working, self._steps_told = 0, False, 0
        self._beats, self._progress, self._unsigned = 0, 0, 0.0
        self._watched = [Signs() if (rank == 0) != (other.rank == 0) else None for other in members]
        self._has_failed, self._own_error = False, ""
        self._asked, self._known, self._left = threading.Event(), threading.Event(), threading.Event()
        self._looks, self._looks_seen, self._unanswered = 0, 0, 0.0
        self._main_timer, self._since_end = IdleTimer(self.period), 0.0
        self._sign()

    # ---- the main thread ---------------------------------------------------------------------------------------------

    @contextmanager
    def working(self, is_working: bool) -> Iterator[None]:
        """Whether this rank must report steps inside the block; otherwise being alive is enough."""
        before, self._is_working = self._is_working, is_working
        try:
            yield
        finally:
            self._is_working = before

    def step(self) -> None:
        """Report a finished step."""
        self._steps += 1
        self.check()

    def check(self) -> None:
        """Raise the error that ended the run on another rank, or an error if the store does not answer."""
        self._unanswered = 0.0 if self._looks != self._looks_seen else self._unanswered + self._main_timer.passed()
        self._looks_seen = self._looks
        if self.ending is None and self._unanswered > self.timeout:
            self.ending = Ending(0, True, RankError(silent(self.members[0], self.timeout)))
        if self.ending is not None:
            raise self.ending.error

    def explain(self, failed: RuntimeError) -> BaseException:
        """The error behind a failed exchange: what another rank raised, or which rank died."""
        self._has_failed = True
        self._asked.set()
        if not self._known.wait(self.timeout + 2 * SIGN_S) or self.ending is None:
            return RankError(f"The connection to another process was lost. {RESUME} ({failed})")
        return self.ending.error

    def tell(self, error: BaseException) -> None:
        """Tell the others why this rank ends, unless it ends because of them."""
        if self.ending is None:
            record = error_json.to_json(error, f"{self.me} raised it.")
            self._own_error = json.dumps({"rank": self.rank, "is_lost": False, "error": record})
            self._asked.set()
            self._known.wait(GOODBYE_S)

    def leave(self) -> None:
        """Report the end of this rank; ranks wait for each other a little, so that all see the last messages."""
        self._left.set()
        self._asked.set()
        self.join(2 * GOODBYE_S)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Look at the store in every period, until the run is over."""
        timer = IdleTimer(self.period)
        while not self._left.is_set():
            passed = timer.passed()
            if self.ending is not None:
                self._end_if_stuck(passed)
            else:
                self._look(passed)
            self._looks += 1
            time.sleep(0.02)
            self._asked.wait(self.period)
        with suppress(RuntimeError):  # the store or its machine is lost
            self._say_goodbye()

    def _look(self, passed: float) -> None:
        try:
            self._use_store(passed)
        except RuntimeError:
            lost = self.rank != 0  # the first rank had the store, or its launcher
            why = gone(self.members[0]) if lost else f"The store of the processes' launcher is gone. {RESUME}"
            self._learn(Ending(0, lost, RankError(why)))

    def _use_store(self, passed: float) -> None:
        self._unsigned += passed
        if self._unsigned >= self.sign_period:
            self._sign()
        if self._own_error:
            self.store.compare_set("ending", "", self._own_error)
        elif (lost := self._find_lost(passed)) is not None:
            self.store.compare_set("ending", "", lost)
        if self.store.check(["ending"]):
            self._learn(read_ending(self.store.get("ending")))

    def _sign(self) -> None:
        """Write the counters of life and of progress; the second stands still only while the main thread hangs."""
        if self._steps != self._steps_told or not self._is_working:
            self._steps_told, self._progress = self._steps, self._progress + 1
        self._beats, self._unsigned = self._beats + 1, 0.0
        self.store.set(f"sign/{self.rank}", f"{self._beats} {self._progress}")

    def _find_lost(self, passed: float) -> str | None:
        """The ending, as JSON, that a dead or silent rank causes; None if there is none."""
        for member, signs in zip(self.members, self._watched, strict=True):
            if self._is_dead(member):
                return lost_json(member, gone(member))
            if signs is None:
                continue
            signs.see(*self._read_sign(member.rank), passed)
            if self._has_failed and signs.without_beat > 3 * self.sign_period:
                return lost_json(member, gone(member))
            if signs.without_step > self.timeout:
                return lost_json(member, silent(member, self.timeout))
        return None

    def _read_sign(self, rank: int) -> tuple[int, int]:
        """The counters of life and progress; (0, 0) before the rank's first sign."""
        key = f"sign/{rank}"
        beats, progress = self.store.get(key).split() if self.store.check([key]) else (0, 0)
        return int(beats), int(progress)

    def _is_dead(self, member: Member) -> bool:
        """Whether it is a process of this machine that ended without a goodbye."""
        is_here = member.machine == self.me.machine
        return is_here and not is_alive(member.pid) and not self.store.check([f"left/{member.rank}"])

    def _learn(self, ending: Ending) -> None:
        self.ending = self.ending or ending
        self._known.set()
        self._asked.clear()
        if not ending.is_lost or self.members[ending.rank].machine != self.me.machine:
            return
        if ending.rank == self.rank:
            self._exit(f"{self.me} was given up by the others, and ends.")
        with suppress(ProcessLookupError):
            os.kill(self.members[ending.rank].pid, signal.SIGCONT)  # a stopped process wakes up and ends itself

    def _end_if_stuck(self, passed: float) -> None:
        assert self.ending is not None
        self._since_end += passed
        if self._since_end > self.timeout:
            self._exit(f"{self.ending.error} {self.me} did not come back from a step after that.")

    def _say_goodbye(self) -> None:
        self.store.set(f"left/{self.rank}", "1")
        deadline = time.monotonic() + GOODBYE_S
        while time.monotonic() < deadline and not all(self._has_left(member) for member in self.members):
            time.sleep(0.01)
        lost = self.ending.rank if self.ending is not None and self.ending.is_lost else self.rank
        if lost != self.rank and self.members[lost].machine == self.me.machine:
            with suppress(ProcessLookupError):
                os.kill(self.members[lost].pid, signal.SIGKILL)

    def _has_left(self, member: Member) -> bool:
        is_here = member.machine == self.me.machine
        return self.store.check([f"left/{member.rank}"]) or (is_here and not is_alive(member.pid))

    def _exit(self, why: str) -> None:
        """End this process at once, even if its main thread hangs."""
        sys.stderr.write(f"fedlit: {why}\n")
        sys.stderr.flush()
        os._exit(RankError.exit_code)


def is_alive(pid: int) -> bool:
    """Whether a process of this machine still exists, running or stopped; a zombie does not count."""
    try:
        os.kill(pid, 0)
        return (
            sys.platform != "linux" or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        )
    except (ProcessLookupError, FileNotFoundError):
        return False


def gone(member: Member) -> str:
    """The error text for a rank that died."""
    return f"{member} is gone: it was killed or crashed, or its machine was lost. {RESUME}"


def silent(member: Member, timeout: float) -> str:
    """The error text for a rank that hangs."""
    return (
        f"{member} has given no sign for {timeout:g} s: a step hangs there, or takes longer than that "
        f"(trainer.rank_timeout). {RESUME}"
    )


def lost_json(member: Member, why: str) -> str:
    """The ending that a lost rank causes, as JSON."""
    return json.dumps({"rank": member.rank, "is_lost": True, "error": error_json.to_json(RankError(why), "")})


def read_ending(content: bytes) -> Ending:
    """The ending in a JSON text of the store."""
    record = json.loads(content)
    return Ending(record["rank"], record["is_lost"], error_json.from_json(record["error"]))
