"""The fast engine: trains whole cohorts at once, in lanes × worker threads of one compiled program.

Each lane trains one client; when that is done, the next client is loaded. The longest clients go first. A client's lane
is a pure function of (steps, lanes, workers): with a queue it would depend on timing, and a resumed run would not give
the same bits.
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
"""Most steps of a lane that are scheduled together; longer timelines run in windows of this length."""


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
    plan: Planner
    keys: Callable[[int], np.ndarray]
    """k -> (steps,) the k-th client's keys of dropout masks."""
    store: Store
    lr: Tensor
    batch_rows: int
    clients: list[int]
    where: str
    """The round and the step method, for errors."""
    out: Tensor
    """(clients, D) the carried row of each client: before its first step, and, when it is done, after its last."""
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


class Worker:
    """The lanes of one thread, with their buffers; trains its share of a cohort."""

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
        """The schedule as arrays, without a copy; plans are written into them."""
        return [part.numpy() for part in self.schedule if part is not None]

    @cached_property
    def _read_rows(self) -> np.ndarray:
        return self.read.numpy()

    def train(self, timeline: list[list[LaneJob]], task: CohortWork) -> None:
        """Run all jobs of these lanes."""
        task = task.for_one_thread()
        capacity = len(self.schedule.rows)
        waiting = [list(reversed(jobs)) for jobs in timeline]
        plans = {job.row: task.plan(job.row) for jobs in timeline for job in jobs}
        keys = {row: task.keys(row) for row in plans} if self.draws else {}
        self.flat.zero_()  # idle lanes compute too; their numbers must stay finite
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
        """Copy out the clients that are done, and load the next ones."""
        for lane, jobs in enumerate(waiting):
            if jobs and jobs[-1].end == now:
                self._take(lane, jobs.pop().row, task)
                task.progress.count(clients=1)
                self._load(waiting, lane, task)

    def _load(self, waiting: list[list[LaneJob]], lane: int, task: CohortWork) -> None:
        if waiting[lane]:
            self._put(lane, waiting[lane][-1].row, task)

    def _take(self, lane: int, row: int, task: CohortWork) -> None:
        """Copy a lane's numbers to its client's row."""
        task.rows[row] = self.flat.numpy()[lane]  # numpy copies a short row ten times faster

    def _put(self, lane: int, row: int, task: CohortWork) -> None:
        """Copy a client's row, and what its steps read, into a lane."""
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
                    here, mine = slice(first - window, last - window), slice(first - job.start, last - job.start)
                    batches = slice(mine.start * self.per_step, mine.stop * self.per_step)
                    steps, plan = mine.stop - mine.start, plans[job.row]
                    index[here, lane] = plan.index[batches].reshape(steps, -1)
                    weights[here, lane] = row_weights(plan.counts[batches], self.batch_size).reshape(steps, -1)
                    step[here, lane] = np.arange(mine.start, mine.stop)
                    if keys:
                        key[here, lane] = keys[job.row][mine]


