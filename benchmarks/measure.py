"""Client steps per second, measured so that they can be believed.

All entries of a workload run in one process, in turns, and are compared with the hand-written loop of the same
repetition. A repetition in which something else took part of the machine is left out: two workers need two free cores.
"""

import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer

from benchmarks.handwritten import federated_round
from benchmarks.workloads import Workload
from fedlit.algorithms.fedbc import FedBC
from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort, WeighedCohort
from fedlit.clock import Clock
from fedlit.data.base import FederatedDataModule
from fedlit.engines.choose import EngineChoice, EngineName
from fedlit.engines.cost import estimated_step_s
from fedlit.metrics.formatting import counted
from fedlit.params import clone
from fedlit.rounds.loop import FederatedLoop
from fedlit.rounds.protocol import ServerRecords
from fedlit.rounds.round import Round
from fedlit.rounds.round import Stopwatch as RoundWatch
from fedlit.rounds.run_state import RoundRecord
from fedlit.server.base import ServerCallback
from fedlit.server.cloud import Cloud
from fedlit.trainer.trainer import FederatedTrainer

MAX_OTHER_LOAD = 0.1
"""Cores that something else may take before a repetition is left out; with more, two workers lose their second core."""
EVAL_EVERY = 10
"""Rounds between the evaluations of the `fit` entry."""
TURN_S = 0.015
"""Seconds of a turn where two entries alternate: a few rounds of a small net."""


# ---- what is read off a run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instant:
    """Clocks of one moment, in seconds."""

    wall: float
    own: float
    """CPU time of this process, all its threads and the children it waited for."""
    machine: float | None
    """Time for which any core was not idle; None where the system does not tell."""

    @classmethod
    def now(cls) -> "Instant":
        """Read all clocks."""
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in usages), machine_busy_s())


@dataclass(frozen=True)
class Span:
    """Whole rounds that were run without a pause."""

    steps: int
    rounds: int
    began: Instant
    ended: Instant

    @property
    def steps_per_s(self) -> float:
        """Client steps per second."""
        return self.steps / (self.ended.wall - self.began.wall)

    @property
    def round_s(self) -> float:
        """Seconds of a round."""
        return (self.ended.wall - self.began.wall) / self.rounds

    @property
    def other_load(self) -> float | None:
        """Cores that were busy with something else; None where the system does not tell."""
        if self.began.machine is None or self.ended.machine is None:
            return None
        others = (self.ended.machine - self.began.machine) - (self.ended.own - self.began.own)
        return max(0.0, others / (self.ended.wall - self.began.wall))

    @property
    def is_disturbed(self) -> bool:
        """Whether something else took more than it may."""
        return self.other_load is not None and self.other_load > MAX_OTHER_LOAD


@dataclass(frozen=True)
class Entry:
    """One way of doing the work, warmed up: its programs are compiled."""

    name: str
    threads: int
    lanes: int
    compiled: bool
    first_round_s: float
    run: Callable[[float], Span]
    """Runs whole rounds for about so many seconds."""
    estimated: float | None = None
    """Client steps per second that `auto` expects of the sequential engine; None for the others."""
    processes: int = 1
    memory: Callable[[], float] = field(default_factory=lambda: peak_rss_mb)
    """The most memory that was held, in MB: this process's since `forget_peak`, or that of others."""
    rival: "Entry | None" = None
    """What it is also compared with in short turns, since the two are closer than a machine's speed is steady."""

    @property
    def label(self) -> str:
        """Name and threads, for people."""
        return f"{self.name}, {counted(self.threads, 'thread')}"


@dataclass(frozen=True)
class Turns:
    """Two entries that alternated for a while."""

    ratio: float
    """Median of one's rate over its rival's."""
    whole: Span
    """From the first turn to the last, of both."""


