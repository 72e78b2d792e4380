"""The fast engine: whole cohorts at once, in lanes × worker threads of one compiled program.

Each lane holds one client; when its client is done, the next one is loaded. The longest clients go first. Which lane a
client gets is a pure function of (steps, lanes, workers): with a queue it would depend on timing, and a resumed run
would not give the same bits.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.step import Phase, state_name
from fedlit.engines.base import (
    BatchPlan,
    Engine,
    Planner,
    Rows,
    Solved,
    Store,
    TrainData,
    batch_rows,
    row_weights,
    threads,
)
from fedlit.engines.compiler import Loops, compile_program, entry_address
from fedlit.engines.program import Compiles, FlatLayout, LocalProgram, Schedule, channels_last
from fedlit.engines.progress import TrainingProgress
from fedlit.errors import located
from fedlit.params import Params, at_least_float32, under_prefix, with_prefix
from fedlit.ranks import longest_first

log = logging.getLogger("fedlit")

MAX_CAPACITY = 2048
"""Steps of a lane that are scheduled at a time; longer timelines are run in windows of this length."""


@dataclass(frozen=True)
class LaneJob:
    """A client's place on the time axis of its lane: steps [start, end)."""

    row: int
    start: int
    end: int


def assign_lanes(steps: list[int], lanes: int) -> list[list[LaneJob]]:
    """Longest clients first, each onto the lane that is free first (ties: the lowest lane); idle clients get none."""
    timeline = []
    for rows in longest_first(steps, lanes):
        ends = accumulate(steps[row] for row in rows)
        jobs = [LaneJob(row, end - steps[row], end) for row, end in zip(rows, ends, strict=True)]
        timeline.append([job for job in jobs if job.end > job.start])
    return timeline


@dataclass
class CohortWork:
    """What the workers share while a cohort trains; they write different rows of `out`."""

    context: Params
    plan: Planner
    keys: Callable[[int], np.ndarray]
    """k -> (steps,) the k-th client's keys of masks."""
    store: Store
    lr: Tensor
    batch_rows: int
    clients: list[int]
    where: str
    """The round and the step method, for errors."""
    out: Tensor
    """(clients, D) what each client carries: as it starts, and, once it is done, as it ends."""
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
        """The same data under tensor objects of its own: threads that share one fight over its reference count."""
        own = {name: value.detach() for name, value in self.store.items()}
        return replace(self, store=own, lr=self.lr.clone())


LaneProgram = Callable[[Tensor, Tensor, Tensor, Store, Schedule, Tensor, Tensor], Tensor]


