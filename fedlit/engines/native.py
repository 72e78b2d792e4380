"""Lanes without the interpreter: C++ draws mini-batches and swaps clients (`native.cpp`).

On a small net the Python around the steps takes as long as the steps, and the interpreter's lock makes worker threads
do it one after the other. The bits are the same: the program is the same, and C++ draws as NumPy does (checked once).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedlit.engines.base import BatchPlan, Planner, Store, plan_batches, row_weights, threads
from fedlit.engines.compiler import missing_operators
from fedlit.engines.lanes import CohortWork, LaneJob, LaneProgram, Worker
from fedlit.engines.program import LocalProgram
from fedlit.engines.progress import TrainingProgress
from fedlit.engines.vectorized import CompiledForm, VectorizedEngine
from fedlit.errors import located
from fedlit.keys import Purpose, generator

SOURCE = Path(__file__).with_suffix(".cpp")
PATIENCE_S = 0.1
"""After this time C++ returns at the next client's end: Ctrl-C and the progress bar need the interpreter."""

_LIBRARY = torch.library.Library("fedlit_lanes", "DEF")  # type: ignore[no-untyped-call]  # torch's
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "plan(Tensor jobs, Tensor rows, Tensor(a!) index, Tensor(b!) weights, Tensor(c!) step, int[] draws, int window, "
    "int until) -> ()"
)
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "train(int entry, Tensor(a!)[] flats, Tensor(b!)[] reads, Tensor(c!)[] rest, Tensor[] jobs, Tensor(d!) out, "
    "Tensor[] context, int[] places, Tensor rows, int[] draws, bool plans, int[] now, int[] until, float seconds) "
    "-> int[]"
)


@cache
def missing_lanes() -> str | None:
    """Why C++ cannot drive the lanes on this machine, or None."""
    reason = missing_operators(SOURCE)
    return reason or (None if _draws_as_numpy() else "this NumPy shuffles in another way")


def _draws_as_numpy() -> bool:
    """Whether C++ draws the same plan as NumPy, whose draws may change in a new release."""
    rows = np.arange(100, 137)
    plan = plan_batches(generator(7, Purpose.BATCHES, round=3, client=5, index=1), rows, 12, 8, 5)
    index, weights = torch.zeros(12, 1, 8, dtype=torch.int64), torch.zeros(12, 1, 8, dtype=torch.float64)
    job, step = torch.tensor([[0, 0, 0, 12, 0, len(rows), 5, 3 << 32 | 5]]), torch.zeros(12, 1, dtype=torch.int64)
    draws = [7, 1, Purpose.BATCHES, 8]
    torch.ops.fedlit_lanes.plan(job, torch.from_numpy(rows), index, weights, step, draws, 0, 12)
    same_rows = np.array_equal(index[:, 0].numpy(), plan.index)
    return same_rows and np.array_equal(weights[:, 0].numpy(), row_weights(plan.counts, 8))


class NativeWorker(Worker):
    """One thread's lanes, whose clients are planned and swapped in C++."""

    def __init__(self, run: LaneProgram, program: LocalProgram, capacity: int, like: Tensor) -> None:
        super().__init__(run, program, capacity, like)
        self._clock = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        self._store: Store | None = None
        self._own: Store = {}

    @property
    def entry(self) -> int | None:
        """The address of its program; None if C++ cannot run it."""
        known = isinstance(self.run, CompiledForm) and not self.context.as_bytes
        return self.run.entry if known else None  # type: ignore[attr-defined]  # a CompiledForm's

    def train(self, timeline: list[list[LaneJob]], work: CohortWork) -> None:
        """Run every job of these lanes."""
        if self.entry is None:
            super().train(timeline, work)
            return
        finish(Share(self, timeline, work), work)

    def rest(self, work: CohortWork) -> list[Tensor]:
        """The program's inputs beside lanes, as this worker's own tensor objects (`CohortWork.for_one_thread`)."""
        assert isinstance(self.run, CompiledForm)
        if self._store is not work.store:
            self._store, self._own = work.store, work.for_one_thread().store
        return self.run.rest(work.lr.clone(), self._own, self.schedule, *self._clock)

    def pieces(self, work: CohortWork) -> dict[int, Tensor]:
        """First column in a lane's row -> the clients' rows that steps read there."""
        context, dtype = work.context, self.context_rows.dtype
        return {columns.start: in_rows(context[name].to(dtype)) for name, columns in self.context.places.items()}

    def fill(self, timeline: list[list[LaneJob]], plans: "Plans", window: int) -> None:
        """Write a window of the schedule that Python has drawn."""
        self._fill(timeline, plans.batches, plans.keys, window)


@dataclass(frozen=True)
class Plans:
    """Row -> mini-batches and keys of masks, if Python draws them."""

    batches: dict[int, BatchPlan]
    keys: dict[int, np.ndarray]