@dataclass(frozen=True)
class Result:
    """What one entry did, one span per repetition."""

    entry: Entry
    spans: Sequence[Span]
    base: Sequence[Span]
    """What it is compared with in the same repetitions: the first entry."""
    peak_rss_mb: float
    turns: Sequence[Turns] = ()
    """Beside its rival, once per repetition; none without a rival."""

    @property
    def quiet_turns(self) -> list[float]:
        """The ratios that count: of repetitions in which nothing disturbed the turns."""
        return [one.ratio for one in self.turns if not one.whole.is_disturbed]

    @property
    def in_turns(self) -> float | None:
        """Its rate over its rival's; of all repetitions, and not to be trusted, where none was quiet."""
        ratios = self.quiet_turns or [one.ratio for one in self.turns]
        return median(ratios) if ratios else None

    @property
    def undisturbed(self) -> list[int]:
        """Repetitions in which neither this entry nor what it is compared with was disturbed."""
        pairs = enumerate(zip(self.spans, self.base, strict=True))
        return [k for k, (span, base) in pairs if not span.is_disturbed and not base.is_disturbed]

    @property
    def is_void(self) -> bool:
        """Whether no repetition counts; the figures are then of all of them, and not to be trusted."""
        return not self.undisturbed

    @property
    def counted(self) -> list[int]:
        """Repetitions that the figures are made of."""
        return self.undisturbed or list(range(len(self.spans)))

    @property
    def rates(self) -> list[float]:
        """Client steps per second in the counted repetitions."""
        return [self.spans[k].steps_per_s for k in self.counted]

    @property
    def ratio(self) -> float:
        """Median over the counted repetitions of this rate over the base's in the same repetition."""
        return median(self.spans[k].steps_per_s / self.base[k].steps_per_s for k in self.counted)

    @property
    def other_load(self) -> float | None:
        """The largest of the counted repetitions, in cores."""
        loads = [load for k in self.counted if (load := self.spans[k].other_load) is not None]
        return max(loads, default=None)

    def as_json(self) -> dict[str, Any]:
        """One entry of `python -m benchmarks --json`."""
        return {
            "name": self.entry.name,
            "processes": self.entry.processes,
            "threads": self.entry.threads,
            "lanes": self.entry.lanes,
            "compiled": self.entry.compiled,
            "round_s": median(self.spans[k].round_s for k in self.counted),
            "steps_per_s": median(self.rates),
            "estimated_steps_per_s": self.entry.estimated,
            "spread": [min(self.rates), max(self.rates)],
            "ratio": self.ratio,
            "other_load": self.other_load,
            "first_round_s": self.entry.first_round_s,
            "peak_rss_mb": self.peak_rss_mb,
            "in_turns": self.in_turns,
            "void": self.is_void,
            "void_repeats": len(self.spans) - len(self.undisturbed),
        }


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(entries: Sequence[Entry], repeats: int, seconds: float, report: Callable[[str], None]) -> list[Result]:
    """Every entry once per repetition, in an order that rotates; the first entry is the one to compare with."""
    spans: list[list[Span]] = [[] for _ in entries]
    turns: list[list[Turns]] = [[] for _ in entries]
    peaks = [0.0] * len(entries)
    for repeat in range(repeats):
        for turn in range(len(entries)):
            k = (repeat + turn) % len(entries)
            report(f"repetition {repeat + 1} of {repeats}: {entries[k].label}")
            forget_peak()
            spans[k].append(entries[k].run(seconds))
            peaks[k] = max(peaks[k], entries[k].memory())
            if (rival := entries[k].rival) is not None:
                turns[k].append(in_turns(entries[k], rival, seconds))
    seen = zip(entries, spans, peaks, turns, strict=True)
    return [Result(entry, own, spans[0], peak, own_turns) for entry, own, peak, own_turns in seen]


def in_turns(one: Entry, other: Entry, seconds: float) -> Turns:
    """Each for a moment after the other, for so many seconds in all."""
    began, pairs = Instant.now(), [(one.run(TURN_S), other.run(TURN_S))]
    while time.perf_counter() - began.wall < seconds:
        pairs.append((one.run(TURN_S), other.run(TURN_S)))
    steps, rounds = (sum(getattr(span, name) for pair in pairs for span in pair) for name in ("steps", "rounds"))
    ratio = median(own.steps_per_s / its.steps_per_s for own, its in pairs)
    return Turns(ratio, Span(steps, rounds, began, Instant.now()))


def cores_for(workload: Workload) -> int:
    """Workers or processes that a cohort can be divided among here."""
    return min(len(os.sched_getaffinity(0)), workload.clients_per_round)