class Worker:
    """One thread's lanes with their buffers; runs its share of a cohort."""

    def __init__(self, run: LaneProgram, program: LocalProgram, capacity: int, like: Tensor):
        self.run = run
        lanes, per_step, size = program.lanes, program.batches_per_step, program.batch_size
        self.carried, self.context = program.carried, program.context
        self.flat = like.new_zeros(lanes, sum(self.carried.sizes))
        self.read = like.new_zeros(lanes, sum(self.context.sizes))
        self.schedule = Schedule(
            like.new_zeros(capacity, lanes, per_step * size, dtype=torch.int64),
            like.new_zeros(capacity, lanes, per_step * size),
            like.new_zeros(capacity, lanes, dtype=torch.int64),
            like.new_zeros(capacity, lanes, dtype=torch.int64),
        )
        self.draws = program.draws
        self.ticks = torch.split(torch.arange(capacity + 1), 1)
        self.per_step = per_step
        self.batch_size = size

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        """The schedule as arrays, without a copy: what plans are written into."""
        return [part.numpy() for part in self.schedule if part is not None]

    @cached_property
    def _read_rows(self) -> np.ndarray:
        return self.read.numpy()

    def train(self, timeline: list[list[LaneJob]], task: CohortWork) -> None:
        """Run every job of these lanes."""
        task = task.for_one_thread()
        capacity = len(self.schedule.rows)
        waiting = [list(reversed(jobs)) for jobs in timeline]
        plans = {job.row: task.plan(job.row) for jobs in timeline for job in jobs}
        keys = {row: task.keys(row) for row in plans} if self.draws else {}
        self.flat.zero_()  # idle lanes compute too; what they hold must stay finite
        for lane in range(len(waiting)):
            self._load(waiting, lane, task)
        length = max((jobs[-1].end for jobs in timeline if jobs), default=0)
        ends = sorted({job.end for jobs in timeline for job in jobs})
        for window in range(0, length, capacity):
            self._fill(timeline, plans, keys, window)
            now = window
            for end in [end for end in ends if window < end < window + capacity] + [min(window + capacity, length)]:
                if end > now:
                    with located(lambda: _trained_at_once(task, waiting)):
                        self.flat = self._advance(task, now - window, end - window)
                    task.progress.count(steps=(end - now) * sum(1 for jobs in waiting if jobs))
                    self._swap(waiting, end, task)
                    now = end

    def _advance(self, task: CohortWork, first: int, last: int) -> Tensor:
        return self.run(self.flat, self.read, task.lr, task.store, self.schedule, self.ticks[first], self.ticks[last])

    def _swap(self, waiting: list[list[LaneJob]], now: int, task: CohortWork) -> None:
        """Take out the clients that are done and load the next ones."""
        for lane, jobs in enumerate(waiting):
            if jobs and jobs[-1].end == now:
                self._take(lane, jobs.pop().row, task)
                task.progress.count(clients=1)
                self._load(waiting, lane, task)

    def _load(self, waiting: list[list[LaneJob]], lane: int, task: CohortWork) -> None:
        if waiting[lane]:
            self._put(lane, waiting[lane][-1].row, task)

    def _take(self, lane: int, row: int, task: CohortWork) -> None:
        """What a lane holds becomes a client's row."""
        task.rows[row] = self.flat.numpy()[lane]  # numpy copies a short row ten times faster

    def _put(self, lane: int, row: int, task: CohortWork) -> None:
        """A client's row, and what its steps read, into a lane."""
        self.flat.numpy()[lane] = task.rows[row]
        self.context.write(self._read_rows[lane], task.context_arrays, row)

    def _fill(
        self, timeline: list[list[LaneJob]], plans: dict[int, BatchPlan], keys: dict[int, np.ndarray], window: int
    ) -> None:
        """Write the steps [window, window + capacity) of every lane into the schedule."""
        index, weights, step, key = self.arrays
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
                    if keys:
                        key[here, lane] = keys[job.row][own]


