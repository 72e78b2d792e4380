"""The fast engine: whole cohorts at once, in lanes × worker threads of one compiled program.

Each lane holds one client; when its client is done, the next one is loaded. The longest clients go first. Which lane a
client gets is a pure function of (steps, lanes, workers): with a queue it would depend on timing, and a resumed run
would not give the same bits.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.engines.base import BatchPlan, Engine, Rows, Store, TrainData, batch_rows, row_weights
from fedlit.engines.compiler import compile_program
from fedlit.engines.program import Layout, LocalProgram, Schedule
from fedlit.errors import located
from fedlit.params import Params, under_prefix, with_prefix
from fedlit.step import Phase, state_name

log = logging.getLogger("fedlit")

MAX_CAPACITY = 2048
"""Steps of a lane that are scheduled at a time; longer timelines are run in windows of this length."""


@dataclass(frozen=True)
class Job:
    """A client's place on the time axis of its lane: steps [start, end)."""

    row: int
    start: int
    end: int


def assign_lanes(steps: list[int], lanes: int) -> list[list[Job]]:
    """Longest clients first, each onto the lane that is free first (ties: the lowest lane); idle clients get none."""
    timeline: list[list[Job]] = [[] for _ in range(lanes)]
    ends = [0] * lanes
    for row in sorted((k for k in range(len(steps)) if steps[k] > 0), key=lambda k: (-steps[k], k)):
        lane = min(range(lanes), key=lambda free: (ends[free], free))
        timeline[lane].append(Job(row, ends[lane], ends[lane] + steps[row]))
        ends[lane] += steps[row]
    return timeline


@dataclass
class Task:
    """What the workers share while a cohort trains; they write different rows of `out`."""

    context: Params
    plan: Callable[[int], BatchPlan]
    store: Store
    lr: Tensor
    batch_rows: int
    clients: list[int]
    where: str
    """The round and the step method, for errors."""
    out: Tensor
    """(clients, D) what each client carries: as it starts, and, once it is done, as it ends."""

    @cached_property
    def rows(self) -> np.ndarray:
        """`out` as an array, without a copy."""
        return self.out.numpy()

    @cached_property
    def context_arrays(self) -> dict[str, np.ndarray]:
        """`context` as arrays, without a copy."""
        return {name: value.numpy() for name, value in self.context.items()}

    def for_one_thread(self) -> "Task":
        """The same data under tensor objects of its own: threads that share one fight over its reference count."""
        own = {name: value.detach() for name, value in self.store.items()}
        return replace(self, store=own, lr=self.lr.clone())


Run = Callable[[Tensor, Tensor, Tensor, Store, Schedule, Tensor, Tensor], Tensor]


