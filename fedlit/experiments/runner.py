"""Runs jobs, some at a time: a failing one does not stop the others, and a stop loses nothing."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedlit.experiments.fork_server import IMPORTED, ForkServer
from fedlit.experiments.jobs import Job, JobResult, Process, share_cores, start
from fedlit.experiments.progress import Board
from fedlit.results.lock import FolderLock

_SECONDS_BETWEEN_LOOKS = 0.1


class Runner:
    """Runs what an iterator gives, `slots` at a time; `judge` records each end, and may see it otherwise.

    The next job is asked for when there is room for it, so it may depend on what was judged before; None in its place
    means that it depends on what still runs, and is asked for again.
    """

    def __init__(self, slots: int, board: Board, judge: Callable[[JobResult], JobResult]) -> None:
        self.seats = [ForkServer(cores) for cores in share_cores(slots)]
        self.board, self.judge = board, judge
        self.running: dict[int, Process] = {}
        self.asked_to_stop = 0
        self._next: Job | None = None

    def run(self, jobs: Iterator[Job | None]) -> bool:
        """Whether all were run; False if Ctrl-C or SIGTERM came, after the running ones have finished their round."""
        stops = 0
        with self.board, told_to_stop(self):
            try:
                while self._fill(jobs) or self.running:
                    if self.asked_to_stop > stops:
                        stops = self.asked_to_stop
                        self._stop(at_once=stops > 1)
                    self._collect()
                    self.board.show(list(self.running.values()))
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
            finally:
                self._end()
        return not self.asked_to_stop

    def _fill(self, jobs: Iterator[Job | None]) -> bool:
        """Start jobs in the free slots; whether there is one more to be started."""
        for slot, seat in enumerate(self.seats):
            if self.asked_to_stop:
                return False
            if slot in self.running:
                continue
            if self._next is None:
                try:
                    self._next = next(jobs)
                except StopIteration:
                    return False
            if self._next is None:
                return True
            process = start(self._next, seat)
            if process is None:
                self.board.waits_for(self._next)
                return True
            self.running[slot], self._next = process, None
        return True

    def _collect(self) -> None:
        for slot, process in list(self.running.items()):
            outcome = process.outcome(stop_request=self.asked_to_stop > 0)
            if outcome is not None:
                del self.running[slot]
                self.board.ended(self.judge(outcome), process.share_at_start)

    def _stop(self, *, at_once: bool) -> None:
        self.board.stop_request(len(self.running), at_once=at_once)
        for process in self.running.values():
            if at_once:
                process.kill()
            else:
                process.stop()

    def _end(self) -> None:
        """Leave no child behind when an error ends the runner."""
        for process in self.running.values():
            process.stop()
        for process in self.running.values():
            process.wait()
        for seat in self.seats:
            seat.close()
        IMPORTED.close()


@contextmanager
def told_to_stop(runner: Runner) -> Iterator[None]:
    """Count Ctrl-C and SIGTERM instead of dying of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def count(signum: int, frame: FrameType | None) -> None:
        runner.asked_to_stop += 1

    before = {which: signal.signal(which, count) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep a folder of runs to this process: two that run the same jobs would spoil each other's records."""
    lock = FolderLock(folder, "--out DIR")
    lock.take()
    try:
        yield
    finally:
        lock.give_back()