class VectorizedEngine(Engine):
    """Lanes × worker threads.

    Args:
        seed: seed of the run.
        rows: the data's gather function; runs inside the program.
        lanes: clients that a worker trains at the same time.
        workers: threads.
        compiled: whether the program is compiled; the eager form gives the same numbers.
        capacity: steps of a lane that are scheduled together.
        direct_convolution: whether a compiled program has fedlit's convolutions instead of torch's.
        compiles: the loop over steps, or one step; nets that mix the rows of a batch need the latter.
        loops: which loops and products a compiled program has.
        why_python: why Python and not C++ drives the workers of compiled loops; logged once. None if C++ does.
    """

    worker: type[Worker] = Worker
    """The class that runs lanes; on a device it is `DeviceWorker`."""

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
        """Make the workers of a phase and compile their program, for the shapes of the cohort's first client."""
        if cohort.clients:
            self._crew(client, phase, self._task(client, cohort.take([0]), data, phase))

    def train(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> Solved:
        """Train all clients of the cohort; those with 0 steps do not change."""
        task = self._task(client, cohort, data, phase)
        crew = self._crew(client, phase, task)
        steps = cohort.steps.tolist()
        timeline = assign_lanes(steps, self.lanes * self.workers)
        shares = [timeline[worker :: self.workers] for worker in range(self.workers)]
        self.progress.begin(sum(count > 0 for count in steps), sum(steps))
        self._run(crew, shares, task)
        return self._solved(cohort, self._layouts[phase].split(task.out))

    def _task(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> CohortWork:
        """The work of a cohort."""
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
        """Let every worker train its share: in threads if the program is compiled, because its entry releases the GIL.

        The eager form runs them one after the other: functional_call changes the shared module for a moment, and
        threads would gain nothing.
        """
        if not self.compiled:
            for worker, share in zip(crew, shares, strict=True):
                worker.train(share, task)
            return
        with self.ranks.without_timeout():  # a compiled window may take long, and runs no user's code
            self._run_in_threads(crew, shares, task)

    def _run_in_threads(self, crew: Sequence[Worker], shares: list[list[list[LaneJob]]], task: CohortWork) -> None:
        self._in_threads([partial(worker.train, share, task) for worker, share in zip(crew, shares, strict=True)])

    def _in_threads(self, work: Sequence[Callable[[], None]]) -> None:
        """Run all at once; the calling thread takes the first, which saves a hand-over."""
        jobs = [self._pool.submit(part) for part in work[1:]]
        try:
            with threads(1):  # workers are the threads
                work[0]()
        finally:
            wait(jobs)  # no thread may go on training after the round has failed or was stopped
        for job in jobs:
            job.result()

    def _carried(self, client: Client, cohort: TrainedCohort, phase: Phase) -> Params:
        """The stacked tensors that clients carry from step to step, before the first step."""
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
        """The result, from the tensors carried after the last step."""
        steps = cohort.steps.to(carried["loss"].device, non_blocking=True)
        return Solved(
            params=under_prefix("params", carried),
            buffers=under_prefix("buffers", carried),
            losses=carried["loss"] / steps,  # 0/0 = NaN for a client without steps
            optimizer_state=under_prefix("memory", carried),
            carried={state_name(name): rows for name, rows in under_prefix("state", carried).items()},
        )

    def _crew(self, client: Client, phase: Phase, task: CohortWork) -> list[Worker]:
        """The workers of a phase; made, and their program compiled, on first use."""
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
        """Warn if Python drives the workers although C++ could."""
        if self.why_python is not None and not self._crews:
            log.warning(
                f"engine: Python drives the workers and not C++ ({self.why_python}): up to 1.5 times slower on small "
                "networks, and the same bits."
            )


def _trained_at_once(task: CohortWork, waiting: list[list[LaneJob]]) -> str:
    """The clients in which an error may have arisen: lanes run together."""
    clients = sorted(task.clients[jobs[-1].row] for jobs in waiting if jobs)
    return f"{task.where} of {'client' if len(clients) == 1 else 'one of the clients'} {', '.join(map(str, clients))}"


class CompiledForm:
    """A program compiled for a worker's shapes, with the signature of its eager form.

    Args:
        program: the program.
        worker: one of those that will run it.
        task: a cohort that they will train.
        direct_convolution: whether it has fedlit's convolutions instead of torch's.
        compiles: the loop over steps, or one step.
        loops: which loops and products it has.
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
        """The address of the program, for callers in C++; None if unknown."""

    def rest(self, lr: Tensor, store: Store, schedule: Schedule, t0: Tensor, t1: Tensor) -> list[Tensor]:
        """The program's inputs after `flat` and `context`, in order."""
        return [lr, *(store[name] for name in self.names), *(part for part in schedule if part is not None), t0, t1]

    def __call__(
        self, flat: Tensor, context: Tensor, lr: Tensor, store: Store, schedule: Schedule, t0: Tensor, t1: Tensor
    ) -> Tensor:
        (moved,) = self._compiled(flat, context, *self.rest(lr, store, schedule, t0, t1))
        return moved  # type: ignore[no-any-return]  # the compiler's output is untyped


def step_by_step(step: LaneProgram, program: LocalProgram) -> LaneProgram:
    """Call a compiled step for every step; the eager form for a padded batch if the net must not see padding."""
    one_at_a_time = Lock()  # functional_call changes the module for a moment, and the workers share it

    def run(
        flat: Tensor, context: Tensor, lr: Tensor, store: Store, schedule: Schedule, t0: Tensor, t1: Tensor
    ) -> Tensor:
        first, last = int(t0), int(t1)
        ends = torch.tensor([0]), torch.tensor([1])
        full = (schedule.row_weights[first:last] > 0).flatten(1).all(1).tolist()
        for t, is_full in enumerate(full, first):
            now = schedule.at(t)  # one step's schedule, so that the program does not depend on the capacity
            if is_full or not program.cuts_padding:
                flat = step(flat, context, lr, store, now, *ends)
                program.heartbeat()
            else:
                with one_at_a_time:
                    flat = program.eager(flat, context, lr, store, now, *ends)
        return flat

    return run
