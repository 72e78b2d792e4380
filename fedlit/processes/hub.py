"""What the processes of a run tell each other: words at meetings, signs of life, and why one of them ends.

The first rank runs a hub; every rank has a link to it, a connection with a thread of its own. A process that dies
closes its connection, so its death is known at once; one that hangs gives no more signs, and is given up after a while.
torch's own store knows neither: it would let everybody wait.
"""

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from fedlit.errors import FedlitError, RankError

RESUME = "The last checkpoint is good: continue with --resume."
KNOWN_S = 2.0
"""How long a rank that ends waits for the others to know it."""


@dataclass(frozen=True)
class Member:
    """A process of the run."""

    rank: int
    pid: int
    host: str

    def __str__(self) -> str:
        return f"Rank {self.rank} (process {self.pid} on {self.host})"


class Hub(threading.Thread):
    """Passes words on once all have spoken, and tells everybody who is lost.

    Args:
        listener: where the links of all ranks connect.
        members: the processes of the run, by rank.
        timeout: seconds without a sign after which a rank is given up.
    """

    def __init__(self, listener: Listener, members: Sequence[Member], timeout: float) -> None:
        super().__init__(name="fedlit-hub", daemon=True)
        self.listener, self.members, self.timeout = listener, members, timeout
        self._links: dict[Connection, int] = {}
        self._silent: dict[int, float] = {}
        self._words: dict[int, bytes] = {}
        self._ended = False

    def run(self) -> None:
        """Until every rank has said goodbye."""
        while len(self._links) < len(self.members):
            with suppress(AuthenticationError):  # a stranger
                link = self.listener.accept()
                self._links[link] = link.recv()
        self._silent = dict.fromkeys(self._links.values(), 0.0)
        period = period_of(self.timeout)
        clock, told = Clock(period), time.monotonic()
        while self._links:
            for link in self._speaking(period):
                self._hear(link)
            if time.monotonic() - told >= period:
                told = time.monotonic()
                self._tell("beat", None)
            self._give_up_silent_ones(clock.passed())
        self.listener.close()

    def _speaking(self, period: float) -> list[Connection]:
        """Links that have something to say, waited for at most so long."""
        ready = wait(list(self._links), period)
        return [link for link in self._links if link in ready]

    def _hear(self, link: Connection) -> None:
        rank = self._links[link]
        try:
            kind, content = link.recv()
        except (OSError, EOFError):
            del self._links[link]
            self._end(pickle.dumps(RankError(gone(self.members[rank]))), rank)
            return
        self._silent[rank] = 0.0
        if kind == "word":
            self._words[rank] = content
            if len(self._words) == len(self.members):
                words, self._words = [self._words[own] for own in range(len(self.members))], {}
                self._tell("words", words)
        elif kind == "ended":
            self._end(content, rank)
        elif kind == "bye":
            del self._links[link]
            link.close()

    def _give_up_silent_ones(self, passed: float) -> None:
        for rank in self._links.values():
            self._silent[rank] += passed
            if self._silent[rank] > self.timeout and not self._ended:
                self._end(pickle.dumps(RankError(silent(self.members[rank], self.timeout))), rank)
                return

    def _end(self, error: bytes, rank: int) -> None:
        """Tell everybody; the first reason counts. It is only passed on: its class may not be known here."""
        if not self._ended:
            self._ended = True
            self._tell("ended", (rank, error))

    def _tell(self, kind: str, content: Any) -> None:
        for link in list(self._links):
            with suppress(OSError):  # its end is heard when its turn comes
                link.send((kind, content))