class Worker:
    """One thread's lanes with their buffers; runs its share of a cohort."""

    def __init__(self, run: Run, program: LocalProgram, capacity: int, like: Tensor):
        self.run = run
        lanes, per_step, size = program.lanes, program.batches_per_step, program.batch_size
        self.carried, self.context = program.carried, program.context
        self.flat = like.new_zeros(lanes, sum(self.carried.sizes))
        self.read = like.new_zeros(lanes, sum(self.context.sizes))
        self._read_rows = self.read.numpy()
        self.schedule = Schedule(
            torch.zeros(capacity, lanes, per_step * size, dtype=torch.int64),
            like.new_zeros(capacity, lanes, per_step * size),
            torch.zeros(capacity, lanes, dtype=torch.int64),
        )
        self._arrays = [part.numpy() for part in self.schedule if part is not None]
        self.ticks = torch.split(torch.arange(capacity + 1), 1)
        self.per_step = per_step
        self.batch_size = size

    def train(self, timeline: list[list[Job]], task: Task) -> None:
        """Run every job of these lanes."""
        task = task.for_one_thread()
        capacity = len(self.schedule.rows)
        waiting = [list(reversed(jobs)) for jobs in timeline]
        plans = {job.row: task.plan(job.row) for jobs in timeline for job in jobs}
        self.flat.zero_()  # idle lanes compute too; what they hold must stay finite
        for lane in range(len(waiting)):
            self._load(waiting, lane, task)
        length = max((jobs[-1].end for jobs in timeline if jobs), default=0)
        ends = sorted({job.end for jobs in timeline for job in jobs})
        for window in range(0, length, capacity):
            self._fill(timeline, plans, window)
            now = window
            for end in [end for end in ends if window < end < window + capacity] + [min(window + capacity, length)]:
                if end > now:
                    with located(lambda: _trained_at_once(task, waiting)):
                        self.flat = self._advance(task, now - window, end - window)
                    self._swap(waiting, end, task)
                    now = end

    def _advance(self, task: Task, first: int, last: int) -> Tensor:
        return self.run(self.flat, self.read, task.lr, task.store, self.schedule, self.ticks[first], self.ticks[last])

    def _swap(self, waiting: list[list[Job]], now: int, task: Task) -> None:
        """Take out the clients that are done and load the next ones."""
        for lane, jobs in enumerate(waiting):
            if jobs and jobs[-1].end == now:
                task.rows[jobs.pop().row] = self.flat.numpy()[lane]  # numpy copies a short row ten times faster
                self._load(waiting, lane, task)

    def _load(self, waiting: list[list[Job]], lane: int, task: Task) -> None:
        if waiting[lane]:
            row = waiting[lane][-1].row
            self.flat.numpy()[lane] = task.rows[row]
            self.context.write(self._read_rows[lane], task.context_arrays, row)

    def _fill(self, timeline: list[list[Job]], plans: dict[int, BatchPlan], window: int) -> None:
        """Write the steps [window, window + capacity) of every lane into the schedule."""
        index, weights, step = self._arrays
        weights.fill(0.0)  # a lane without a client is idle
        for lane, jobs in enumerate(timeline):
            for job in jobs:
                first, last = max(job.start, window), min(job.end, window + len(step))
                if first < last:
                    here, own = slice(first - window, last - window), slice(first - job.start, last - job.start)
                    batches = slice(own.start * self.per_step, own.stop * self.per_step)
                    steps, plan = own.stop - own.start, plans[job.row]
                    index[here, lane] = plan.index[batches].reshape(steps, -1)
                    weights[here, lane] = row_weights(plan.counts[batches], self.batch_size).reshape(steps, -1)
                    step[here, lane] = np.arange(own.start, own.stop)


