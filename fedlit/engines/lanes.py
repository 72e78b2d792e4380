"""Lanes: the slots of a batched program, each of which trains clients one after another; `Worker`: one thread's lanes.

A client's lane is a pure function of the steps and the number of lanes: with a queue it would depend on timing, and a
resumed run would not give the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from fedlit.engines.base import BatchPlan, Planner, Store, row_weights
from fedlit.engines.program import LocalProgram, Schedule
from fedlit.engines.progress import TrainingProgress
from fedlit.errors import located
from fedlit.params import Params
from fedlit.ranks import longest_first


@dataclass(frozen=True)
class LaneJob:
    """A client's steps [start, end) on the time axis of its lane; `row` is its row in the cohort."""

    row: int
    start: int
    end: int


def assign_lanes(steps: list[int], lanes: int) -> list[list[LaneJob]]:
    """The jobs of each lane: clients with steps, the longest first, each on the lane that is free first."""
    timeline = []
    for rows in longest_first(steps, lanes):
        ends = accumulate(steps[row] for row in rows)
        jobs = [LaneJob(row, end - steps[row], end) for row, end in zip(rows, ends, strict=True)]
        timeline.append([job for job in jobs if job.end > job.start])
    return timeline


@dataclass
class CohortWork:
    """The work of a cohort, which all workers share; they write different rows of `out`."""

    context: Params
    """What steps read and do not change, by name."""
    plan: Planner
    keys: Callable[[int], np.ndarray]
    """k -> (steps,) dropout keys of the k-th client."""
    store: Store
    lr: Tensor
    batch_rows: int
    clients: list[int]
    where: str
    """The round and the step method, for errors."""
    out: Tensor
    """(clients, D) the carried numbers of each client: the initial ones, and, once it is done, the final ones."""
    progress: TrainingProgress

    @cached_property
    def rows(self) -> np.ndarray:
        """`out` as an array, without a copy."""
        return self.out.numpy()

    @cached_property
    def context_arrays(self) -> dict[str, np.ndarray]:
        """`context` as arrays, without a copy."""
        return {name: value.numpy() for name, value in self.context.items()}

    def for_one_thread(self) -> "CohortWork":
        """The same data as new tensor objects: threads that share an object slow each other down by its refcount."""
        store = {name: value.detach() for name, value in self.store.items()}
        return replace(self, store=store, lr=self.lr.clone())


LaneProgram = Callable[[Tensor, Tensor, Tensor, Store, Schedule, Tensor, Tensor], Tensor]
"""(carried rows, context rows, lr, store, schedule, first step, last step) -> the new carried rows."""


