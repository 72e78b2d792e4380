"""The fast engine: trains whole cohorts at once, in lanes × worker threads of one compiled program.

Each lane trains one client; when that is done, the next client is loaded. The longest clients go first (`lanes.py`).
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.net_parts import begin_training
from fedlit.client.step import Phase, ProgramKey, state_name
from fedlit.engines.base import Engine, Rows, Solved, Store, TrainData, batch_rows, threads, with_frozen
from fedlit.engines.compiler import compile_program, entry_address
from fedlit.engines.flat_layout import FlatLayout
from fedlit.engines.inductor_loops import Loops
from fedlit.engines.lanes import CohortWork, LaneJob, LaneProgram, Worker, assign_lanes
from fedlit.engines.program import Compiles, LocalProgram, Schedule, channels_last
from fedlit.errors import located
from fedlit.params import Params, at_least_float32, under_prefix, with_prefix

log = logging.getLogger("fedlit")

MAX_CAPACITY = 2048
"""Most steps of a lane that are scheduled together; longer timelines run in windows of this length."""


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
        self._crews: dict[ProgramKey, list[Worker]] = {}
        """By `Phase.program`, as the layouts."""
        self._layouts: dict[ProgramKey, FlatLayout] = {}
        self._pool = ThreadPoolExecutor(max(1, workers - 1), "fedlit", torch.set_num_threads, (1,))

    def prepare(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> None:
        """Make the workers of a phase and compile their program, for the shapes of the cohort's first client."""
        if cohort.clients:
            self._crew(client, phase, self._cohort_work(client, cohort.take([0]), data, phase))

    def train(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> Solved:
        """Train all clients of the cohort; those with 0 steps do not change."""
        work = self._cohort_work(client, cohort, data, phase)
        crew = self._crew(client, phase, work)
        steps = cohort.steps.tolist()
        timeline = assign_lanes(steps, self.lanes * self.workers)
        shares = [timeline[worker :: self.workers] for worker in range(self.workers)]
        self.progress.begin(sum(count > 0 for count in steps), sum(steps))
        self._run(crew, shares, work)
        return self._solved(cohort, self._layouts[phase.program].split(work.out))

    def _cohort_work(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> CohortWork:
        """The work of a cohort."""
        begin_training(client.net)
        carried = self._carried(client, cohort, phase)
        if phase.program not in self._layouts:
            self._layouts[phase.program] = FlatLayout.of(carried, stacked=True)
        context = {k: v for k, v in client.context(cohort).items() if f"state.{k}" not in carried}
        like = next(iter(cohort.received.values()))
        return CohortWork(
            context=context,
            plan=self.planner(client, cohort, data, phase),
            keys=partial(self.mask_keys, cohort, phase),
            store=with_frozen(client.net, data.store),
            lr=like.new_full((), cohort.lr),
            batch_rows=batch_rows(client, data),
            clients=cohort.clients,
            where=f"in round {cohort.run_round}, {phase.step_method}",
            out=self._layouts[phase.program].join(carried),
            progress=self.progress,
        )

    def _run(self, crew: list[Worker], shares: list[list[list[LaneJob]]], work: CohortWork) -> None:
        """Let every worker train its share: in threads if the program is compiled, because its entry releases the GIL.

        The eager form runs them one after the other: functional_call changes the shared module for a moment, and
        threads would gain nothing.
        """
        if not self.compiled:
            for worker, share in zip(crew, shares, strict=True):
                worker.train(share, work)
            return
        with self.ranks.without_timeout():  # a compiled window may take long, and runs no user's code
            self._run_in_threads(crew, shares, work)

    def _run_in_threads(self, crew: Sequence[Worker], shares: list[list[list[LaneJob]]], work: CohortWork) -> None:
        self._in_threads([partial(worker.train, share, work) for worker, share in zip(crew, shares, strict=True)])

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

    def _crew(self, client: Client, phase: Phase, work: CohortWork) -> list[Worker]:
        """The workers of a phase; made, and their program compiled, on first use."""
        if phase.program not in self._crews:
            layout, context = self._layouts[phase.program], FlatLayout.of(work.context, stacked=True)
            turned = self.compiles == "step" and not self.direct_convolution
            rows = channels_last(self.rows) if turned else self.rows
            program = LocalProgram(client, phase, rows, self.lanes, layout, context, work.batch_rows)
            program.heartbeat = self.ranks.heartbeat
            crew = [self.worker(program.eager, program, self.capacity, work.out) for _ in range(self.workers)]
            if self.compiled:
                log.info("compiling the local training, once: 10 s for a small net, up to two minutes for a deep one")
                where = f"{work.where}, while it was traced and compiled for all clients"
                with self.ranks.without_timeout(), located(where), self.progress.preparing():
                    form = CompiledForm(program, crew[0], work, self.direct_convolution, self.compiles, self.loops)
                run = form if self.compiles == "loop" else step_by_step(form, program)
                for worker in crew:
                    worker.run, worker.context, worker.draws = run, program.context_read, program.draws
                self._say_who_drives(form)
            self._crews[phase.program] = crew
        return self._crews[phase.program]

    def _say_who_drives(self, form: "CompiledForm") -> None:
        """Warn if Python drives the workers although C++ could."""
        if self.why_python is not None and not self._crews:
            log.warning(
                f"engine: Python drives the workers and not C++ ({self.why_python}): up to 1.5 times slower on small "
                "networks, and the same bits."
            )


class CompiledForm:
    """A program compiled for a worker's shapes, with the signature of its eager form.

    Args:
        program: the program.
        worker: one of those that will run it.
        work: a cohort that they will train.
        direct_convolution: whether it has fedlit's convolutions instead of torch's.
        compiles: the loop over steps, or one step.
        loops: which loops and products it has.
    """

    def __init__(
        self,
        program: LocalProgram,
        worker: Worker,
        work: CohortWork,
        direct_convolution: bool,
        compiles: Compiles,
        loops: Loops = "lean",
    ) -> None:
        self.names = list(work.store)
        schedule = worker.schedule if compiles == "loop" else worker.schedule.at(0)
        rest = self.rest(work.lr, work.store, schedule, worker.ticks[0], worker.ticks[1])
        examples = [worker.carried_rows, worker.context_rows, *rest]
        traceable = program.traceable(work.store, examples, compiles, loops)
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