class VectorizedEngine(Engine):
    """Lanes × worker threads.

    Args:
        seed: seed of the run.
        rows: the data's gather function; runs inside the program.
        lanes: clients that a worker trains at the same time.
        workers: threads.
        compiled: whether the program is compiled; the eager form gives the same numbers.
        capacity: steps of a lane that are scheduled at a time.
    """

    def __init__(
        self, seed: int, rows: Rows, *, lanes: int, workers: int, compiled: bool, capacity: int = MAX_CAPACITY
    ) -> None:
        super().__init__(seed, rows)
        self.lanes, self.workers, self.compiled = lanes, workers, compiled
        self.capacity = capacity
        self._crews: dict[Phase, list[Worker]] = {}
        self._pool = ThreadPoolExecutor(max(1, workers - 1), "fedlit", torch.set_num_threads, (1,))

    def train(self, client: Client, cohort: Cohort, data: TrainData, phase: Phase) -> Cohort:
        """All clients of the cohort; those with 0 steps keep what they start with."""
        client.net.train()
        carried = self._carried(client, cohort, phase)
        layout = Layout.of(carried, stacked=True)
        context = {k: v for k, v in client.context(cohort).items() if f"state.{k}" not in carried}
        like = next(iter(cohort.received.values()))
        steps = cohort.steps.tolist()
        task = Task(
            context=context,
            plan=self.planner(client, cohort, data, phase),
            store=data.store,
            lr=like.new_tensor(cohort.lr),
            batch_rows=batch_rows(client, data),
            clients=cohort.clients,
            where=f"in round {cohort.number}, {phase.step_method}",
            out=layout.join(carried),
        )
        crew = self._crew(client, phase, layout, task)
        timeline = assign_lanes(steps, self.lanes * self.workers)
        shares = [timeline[worker :: self.workers] for worker in range(self.workers)]
        self._run(crew, shares, task)
        return self._fill_cohort(cohort, layout.split(task.out))

    def _run(self, crew: list[Worker], shares: list[list[list[Job]]], task: Task) -> None:
        """Every worker its share: in threads where the program is compiled, whose entry releases the GIL.

        The eager form runs them one after the other: functional_call borrows the module, and threads gain nothing.
        """
        if not self.compiled:
            for worker, share in zip(crew, shares, strict=True):
                worker.train(share, task)
            return
        with self.ranks.resting():  # a compiled window may last long, and no user's code runs in it
            self._run_in_threads(crew, shares, task)

    def _run_in_threads(self, crew: list[Worker], shares: list[list[list[Job]]], task: Task) -> None:
        jobs = [
            self._pool.submit(worker.train, share, task) for worker, share in zip(crew[1:], shares[1:], strict=True)
        ]
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            crew[0].train(shares[0], task)  # the calling thread works too: one hand-over less
        finally:
            wait(jobs)  # nobody trains on when the round has failed or was stopped
            torch.set_num_threads(before)
        for job in jobs:
            job.result()

    def _carried(self, client: Client, cohort: Cohort, phase: Phase) -> Params:
        """Stacked: what each client carries from step to step, as it is before the first."""
        start, buffers = cohort.start_of(phase.start)
        _, memory = self.memory_of(client, cohort, phase, start)
        zeros = torch.zeros_like(cohort.sizes, dtype=next(iter(start.values())).dtype)
        return {
            **with_prefix("params", start),
            **with_prefix("memory", memory),
            **with_prefix("buffers", buffers),
            **with_prefix("state", client.carried_rows(cohort)),
            "loss": zeros,
        }

    def _fill_cohort(self, cohort: Cohort, carried: Params) -> Cohort:
        cohort.params = under_prefix("params", carried)
        cohort.buffers = under_prefix("buffers", carried)
        cohort.losses = carried["loss"] / cohort.steps  # 0/0 = NaN where a client took no step
        cohort.memory = under_prefix("memory", carried)
        cohort.state |= {state_name(name): rows for name, rows in under_prefix("state", carried).items()}
        return cohort

    def _crew(self, client: Client, phase: Phase, carried: Layout, task: Task) -> list[Worker]:
        """The workers of a phase; built, and their program compiled, in the first round."""
        if phase not in self._crews:
            context = Layout.of(task.context, stacked=True)
            program = LocalProgram(client, phase, self.rows, self.lanes, carried, context, task.batch_rows)
            program.pulse = self.ranks.pulse
            crew = [Worker(program.eager, program, self.capacity, task.out) for _ in range(self.workers)]
            if self.compiled:
                log.info("compiling the local training, once: 10 s for a small net, up to two minutes for a deep one")
                where = f"{task.where}, while it was traced and compiled for all clients"
                with self.ranks.resting(), located(where):
                    run = compiled_form(program, crew[0], task)
                for worker in crew:
                    worker.run, worker.context = run, program.context_read
            self._crews[phase] = crew
        return self._crews[phase]


def _trained_at_once(task: Task, waiting: list[list[Job]]) -> str:
    """The place of an error in lanes that run together."""
    clients = sorted(task.clients[jobs[-1].row] for jobs in waiting if jobs)
    return f"{task.where} of {'client' if len(clients) == 1 else 'one of the clients'} {', '.join(map(str, clients))}"


def compiled_form(program: LocalProgram, worker: Worker, task: Task) -> Run:
    """The program compiled for this worker's shapes, with the signature of its eager form."""
    names = list(task.store)
    tensors = [task.store[name] for name in names]
    ticks = (worker.ticks[0], worker.ticks[1])
    schedule = [part for part in worker.schedule if part is not None]
    examples = [worker.flat, worker.read, task.lr, *tensors, *schedule, *ticks]
    compiled = compile_program(program.traceable(task.store, examples), examples)

    def run(
        flat: Tensor, context: Tensor, lr: Tensor, store: Store, schedule: Schedule, t0: Tensor, t1: Tensor
    ) -> Tensor:
        (moved,) = compiled(flat, context, lr, *(store[name] for name in names), *schedule, t0, t1)
        return moved  # type: ignore[no-any-return]  # the compiler's output is untyped

    return run