class VectorizedEngine(Engine):
    """Lanes × worker threads.

    Args:
        seed: seed of the run.
        rows: the data's gather function; runs inside the program.
        lanes: clients that a worker trains at the same time.
        workers: threads.
        compiled: whether the program is compiled; the eager form gives the same numbers.
        capacity: steps of a lane that are scheduled at a time.
        direct_convolution: whether a compiled program has fedlit's convolutions instead of torch's.
        compiles: the loop over steps, or one step; nets that mix the rows of a batch need the latter.
        loops: whose loops and products a compiled program has.
        why_python: why Python drives the workers of compiled loops, where it does; said once.
    """

    worker: type[Worker] = Worker
    """What runs lanes; another one where they are on a device."""

    def __init__(
        self,
        seed: int,
        rows: Rows,
        *,
        lanes: int,
        workers: int,
        compiled: bool,
        capacity: int = MAX_CAPACITY,
        direct_convolution: bool = False,
        compiles: Compiles = "loop",
        loops: Loops = "lean",
        why_python: str | None = None,
    ) -> None:
        super().__init__(seed, rows)
        self.lanes, self.workers, self.compiled = lanes, workers, compiled
        self.capacity = capacity
        self.direct_convolution, self.compiles, self.loops = direct_convolution, compiles, loops
        self.why_python = why_python
        self._crews: dict[Phase, list[Worker]] = {}
        self._layouts: dict[Phase, FlatLayout] = {}
        self._pool = ThreadPoolExecutor(max(1, workers - 1), "fedlit", torch.set_num_threads, (1,))

    def prepare(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> None:
        """The workers of a phase, and their program, for the shapes of the cohort's first client."""
        if cohort.clients:
            self._crew(client, phase, self._task(client, cohort.take([0]), data, phase))

    def train(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> Solved:
        """All clients of the cohort; those with 0 steps keep what they start with."""
        task = self._task(client, cohort, data, phase)
        crew = self._crew(client, phase, task)
        steps = cohort.steps.tolist()
        timeline = assign_lanes(steps, self.lanes * self.workers)
        shares = [timeline[worker :: self.workers] for worker in range(self.workers)]
        self.progress.begin(sum(own > 0 for own in steps), sum(steps))
        self._run(crew, shares, task)
        return self._solved(cohort, self._layouts[phase].split(task.out))

    def _task(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> CohortWork:
        """What the workers of a cohort share."""
        client.net.train()
        carried = self._carried(client, cohort, phase)
        if phase not in self._layouts:
            self._layouts[phase] = FlatLayout.of(carried, stacked=True)
        context = {k: v for k, v in client.context(cohort).items() if f"state.{k}" not in carried}
        like = next(iter(cohort.received.values()))
        return CohortWork(
            context=context,
            plan=self.planner(client, cohort, data, phase),
            keys=partial(self.mask_keys, cohort, phase),
            store=data.store,
            lr=like.new_full((), cohort.lr),
            batch_rows=batch_rows(client, data),
            clients=cohort.clients,
            where=f"in round {cohort.run_round}, {phase.step_method}",
            out=self._layouts[phase].join(carried),
            progress=self.progress,
        )

    def _run(self, crew: list[Worker], shares: list[list[list[LaneJob]]], task: CohortWork) -> None:
        """Every worker its share: in threads where the program is compiled, whose entry releases the GIL.

        The eager form runs them one after the other: functional_call borrows the module, and threads gain nothing.
        """
        if not self.compiled:
            for worker, share in zip(crew, shares, strict=True):
                worker.train(share, task)
            return
        with self.ranks.without_timeout():  # a compiled window may last long, and no user's code runs in it
            self._run_in_threads(crew, shares, task)

    def _run_in_threads(self, crew: Sequence[Worker], shares: list[list[list[LaneJob]]], task: CohortWork) -> None:
        self._in_threads([partial(worker.train, own, task) for worker, own in zip(crew, shares, strict=True)])

    def _in_threads(self, work: Sequence[Callable[[], None]]) -> None:
        """All at once; the calling thread works too: one hand-over less."""
        jobs = [self._pool.submit(own) for own in work[1:]]
        try:
            with threads(1):  # workers are the threads
                work[0]()
        finally:
            wait(jobs)  # nobody trains on when the round has failed or was stopped
        for job in jobs:
            job.result()

    def _carried(self, client: Client, cohort: TrainedCohort, phase: Phase) -> Params:
        """Stacked: what each client carries from step to step, as it is before the first."""
        start, buffers = cohort.start_of(phase.start)
        _, memory = self.memory_of(client, cohort, phase, start)
        like = next(iter(start.values()))
        zeros = like.new_zeros(len(cohort.clients), dtype=at_least_float32(like.dtype))
        return {
            **with_prefix("params", start),
            **with_prefix("memory", memory),
            **with_prefix("buffers", buffers),
            **with_prefix("state", client.carried_rows(cohort)),
            "loss": zeros,
        }

    def _solved(self, cohort: TrainedCohort, carried: Params) -> Solved:
        """What is carried after the last step."""
        steps = cohort.steps.to(carried["loss"].device, non_blocking=True)
        return Solved(
            params=under_prefix("params", carried),
            buffers=under_prefix("buffers", carried),
            losses=carried["loss"] / steps,  # 0/0 = NaN where a client took no step
            optimizer_state=under_prefix("memory", carried),
            carried={state_name(name): rows for name, rows in under_prefix("state", carried).items()},
        )

    def _crew(self, client: Client, phase: Phase, task: CohortWork) -> list[Worker]:
        """The workers of a phase; built, and their program compiled, when they are first asked for."""
        if phase not in self._crews:
            context = FlatLayout.of(task.context, stacked=True)
            turned = self.compiles == "step" and not self.direct_convolution
            rows = channels_last(self.rows) if turned else self.rows
            program = LocalProgram(client, phase, rows, self.lanes, self._layouts[phase], context, task.batch_rows)
            program.heartbeat = self.ranks.heartbeat
            crew = [self.worker(program.eager, program, self.capacity, task.out) for _ in range(self.workers)]
            if self.compiled:
                log.info("compiling the local training, once: 10 s for a small net, up to two minutes for a deep one")
                where = f"{task.where}, while it was traced and compiled for all clients"
                with self.ranks.without_timeout(), located(where), self.progress.preparing():
                    form = CompiledForm(program, crew[0], task, self.direct_convolution, self.compiles, self.loops)
                run = form if self.compiles == "loop" else step_by_step(form, program)
                for worker in crew:
                    worker.run, worker.context, worker.draws = run, program.context_read, program.draws
                self._say_who_drives(form)
            self._crews[phase] = crew
        return self._crews[phase]

    def _say_who_drives(self, form: "CompiledForm") -> None:
        """A line where it is Python and could be C++."""
        if self.why_python is not None and not self._crews:
            log.warning(
                f"engine: Python drives the workers and not C++ ({self.why_python}): up to 1.5 times slower on small "
                "networks, and the same bits."
            )


def _trained_at_once(task: CohortWork, waiting: list[list[LaneJob]]) -> str:
    """The place of an error in lanes that run together."""
    clients = sorted(task.clients[jobs[-1].row] for jobs in waiting if jobs)
    return f"{task.where} of {'client' if len(clients) == 1 else 'one of the clients'} {', '.join(map(str, clients))}"


class CompiledForm:
    """A program compiled for a worker's shapes, with the signature of its eager form.

    Args:
        program: the program.
        worker: one of those that will run it.
        task: what they will train.
        direct_convolution: whether it has fedlit's convolutions instead of torch's.
        compiles: all steps of a call, or the first of them alone.
        loops: whose loops and products it has.
    """

    def __init__(
        self,
        program: LocalProgram,
        worker: Worker,
        task: CohortWork,
        direct_convolution: bool,
        compiles: Compiles,
        loops: Loops = "lean",
    ) -> None:
        self.names = list(task.store)
        schedule = worker.schedule if compiles == "loop" else worker.schedule.at(0)
        rest = self.rest(task.lr, task.store, schedule, worker.ticks[0], worker.ticks[1])
        examples = [worker.flat, worker.read, *rest]
        traceable = program.traceable(task.store, examples, compiles, loops)
        self._compiled = compile_program(traceable, examples, direct_convolution=direct_convolution, loops=loops)
        self.entry = entry_address(self._compiled)
        """Where it begins, for callers in C++; None where that is not known."""

    def rest(self, lr: Tensor, store: Store, schedule: Schedule, t0: Tensor, t1: Tensor) -> list[Tensor]:
        """All that the program takes beside lanes and what they read, in its order."""
        return [lr, *(store[name] for name in self.names), *(part for part in schedule if part is not None), t0, t1]

    def __call__(
        self, flat: Tensor, context: Tensor, lr: Tensor, store: Store, schedule: Schedule, t0: Tensor, t1: Tensor
    ) -> Tensor:
        (moved,) = self._compiled(flat, context, *self.rest(lr, store, schedule, t0, t1))
        return moved  # type: ignore[no-any-return]  # the compiler's output is untyped


def step_by_step(step: LaneProgram, program: LocalProgram) -> LaneProgram:
    """A compiled step, called for every one; the eager form where a batch is ragged and the net must see no padding."""
    one_at_a_time = Lock()  # functional_call borrows the module, which the workers share

    def run(
        flat: Tensor, context: Tensor, lr: Tensor, store: Store, schedule: Schedule, t0: Tensor, t1: Tensor
    ) -> Tensor:
        first, last = int(t0), int(t1)
        ends = torch.tensor([0]), torch.tensor([1])
        full = (schedule.row_weights[first:last] > 0).flatten(1).all(1).tolist()
        for t, is_full in enumerate(full, first):
            own = schedule.at(t)  # so the program is the same for every capacity
            if is_full or not program.cuts_padding:
                flat = step(flat, context, lr, store, own, *ends)
                program.heartbeat()
            else:
                with one_at_a_time:
                    flat = program.eager(flat, context, lr, store, own, *ends)
        return flat

    return run