def warmed_up(workload: Workload, data: FederatedDataModule, report: Callable[[str], None]) -> list[Entry]:
    """All entries of a workload, the hand-written loop or that of one server first; each has run its first round."""
    cores = cores_for(workload)
    if workload.servers > 1:
        report("first round, which compiles: one server, and several")
        cloud: dict[str, Any] = {"clients_per_round": workload.clients_per_round // workload.servers}
        cloud |= {"cloud": Cloud(workload.servers), "clock": Clock(), "sampler": "earliest"}
        return [
            engine_entry(name, workload, data, workload.client(), "vectorized", cores, **options)
            for name, options in {"flat": {}, "cloud": cloud}.items()
        ]
    report("first round: hand-written loop")
    entries = [handwritten_entry(workload, data)]
    report("first round: sequential")
    entries.append(engine_entry("sequential", workload, data, workload.client(), "sequential", None))
    for workers in sorted({1, cores} if workload.with_one_worker else {cores}):
        report(f"first round, which compiles: vectorized, {workers} workers")
        entries.append(engine_entry("vectorized", workload, data, workload.client(), "vectorized", workers))
    if workload.with_extras:
        report("first round, which compiles: FedBC, fit")
        fedbc = engine_entry("fedbc", workload, data, workload.client(FedBC), "vectorized", cores)
        entries.append(replace(fedbc, rival=entries[-1]))
        entries.append(fit_entry(workload, cores))
    return entries


# ---- the entries -----------------------------------------------------------------------------------------------------


def handwritten_entry(workload: Workload, data: FederatedDataModule) -> Entry:
    """The plain PyTorch loop, one thread."""
    net, train = workload.net(), workload.local_training()
    samples, clients = (data.store["x"], data.store["y"]), data.everyone.train
    by_size = workload.algorithm.weights == "samples"

    def one_round() -> int:
        drawn = torch.randperm(len(clients))[: workload.clients_per_round].tolist()
        return federated_round(net, samples, [clients[client] for client in drawn], train, by_size=by_size)

    run = in_rounds(one_round, threads=1)
    first = run(0)
    return Entry("handwritten", 1, 1, False, first.ended.wall - first.began.wall, run)


def engine_entry(
    name: str,
    workload: Workload,
    data: FederatedDataModule,
    client: Client,
    engine: EngineName,
    workers: int | None,
    **options: Any,
) -> Entry:
    """Whole rounds of an engine: the loop's own `advance`, with what `fit` built, without metrics and epoch hooks."""
    trainer = new_trainer(workload, engine, workers, rounds=1, **options)
    loop = trainer.loop = trainer.fit_loop = CountingLoop(trainer, 1, trainer.loop.options)
    fit(trainer, client, data)
    choice = chosen(loop)
    first_round_s = loop.round_s

    def one_round() -> int:
        loop.advance()
        return loop.round_steps

    run = in_rounds(one_round, choice.threads)
    estimated = estimated_rate(client, data, choice) if engine == "sequential" else None
    return Entry(name, threads_of(choice), choice.lanes, choice.compiled, first_round_s, run, estimated)


def estimated_rate(client: Client, data: FederatedDataModule, choice: EngineChoice) -> float:
    """Client steps per second that `auto` expects, by which it decides whether compiling pays."""
    return 1 / estimated_step_s(client, data.sample, choice.threads)


def fit_entry(workload: Workload, workers: int) -> Entry:
    """`FederatedTrainer.fit` with evaluation, but no run folder and no logger. The first rounds are not timed."""
    data = workload.data(tested=True)

    def run(seconds: float) -> Span:
        stopwatch = Stopwatch(seconds)
        trainer = new_trainer(workload, "vectorized", workers, rounds=10**9, callbacks=[stopwatch])
        fit(trainer, workload.client(), data)
        return stopwatch.span

    trainer = new_trainer(workload, "vectorized", workers, rounds=1)
    fit(trainer, workload.client(), data)
    choice = chosen(trainer.loop)
    first_round_s = trainer.loop.history.rows[1]["time/round_s"]
    return Entry("fit", threads_of(choice), choice.lanes, choice.compiled, first_round_s, run)


def in_rounds(one_round: Callable[[], int], threads: int) -> Callable[[float], Span]:
    """Rounds (which return their steps) one after the other, at least one, until the time is over."""

    def run(seconds: float) -> Span:
        threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        began, steps, rounds = Instant.now(), one_round(), 1
        while time.perf_counter() - began.wall < seconds:
            steps += one_round()
            rounds += 1
        ended = Instant.now()
        torch.set_num_threads(threads_before)
        return Span(steps, rounds, began, ended)

    return run


class CountingRound(Round):
    """A round without its metrics: its steps and seconds are counted instead."""

    host: "CountingLoop"

    def measure(
        self,
        number: int,
        cohort: WeighedCohort | None,
        watch: RoundWatch | None,
        servers: ServerRecords,
        *,
        newly: int,
        due: bool,
    ) -> RoundRecord:
        """Only what a benchmark needs, and what several servers measure; there is no cohort before the first round."""
        if cohort is not None and watch is not None:
            self.host.count(int(cohort.steps.sum()), time.perf_counter() - watch.started)
        return RoundRecord(self.protocol_metrics(), global_model=clone(self.parts.protocol.global_model))


class CountingLoop(FederatedLoop):
    """The rounds of a run without their metrics: counts each round's steps and seconds instead."""

    round_class = CountingRound
    round_s = 0.0
    round_steps = 0
    steps = 0
    """Of all rounds so far."""

    def count(self, steps: int, seconds: float) -> None:
        """A round took so many steps and seconds."""
        self.round_s, self.round_steps = seconds, steps
        self.steps += steps


class Stopwatch(ServerCallback):
    """Times a `fit` from its first evaluation on, and ends it right after one: as many evaluations as in a long run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.steps = self.rounds = 0
        self.began: Instant | None = None
        self.span: Span

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The rounds up to the first evaluation warm up."""
        if trainer.current_epoch == EVAL_EVERY:
            self.steps, self.rounds, self.began = 0, 0, Instant.now()

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        """Count."""
        self.steps += int(cohort.steps.sum())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time over?"""
        self.rounds += 1
        evaluated = (trainer.current_epoch + 1) % EVAL_EVERY == 0
        if self.began is not None and evaluated and time.perf_counter() - self.began.wall >= self.seconds:
            self.span = Span(self.steps, self.rounds, self.began, Instant.now())
            trainer.should_stop = True


def new_trainer(
    workload: Workload,
    engine: EngineName,
    workers: int | None,
    *,
    rounds: int,
    callbacks: list[ServerCallback] | None = None,
    **options: Any,
) -> FederatedTrainer:
    """A trainer that is silent and writes nothing; lanes and all else are fedlit's own choice."""
    common: dict[str, Any] = {"clients_per_round": workload.clients_per_round, "eval_every": EVAL_EVERY}
    return FederatedTrainer(
        rounds=rounds,
        engine=engine,
        workers=workers,
        callbacks=[*(callbacks or [])],
        enable_progress_bar=False,
        **(common | options),
    )


def fit(trainer: FederatedTrainer, client: Client, data: FederatedDataModule) -> None:
    """`trainer.fit`, which ends quietly at Ctrl-C; a benchmark should not go on then."""
    trainer.fit(client, datamodule=data)
    if trainer.interrupted:
        raise KeyboardInterrupt


def chosen(loop: FederatedLoop) -> EngineChoice:
    """What fedlit decided for this work."""
    assert loop.choice is not None, "fit chooses the engine"
    return loop.choice


def threads_of(choice: EngineChoice) -> int:
    """Threads that train: the workers, or those inside an operation of the sequential engine."""
    return choice.workers if choice.engine == "vectorized" else choice.threads


# ---- the machine -----------------------------------------------------------------------------------------------------


def machine_busy_s() -> float | None:
    """Seconds since the start of the system for which its cores were not idle, summed; None if /proc does not tell."""
    try:
        with open("/proc/stat") as stat:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (
                int(field) for field in stat.readline().split()[1:9]
            )
    except OSError:
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def forget_peak() -> None:
    """Let the peak of this process's memory begin anew, where the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_rss_mb() -> float:
    """The most memory that this process held since `forget_peak`, or, where that is not known, ever."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        unit = 1024**2 if platform.system() == "Darwin" else 1024  # bytes there, kilobytes elsewhere
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