class Share:
    """A worker's part of a cohort, and how much of it is done.

    Args:
        worker: the worker.
        timeline: the jobs of each of its lanes.
        work: what all workers share.
    """

    def __init__(self, worker: NativeWorker, timeline: list[list[LaneJob]], work: CohortWork) -> None:
        self.worker, self.timeline = worker, timeline
        self.table = table(timeline, work.plan)
        self.jobs = torch.from_numpy(self.table)
        self.rest = worker.rest(work)
        self.now, self.length = 0, int(self.table[:, 3].max(initial=0))
        self.plans: Plans | None = None
        if work.plan.vary is not None or worker.draws:  # rows are augmented, or steps have masks
            rows = self.table[:, 1].tolist()
            keys = {row: work.keys(row) for row in rows} if worker.draws else {}
            self.plans = Plans({row: work.plan(row) for row in rows}, keys)
        worker.carried_rows.zero_()  # idle lanes compute too; what they hold must stay finite

    @property
    def is_done(self) -> bool:
        """Whether all its clients are done."""
        return self.now >= self.length

    def until(self) -> int:
        """The step up to which C++ needs no Python; fills the schedule if Python draws it."""
        if self.plans is None:
            return self.length
        capacity = len(self.worker.schedule.rows)
        if self.now % capacity == 0:
            self.worker.fill(self.timeline, self.plans, self.now)
        return min(self.length, (self.now // capacity + 1) * capacity)

    def advance_to(self, now: int, progress: TrainingProgress) -> None:
        """Record that C++ has reached this step."""
        begins, ends = self.table[:, 2], self.table[:, 3]
        steps = np.minimum(ends, now) - np.maximum(begins, self.now)
        done = int(np.count_nonzero((ends > self.now) & (ends <= now)))
        progress.count(clients=done, steps=int(steps.clip(0).sum()))
        self.now = now


def advance(shares: Sequence[Share], work: CohortWork) -> None:
    """Train the shares in C++ threads, each to its end or, after PATIENCE_S, to a client's end."""
    workers, planner = [share.worker for share in shares], work.plan
    pieces = workers[0].pieces(work)
    until = [share.until() for share in shares]
    with located(lambda: _unfinished(shares, work)):
        reached = torch.ops.fedlit_lanes.train(
            workers[0].entry,
            [worker.carried_rows for worker in workers],
            [worker.context_rows for worker in workers],
            [tensor for share in shares for tensor in share.rest],
            [share.jobs for share in shares],
            work.out,
            list(pieces.values()),
            list(pieces),
            planner.rows,
            [planner.seed, planner.stream, Purpose.BATCHES, planner.size],
            shares[0].plans is None,
            [share.now for share in shares],
            until,
            PATIENCE_S,
        )
    for share, now in zip(shares, reached, strict=True):
        share.advance_to(now, work.progress)


class NativeEngine(VectorizedEngine):
    """The vectorized engine with native workers: a short round is one call of C++ for all workers."""

    worker = NativeWorker
    _is_long = False
    """Whether the last round was so long that workers should not wait for each other before its end."""

    def _say_who_drives(self, form: CompiledForm) -> None:
        """Warn also if the entry of torch's programs is not found."""
        if form.entry is None:
            self.why_python = "the entry of torch's compiled programs is not found under the name that it had"
        super()._say_who_drives(form)

    def _run_in_threads(self, crew: Sequence[Worker], shares: list[list[list[LaneJob]]], work: CohortWork) -> None:
        workers = [worker for worker in crew if isinstance(worker, NativeWorker) and worker.entry is not None]
        if len(workers) < len(crew):
            super()._run_in_threads(crew, shares, work)
            return
        parts = [Share(worker, share, work) for worker, share in zip(workers, shares, strict=True)]
        began = time.monotonic()
        if not self._is_long:
            with threads(1):
                advance(parts, work)
        left = [share for share in parts if not share.is_done]
        if left:
            self._in_threads([partial(finish, share, work) for share in left])
        self._is_long = time.monotonic() - began > PATIENCE_S


def finish(share: Share, work: CohortWork) -> None:
    """Train a share to its end."""
    while not share.is_done:
        advance([share], work)


def table(timeline: list[list[LaneJob]], planner: Planner) -> np.ndarray:
    """(jobs, 8) lane, row, start, end; first row, number of rows, batches of one pass over them, key of the draws."""
    jobs = np.empty((sum(map(len, timeline)), 8), dtype=np.int64)
    if len(jobs):
        jobs[:, :4] = [(lane, job.row, job.start, job.end) for lane, queue in enumerate(timeline) for job in queue]
        jobs[:, 4:] = planner.draws[jobs[:, 1]]
    return jobs


def in_rows(value: Tensor) -> Tensor:
    """Stacked rows, each contiguous in memory."""
    return value if value.dim() == 1 or value[0].is_contiguous() else value.contiguous()


def _unfinished(shares: Sequence[Share], work: CohortWork) -> str:
    """The clients that were not done when an error arose."""
    rows = [row for share in shares for row in share.table[share.table[:, 3] > share.now, 1]]
    return f"{work.where} of one of the clients {', '.join(map(str, sorted(work.clients[row] for row in rows)))}"
