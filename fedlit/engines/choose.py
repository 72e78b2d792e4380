"""Which engine, how many lanes and workers, compiled or not: decided once, from counted work, and recorded."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedlit.client.base import Client
from fedlit.client.step_errors import ValueReadError
from fedlit.engines.base import Engine, Rows
from fedlit.engines.compiler import Loops, missing_compiler, missing_convolution
from fedlit.engines.cost import COUNTED_ROWS, FLOP_S, PASSES, Work, compile_step_s, step_flop
from fedlit.engines.device import Accelerator, Device, gpu_pays, on_device
from fedlit.engines.dropout import KeyedDropout
from fedlit.engines.forward import CompiledForward, Forward
from fedlit.engines.native import NativeEngine, missing_lanes
from fedlit.engines.program import Compiles, mixes_rows
from fedlit.engines.sequential import SequentialEngine
from fedlit.engines.step_probe import convolutions, reads_padding, reads_values
from fedlit.engines.vectorized import MAX_CAPACITY, VectorizedEngine
from fedlit.errors import ResumeError, require
from fedlit.metrics.formatting import counted
from fedlit.params import clone
from fedlit.ranks import Ranks

log = logging.getLogger("fedlit")

EngineName = Literal["auto", "sequential", "vectorized"]
Convolving = Literal["torch", "direct"]
Evaluation = Literal["eager", "compiled"]

COMPILE_PAYS_S = 12.0
"""Estimated seconds of the sequential engine above which compiling (about 10 s the first time) pays."""
MEASURING_PAYS_S = 8.0
"""Estimated seconds of a run's eager evaluation in one thread above which compiling it pays (about 7 s the first time,
1 s from the cache)."""
THREADED_FLOP = 1e8
"""Operations of a step from which threads inside one operation help; below, they only wait for each other."""
SMALL_NET = 20_000
"""Parameters up to which several lanes beat one (docs/performance.md)."""
_OMP_NUM_THREADS = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
"""Read once, as OpenMP does: Lightning sets the variable when it starts processes, which is not the user's word."""
EAGER_LANES = 16
"""Lanes of the eager form, which is fast because it stacks many clients."""


@dataclass(frozen=True)
class EngineChoice:
    """What trains the cohorts of a run; it never changes in mid-run."""

    engine: str
    lanes: int
    workers: int
    compiled: bool
    capacity: int
    threads: int
    """Threads inside one operation of the sequential engine's steps."""
    why: str
    evaluation_threads: int = 1
    """Threads inside one operation of an evaluation, whose batches are larger."""
    processes: int = 1
    """Processes that divide a cohort; each has so many lanes, workers and threads."""
    accelerator: Literal["cpu", "gpu"] = "cpu"
    """Where clients train; with several processes each has a GPU of its own."""
    convolution: Convolving = "torch"
    """Whose convolutions the compiled program has."""
    compiles: Compiles = "loop"
    """What a compiled program is: the loop over a client's steps, or one step."""
    loops: Loops = "lean"
    """Whose loops and products a compiled program has."""
    evaluation: Evaluation = "eager"
    """How models are measured."""
    evaluation_why: str = "as it was when this run began"

    def line(self) -> str:
        """One line for the user."""
        parts = [self.engine]
        if self.engine == "vectorized":
            parts += [f"{counted(self.lanes, 'lane')} × {counted(self.workers, 'worker')}"]
            parts += [_COMPILED[self.compiles] if self.compiled else "eager"]
            parts += ["loops of torch's compiler"] if self.loops == "inductor" else []
        parts += ["direct convolutions"] if self.convolution == "direct" else []
        parts += [f"{self.processes} processes"] if self.processes > 1 else []
        parts += ["on a GPU"] if self.accelerator == "gpu" else []
        return f"engine: {', '.join(parts)} ({self.why})"


_COMPILED: dict[Compiles, str] = {"loop": "compiled", "step": "compiled step by step"}