class Worker:
    """The lanes of one thread, with their buffers; trains its share of a cohort."""

    def __init__(self, run: LaneProgram, program: LocalProgram, capacity: int, like: Tensor):
        self.run = run
        lanes, per_step, size = program.lanes, program.batches_per_step, program.batch_size
        self.carried, self.context = program.carried, program.context
        self.carried_rows = like.new_zeros(lanes, sum(self.carried.sizes))
        self.context_rows = like.new_zeros(lanes, sum(self.context.sizes))
        self.schedule = Schedule(
            like.new_zeros(capacity, lanes, per_step * size, dtype=torch.int64),
            like.new_zeros(capacity, lanes, per_step * size),
            like.new_zeros(capacity, lanes, dtype=torch.int64),
            like.new_zeros(capacity, lanes, dtype=torch.int64),
        )
        self.draws = program.draws
        # 0 to capacity, each as a tensor: the program takes its steps so
        self.ticks = torch.split(torch.arange(capacity + 1), 1)
        self.per_step = per_step
        self.batch_size = size

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        """The schedule as arrays, without a copy; plans are written into them."""
        return [part.numpy() for part in self.schedule if part is not None]

    @cached_property
    def _context_array(self) -> np.ndarray:
        return self.context_rows.numpy()

    def train(self, timeline: list[list[LaneJob]], work: CohortWork) -> None:
        """Run all jobs of these lanes."""
        work = work.for_one_thread()
        capacity = len(self.schedule.rows)
        waiting = [list(reversed(jobs)) for jobs in timeline]
        plans = {job.row: work.plan(job.row) for jobs in timeline for job in jobs}
        keys = {row: work.keys(row) for row in plans} if self.draws else {}
        self.carried_rows.zero_()  # idle lanes compute too; their numbers must stay finite
        for lane in range(len(waiting)):
            self._load(waiting, lane, work)
        length = max((jobs[-1].end for jobs in timeline if jobs), default=0)
        ends = sorted({job.end for jobs in timeline for job in jobs})
        for window in range(0, length, capacity):
            self._fill(timeline, plans, keys, window)
            now = window
            jobs_end = [end for end in ends if window < end < window + capacity]
            for end in [*jobs_end, min(window + capacity, length)]:  # the last is the end of the window
                if end > now:
                    with located(lambda: _error_place(work, waiting)):
                        self.carried_rows = self._advance(work, now - window, end - window)
                    work.progress.count(steps=(end - now) * sum(1 for jobs in waiting if jobs))
                    self._swap(waiting, end, work)
                    now = end

    def _advance(self, work: CohortWork, first: int, last: int) -> Tensor:
        return self.run(
            self.carried_rows,
            self.context_rows,
            work.lr,
            work.store,
            self.schedule,
            self.ticks[first],
            self.ticks[last],
        )

    def _swap(self, waiting: list[list[LaneJob]], now: int, work: CohortWork) -> None:
        """Copy out the clients that are done, and load the next ones."""
        for lane, jobs in enumerate(waiting):
            if jobs and jobs[-1].end == now:
                self._take(lane, jobs.pop().row, work)
                work.progress.count(clients=1)
                self._load(waiting, lane, work)

    def _load(self, waiting: list[list[LaneJob]], lane: int, work: CohortWork) -> None:
        if waiting[lane]:
            self._put(lane, waiting[lane][-1].row, work)

    def _take(self, lane: int, row: int, work: CohortWork) -> None:
        """Copy a lane's numbers to its client's row."""
        work.rows[row] = self.carried_rows.numpy()[lane]  # numpy copies a short row ten times faster

    def _put(self, lane: int, row: int, work: CohortWork) -> None:
        """Copy a client's row, and what its steps read, into a lane."""
        self.carried_rows.numpy()[lane] = work.rows[row]
        self.context.write(self._context_array[lane], work.context_arrays, row)

    def _fill(
        self, timeline: list[list[LaneJob]], plans: dict[int, BatchPlan], keys: dict[int, np.ndarray], window: int
    ) -> None:
        """Write the steps [window, window + capacity) of every lane into the schedule."""
        index, weights, step, key = self.arrays
        weights.fill(0.0)  # weight 0 marks an idle step
        for lane, jobs in enumerate(timeline):
            for job in jobs:
                first, last = max(job.start, window), min(job.end, window + len(step))
                if first < last:
                    in_window, in_job = slice(first - window, last - window), slice(first - job.start, last - job.start)
                    batches = slice(in_job.start * self.per_step, in_job.stop * self.per_step)
                    steps, plan = in_job.stop - in_job.start, plans[job.row]
                    index[in_window, lane] = plan.index[batches].reshape(steps, -1)
                    weights[in_window, lane] = row_weights(plan.counts[batches], self.batch_size).reshape(steps, -1)
                    step[in_window, lane] = np.arange(in_job.start, in_job.stop)
                    if keys:
                        key[in_window, lane] = keys[job.row][in_job]


def _error_place(work: CohortWork, waiting: list[list[LaneJob]]) -> str:
    """The round, the step method and all clients that were running, for an error: lanes run together."""
    clients = sorted(work.clients[jobs[-1].row] for jobs in waiting if jobs)
    return f"{work.where} of {'client' if len(clients) == 1 else 'one of the clients'} {', '.join(map(str, clients))}"