class Link(threading.Thread):
    """One rank's connection to the hub.

    Args:
        address: the hub's.
        key: what only ranks of this run know.
        members: the processes of the run, by rank.
        rank: this one.
        timeout: seconds without a sign after which a rank is given up.
    """

    def __init__(self, address: Any, key: bytes, members: Sequence[Member], rank: int, timeout: float) -> None:
        super().__init__(name="fedlit-link", daemon=True)
        self.members, self.rank, self.timeout = members, rank, timeout
        self.progress = 0
        """Signs of progress so far."""
        self.ended: tuple[int, BaseException] | None = None
        """Which rank ended the run, and why."""
        self._demanding = False
        self._words: list[bytes] | None = None
        self._changed = threading.Condition()
        self._left = False
        self._sending = threading.Lock()
        self._connection = Client(address, authkey=key)
        self._connection.send(rank)

    # ---- the main thread ---------------------------------------------------------------------------------------------

    def meet(self, word: bytes) -> list[bytes]:
        """Wait until all ranks have said their word; returns all of them, by rank."""
        self._send("word", word)
        with self._changed:
            while self._words is None and self.ended is None:
                self._changed.wait(1.0)  # so that Ctrl-C is heard
            words, self._words = self._words, None
        if words is None:
            self.check()
        assert words is not None
        return words

    def check(self) -> None:
        """Raise what ended the run on another rank."""
        if self.ended is not None:
            raise self.ended[1]

    def check_soon(self) -> None:
        """The same, where an exchange has failed: the hub may not know yet of whom."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended is not None, self.timeout)
        self.check()

    @contextmanager
    def demanding(self, asked: bool) -> Iterator[None]:
        """Whether a sign of progress is expected from time to time, while this lasts; else it is enough to be alive."""
        before, self._demanding = self._demanding, asked
        try:
            yield
        finally:
            self._demanding = before

    def leave(self, error: BaseException | None = None) -> None:
        """Say goodbye, and why; the others get the error too."""
        self._left = True
        if error is not None and self.ended is None:
            self._send("ended", pickle.dumps(portable(error, f"{self.members[self.rank]} raised it.")))
        self._send("bye", None)
        self.join(KNOWN_S)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Hear what the hub tells, give signs of life, and end the process where its main thread does not."""
        period, seen = period_of(self.timeout), -1
        clock, told = Clock(period), time.monotonic()
        unheard = since_end = 0.0
        while not self._left:
            try:
                if self._connection.poll(period):
                    self._hear(*self._connection.recv())
                    unheard = 0.0
            except (OSError, EOFError):
                if self._left:
                    return
                self._end(0, RankError(gone(self.members[0])))
                time.sleep(period)
            now = time.monotonic()
            if now - told >= period and (self.progress != seen or not self._demanding):
                told, seen = now, self.progress
                self._send("beat", None)
            passed = clock.passed()
            unheard += passed
            since_end += passed if self.ended is not None else 0.0
            if unheard > self.timeout and self.rank != 0:  # the hub of the first rank is its own
                self._end(0, RankError(silent(self.members[0], self.timeout)))
            if since_end > self.timeout:
                self.exit(f"{self.members[self.rank]} did not come back from a step after the run had ended.")

    def _hear(self, kind: str, content: Any) -> None:
        if kind == "words":
            with self._changed:
                self._words = content
                self._changed.notify_all()
        elif kind == "ended":
            rank, error = content
            self._end(rank, unpacked(error, self.members[rank]))

    def _end(self, rank: int, error: BaseException) -> None:
        if rank == self.rank and not self._left:
            self.exit(f"{self.members[rank]} was given up by the others, and ends.")
        with self._changed:
            self.ended = self.ended or (rank, error)
            self._changed.notify_all()

    def _send(self, kind: str, content: Any) -> None:
        with self._sending, suppress(OSError):  # a hub that is gone is noticed by the thread
            self._connection.send((kind, content))

    def exit(self, why: str) -> None:
        """End this process, whatever its main thread does."""
        sys.stderr.write(f"fedlit: {why}\n")
        sys.stderr.flush()
        os._exit(RankError.exit_code)


class Clock:
    """Time in which this process could have heard something: while it was stopped or starved itself, nobody was silent.

    Args:
        period: how often it is read, in seconds; what is beyond twice that was not this process's.
    """

    def __init__(self, period: float) -> None:
        self.most = 2 * period
        self._read = time.monotonic()

    def passed(self) -> float:
        """Seconds since it was read last."""
        now = time.monotonic()
        passed, self._read = min(now - self._read, self.most), now
        return passed


def period_of(timeout: float) -> float:
    """Seconds between signs of life."""
    return min(1.0, timeout / 5)


def gone(member: Member) -> str:
    """What is said of a rank that is dead."""
    return f"{member} is gone: it was killed or crashed, or its machine was lost. {RESUME}"


def silent(member: Member, timeout: float) -> str:
    """What is said of a rank that hangs."""
    return (
        f"{member} has given no sign for {timeout:g} s: a step hangs there, or takes longer than that "
        f"(trainer.rank_timeout). {RESUME}"
    )


def unpacked(error: bytes, member: Member) -> BaseException:
    """The error of another rank."""
    try:
        found: BaseException = pickle.loads(error)
    except Exception as unknown:  # its class is not known here
        return RankError(f"{member} failed with an error that cannot be shown here ({unknown}). Look at its output.")
    return found


def portable(error: BaseException, where: str = "Another process raised it.") -> BaseException:
    """The error as another process can raise it, with the place where it came from."""
    told = "".join(traceback.format_exception(error))
    try:
        copy: BaseException = pickle.loads(pickle.dumps(error))
    except Exception:  # any class may refuse to be pickled, each in its own way
        copy = FedlitError(f"{type(error).__name__}: {error}")
    if not isinstance(error, FedlitError):
        copy.add_note(f"{where}\n{told}")
    return copy