@dataclass(frozen=True)
class Request:
    """What the user asked for; None = decide."""

    engine: EngineName = "auto"
    lanes: int | None = None
    workers: int | None = None
    compiled: bool | None = None
    threads: int | None = None
    accelerator: Accelerator = "cpu"
    has_gpu: bool = False
    """Whether there is a GPU for every process."""


@dataclass(frozen=True)
class Resources:
    """What a process of the run has: its part of the machine, and of the cohort."""

    processes: int = 1
    here: int = 1
    """Processes on the same machine."""
    threads: int | None = None
    """What the user allows this process."""

    @property
    def cores(self) -> int:
        """Threads for this process alone: as asked, or as OMP_NUM_THREADS says, or its part of the cores."""
        return self._allowed[0]

    @property
    def _allowed(self) -> tuple[int, str]:
        if self.threads is not None:
            return self.threads, "trainer.threads"
        if _OMP_NUM_THREADS.isdigit() and int(_OMP_NUM_THREADS) > 0:
            return int(_OMP_NUM_THREADS), "OMP_NUM_THREADS"
        return max(1, len(os.sched_getaffinity(0)) // self.here), "the cores of this process"

    def line(self, choice: EngineChoice) -> str:
        """One line for the user: how many threads are used, how many may be, and who says so."""
        training = choice.workers if choice.compiled else choice.threads
        most, source = self._allowed
        form = " (compiled)" if choice.evaluation == "compiled" else ""
        used = f"threads: {training} in training, {choice.evaluation_threads} in evaluation{form}"
        return f"{used}; at most {most} ({source}, trainer.threads changes it)" if most > 1 else f"{used} ({source})"


def choose(
    request: Request,
    client: Client,
    planned: np.ndarray,
    per_round: int,
    rounds: int,
    sample: Tensor,
    *,
    shares: Mapping[str, float] | None = None,
    evaluated_rows: int = 0,
    measured_rows: int = 0,
    resources: Resources | None = None,
    device: Device | None = None,
) -> EngineChoice:
    """Decide from the steps that each client plans for a round (`planned`), the cohort's size and a sample's shape.

    `shares` are the steps that a phase takes by its `work_method`, as a share of the planned ones (all unless given),
    `evaluated_rows` the rows of a pass when models are measured, `measured_rows` all that are passed so in the run,
    `device` is where Lightning has put the net.
    """
    flop, resources, device = step_flop(client, sample), resources or Resources(), device or Device()
    evaluation = _threads(flop / client.batch_size * evaluated_rows, resources)
    part = -(-per_round // resources.processes)
    device = _decided(request, device, flop, part)
    work = Work(client, planned, part, rounds, sample, flop, device, shares or {}, _threads(flop, resources))
    chosen = _on_gpu(request, work) if device.name == "gpu" else _engine(request, work, resources)
    chosen = replace(chosen, evaluation_threads=evaluation, processes=resources.processes, accelerator=device.name)
    not_compiled, why = _eager_evaluation(
        chosen, flop / PASSES / client.batch_size * measured_rows / resources.processes
    )
    return replace(chosen, evaluation="eager" if not_compiled else "compiled", evaluation_why=why)


def _eager_evaluation(chosen: EngineChoice, flop: float) -> tuple[bool, str]:
    """Whether models are measured eagerly in a run that measures with so many operations; and why."""
    seconds = flop / FLOP_S
    if chosen.convolution != "direct":
        return True, "the gain is in direct convolutions, which the training does not have"
    if seconds < MEASURING_PAYS_S:
        return True, f"about {seconds:.0f} s in the run: compiling would not pay"
    return False, f"about {seconds:.0f} s in the run eagerly"


def _decided(request: Request, device: Device, flop: float, clients: int) -> Device:
    """Where to train: as asked, or, with `auto`, a GPU where there is one and it pays. `auto` says why."""
    if request.accelerator != "auto":
        return device
    if device.name == "cpu":
        log.info("accelerator: cpu (there is not a GPU for every process of this run)")
        return device
    pays, why = gpu_pays(flop, clients)
    log.info(f"accelerator: {'gpu' if pays else 'cpu'} ({why})")
    return device if pays else device.at_the_host()


def _on_gpu(request: Request, work: Work) -> EngineChoice:
    """Eager lanes, one for each client of the cohort; one client after the other where a net cannot be mapped."""
    client = work.client
    require(not request.compiled, f"trainer.compiled is true, but {work.device.not_compilable()}. Leave it out.")
    require(
        request.workers in (None, 1),
        f"trainer.workers is {request.workers}, but a GPU is kept busy by lanes, not by threads. Leave it out.",
    )
    if request.engine == "sequential":
        return _sequential("as asked", 1)
    why = not_vectorizable(client, work.sample) or one_lane(client)
    if why is not None:
        require(
            request.engine == "auto",
            f"trainer.engine is vectorized, but on a GPU this net trains one client after the other: {why}. Set "
            "trainer.engine to sequential or auto.",
        )
        return _sequential(why, 1)
    lanes = request.lanes or work.per_round
    chosen = EngineChoice("vectorized", lanes, 1, False, _capacity(work, lanes), 1, str(work))
    why = _step_forbids(request, work, chosen)
    return chosen if why is None else _sequential(why, 1)


def _threads(flop: float, resources: Resources) -> int:
    return resources.cores if flop >= THREADED_FLOP else 1


def _engine(request: Request, work: Work, resources: Resources) -> EngineChoice:
    client, sample, device = work.client, work.sample, work.device
    reason = not_vectorizable(client, sample)
    threads = work.threads
    no_compiler = is_unrolled(client) or client.not_compilable() or device.not_compilable() or missing_compiler()
    compiled = no_compiler is None and request.compiled is not False
    require(
        not request.compiled or device.is_plain,
        f"trainer.compiled is true, but {device.not_compilable()}. Leave trainer.compiled out, or set "
        "trainer.precision to 32-true.",
    )
    if request.engine == "sequential":
        return _sequential("as asked", threads)
    if reason is not None:
        return _sequential(reason, threads)
    check_one_lane(request, client)
    if request.engine == "auto":
        eager_is_slow = not compiled and (one_lane(client) is not None or not _is_small(client.net))
        if eager_is_slow:  # one lane gains nothing, and large nets lose
            return _sequential(no_compiler or one_lane(client) or "the eager form is slower on this network", threads)
        if request.compiled is None and not _compiling_pays(work, _workers(request, work, resources)):
            return _sequential(f"{work}: compiling would not pay", threads)
    eager = no_compiler or one_lane(client) or str(work)
    chosen = _vectorized(request, work, compiled, threads, str(work) if compiled else eager, resources)
    why = _step_forbids(request, work, chosen)
    if why is not None:
        return _sequential(why, threads)
    if not compiled or not _convolves(client):
        return chosen
    not_direct = not_direct_convolutions(client, sample)
    if not_direct is None:
        return replace(chosen, convolution="direct")
    return replace(chosen, why=f"{chosen.why}; torch's convolutions: {not_direct}")


def _step_forbids(request: Request, work: Work, chosen: EngineChoice) -> str | None:
    """Why the step can only be run one client after the other; an error where the vectorized engine was asked for."""
    padded = reads_padding(work.client, work.sample)
    if padded is not None:
        check_not_asked_for(request, work.client, padded)
        return f"{padded} reads padding rows: use batch.row_weights, or self.task_loss"
    place = reads_values(work.client, work.sample) if chosen.compiled or chosen.lanes > 1 else None
    if place is not None and request.engine == "vectorized":
        raise ValueReadError(place)
    return None if place is None else f"{place} asks for a tensor's value: use torch.where, not a branch or .item()"


def check_same_engine(recorded: dict[str, Any], request: Request, processes: int = 1) -> None:
    """A resumed run keeps the engine it began with: another one would not give the same bits.

    With another number of processes or another accelerator the bits are not the same anyway, and lanes and workers may
    be others too.
    """
    again = recorded["choice"].get("processes", 1) == processes and stays(recorded, request)
    for name in ("engine", "lanes", "workers", "compiled", "threads") if again else ("engine", "compiled"):
        asked, had = getattr(request, name), recorded["choice"][name]
        if asked not in (None, "auto", had, recorded["request"].get(name)):
            raise ResumeError(
                f"trainer.{name} is {asked}, but the run to resume used {had}, and another value would not give the "
                f"same bits. Leave trainer.{name} out, or start anew in another folder (--run DIR)."
            )


def stays(recorded: dict[str, Any], request: Request) -> bool:
    """Whether a resumed run trains where it did: on the accelerator that it had, unless another one is asked for."""
    had = recorded["choice"].get("accelerator", "cpu")
    return request.accelerator == had or (request.accelerator == "auto" and (had == "cpu" or request.has_gpu))


def resumed_request(recorded: dict[str, Any], request: Request) -> Request:
    """What a run is asked for that continues with other processes or elsewhere: the same engine, in the same form."""
    had = recorded["choice"]
    if not stays(recorded, request):  # where it goes on, the other form may not exist
        return replace(request, engine=had["engine"] if had["engine"] == "sequential" else "auto")
    form = had["compiled"] if had["engine"] == "vectorized" else None
    return replace(request, engine=had["engine"], compiled=form, accelerator=had.get("accelerator", "cpu"))


def make_engine(choice: EngineChoice, seed: int, rows: Rows, device: Device | None = None) -> Engine:
    """The engine of a choice."""
    engine: Engine = SequentialEngine(seed, rows)
    if choice.engine == "vectorized":
        wants_native = choice.compiles == "loop" and choice.compiled
        why_python = missing_lanes() if wants_native else None
        engine = (NativeEngine if wants_native and why_python is None else VectorizedEngine)(
            seed,
            rows,
            lanes=choice.lanes,
            workers=choice.workers,
            compiled=choice.compiled,
            capacity=choice.capacity,
            direct_convolution=choice.convolution == "direct",
            compiles=choice.compiles,
            loops=choice.loops,
            why_python=why_python,
        )
    return on_device(engine, device or Device())


def make_forward(choice: EngineChoice, client: Client, rows: Rows, device: Device, ranks: Ranks) -> Forward:
    """What measures models, by a choice."""
    if choice.evaluation == "compiled" and device.is_plain:
        return CompiledForward(client, rows, choice.evaluation_threads, ranks)
    return Forward(client, rows, device, ranks)


def not_vectorizable(client: Client, sample: Tensor) -> str | None:
    """Why this net can only be trained by the sequential engine, or None."""
    if draws_by_itself(client, sample):
        return "a layer draws random numbers from a stream that lanes and threads would share, as nn.RReLU does"
    return None


def is_unrolled(client: Client) -> str | None:
    """Why the net is not compiled, or None."""
    if any(isinstance(module, nn.RNNBase) for module in client.net.modules()):
        return "recurrent layers are unrolled by the compiler, which takes longer than most runs"
    return None


def one_lane(client: Client) -> str | None:
    """Why the vectorized engine trains this net in one lane, or None."""
    if mixes_rows(client):
        held = next((f"the buffer '{name}'" for name, _ in client.net.named_buffers()), "BatchNorm")
        return f"the net has {held}, so its batches are not padded to the fixed size that lanes need"
    return is_unrolled(client)  # vmap has no rule for LSTM


def not_direct_convolutions(client: Client, sample: Tensor) -> str | None:
    """Why the compiled program keeps torch's convolutions, or None.

    All or none: where direct ones and torch's meet, pictures would be turned from one layout to the other and back.
    """
    unsuited = next((used.why_not for used in convolutions(client, sample) if used.why_not), None)
    return unsuited or missing_convolution()


def check_one_lane(request: Request, client: Client) -> None:
    """Refuse what a net that runs in one lane, or is not compiled, cannot have."""
    unrolled = is_unrolled(client)
    require(
        not request.compiled or unrolled is None,
        f"trainer.compiled is true, but {unrolled}. Leave trainer.compiled out.",
    )
    require(
        request.lanes in (None, 1) or one_lane(client) is None,
        f"trainer.lanes is {request.lanes}, but a net with recurrent layers, BatchNorm or other buffers trains in one "
        "lane. Leave trainer.lanes out.",
    )


def check_not_asked_for(request: Request, client: Client, method: str) -> None:
    """Refuse the vectorized engine for a step that would be wrong in it."""
    require(
        request.engine != "vectorized",
        f"trainer.engine is vectorized, which fills every batch up to one size, but {type(client).__name__}.{method} "
        "reads the padding: its result changes with rows of weight 0. Let it weigh one loss per row, "
        "(losses * batch.row_weights).sum(), which is what self.task_loss(batch) does; or set trainer.engine to "
        "sequential, which pads nothing.",
    )


def draws_by_itself(client: Client, sample: Tensor) -> bool:
    """Whether a training pass of the net moves torch's generator (nn.RReLU, AlphaDropout …); keyed dropout does not."""
    batch = sample.unsqueeze(0).expand(min(client.batch_size, COUNTED_ROWS), *sample.shape)
    training = client.net.training
    client.net.train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.random.get_rng_state()
        with KeyedDropout(torch.tensor(0)):
            functional_call(client.net, clone(dict(client.net.named_buffers())), (batch,))  # copies: BatchNorm writes
        moved = not torch.equal(before, torch.random.get_rng_state())
    client.net.train(training)
    return moved


def _sequential(why: str, threads: int) -> EngineChoice:
    return EngineChoice("sequential", lanes=1, workers=1, compiled=False, capacity=0, threads=threads, why=why)


def _vectorized(
    request: Request, work: Work, compiled: bool, threads: int, why: str, resources: Resources
) -> EngineChoice:
    workers = _workers(request, work, resources) if compiled else request.workers or 1
    lanes = request.lanes or _lanes(work.client, work.planned, work.per_round, workers, compiled)
    chosen = EngineChoice("vectorized", lanes, workers, compiled, _capacity(work, lanes * workers), threads, why)
    return replace(chosen, compiles="step") if compiled and mixes_rows(work.client) else chosen


def _workers(request: Request, work: Work, resources: Resources) -> int:
    """Threads that call a compiled program."""
    return request.workers or min(resources.cores, work.per_round)


def _compiling_pays(work: Work, workers: int) -> bool:
    if not mixes_rows(work.client):
        return work.seconds >= COMPILE_PAYS_S
    return work.seconds - work.seconds_by_compiled_steps(workers) >= compile_step_s(work.client)


def _capacity(work: Work, lanes: int) -> int:
    """Steps of a lane that are scheduled at a time, for so many lanes in all."""
    heaviest = np.sort(work.planned)[-work.per_round :].sum() / lanes + int(work.planned.max())
    return min(MAX_CAPACITY, 1 << (max(int(heaviest), 1) - 1).bit_length())  # few shapes: programs are cached


def _lanes(client: Client, planned: np.ndarray, per_round: int, workers: int, compiled: bool) -> int:
    """One for convolutions (vmap would group them) and large nets; else what the longest client leaves room for."""
    if _convolves(client) or one_lane(client) is not None:
        return 1
    if not compiled:
        return min(per_round, EAGER_LANES)
    if not _is_small(client.net):
        return 1
    longest = np.quantile(planned, 1 - 1 / (per_round + 1))
    return int(np.clip(np.ceil(per_round * planned.mean() / longest / workers), 1, 5))


def _convolves(client: Client) -> bool:
    return any(isinstance(module, nn.modules.conv._ConvNd) for module in client.net.modules())


def _is_small(net: nn.Module) -> bool:
    return sum(value.numel() for value in net.parameters()) <= SMALL_NET
