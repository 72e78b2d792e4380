"""Which engine, how many lanes and workers, compiled or not: decided once, from counted work, and recorded."""

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import nn

from fedlit.client.base import Client
from fedlit.client.step_errors import ValueReadError
from fedlit.engines.base import Engine, Rows
from fedlit.engines.compiler import missing_compiler
from fedlit.engines.cost import FLOP_S, PASSES, Work, compile_step_s, count_layers, step_flop
from fedlit.engines.device import Device, gpu_pays, on_device
from fedlit.engines.engine_choice import EngineChoice, EngineName, Request, check_same_engine, resumed_request, stays
from fedlit.engines.forward import CompiledForward, Forward
from fedlit.engines.native import NativeEngine, missing_lanes
from fedlit.engines.net_limits import (
    check_not_asked_for,
    check_one_lane,
    not_direct_convolutions,
    not_vectorizable,
    not_written_out,
    one_lane,
)
from fedlit.engines.program import mixes_rows
from fedlit.engines.resources import Resources
from fedlit.engines.sequential import SequentialEngine
from fedlit.engines.step_probe import reads_padding, reads_values
from fedlit.engines.vectorized import MAX_CAPACITY, VectorizedEngine
from fedlit.errors import require
from fedlit.inputs import Inputs
from fedlit.ranks import Ranks

__all__ = [
    "EngineChoice",
    "EngineName",
    "Request",
    "Resources",
    "check_same_engine",
    "choose",
    "make_engine",
    "make_forward",
    "resumed_request",
    "stays",
]
log = logging.getLogger("fedlit")


COMPILE_PAYS_S = 12.0
"""Estimated seconds of the sequential engine above which compiling (about 10 s the first time) pays."""
FEW_LAYERS = 10
"""Layers up to which that holds: a minute for the 36 of an adapted `CharTransformer`. Where the loop calls torch's
convolutions it owns thousands of tensors, and a C++ compiler's time grows with the square of its layers."""
MEASURING_PAYS_S = 8.0
"""Estimated seconds of a run's eager evaluation in one thread above which compiling it pays (about 7 s the first time,
1 s from the cache)."""
THREADED_FLOP = 1e8
"""Operations of a step from which threads inside one operation help; below, they only wait for each other."""
SMALL_NET = 20_000
"""Parameters up to which several lanes beat one (docs/performance.md)."""
EAGER_LANES = 16
"""Lanes of the eager form, which is fast because it stacks many clients."""


def choose(
    request: Request,
    client: Client,
    planned: np.ndarray,
    per_round: int,
    rounds: int,
    sample: Inputs,
    *,
    shares: Mapping[str, float] | None = None,
    evaluated_rows: int = 0,
    measured_rows: int = 0,
    resources: Resources | None = None,
    device: Device | None = None,
) -> EngineChoice:
    """Decide from the planned steps, the cohort's size and a sample's shape.

    Args:
        request: the user's options.
        client: the algorithm.
        planned: (clients,) the steps that each client plans for a round.
        per_round: clients of a round.
        rounds: of the run.
        sample: one x of the data.
        shares: a phase's `work_method` -> the share of the planned steps that it takes; all of them unless given.
        evaluated_rows: rows of one forward pass of an evaluation.
        measured_rows: rows of all forward passes of the run's evaluations.
        resources: of this process.
        device: where Lightning has put the net.
    """
    flop, resources, device = step_flop(client, sample), resources or Resources(), device or Device()
    evaluation = _threads(flop / client.batch_size * evaluated_rows, resources)
    part = -(-per_round // resources.processes)
    device = _device_for(request, device, flop, part)
    work = Work(client, planned, part, rounds, sample, flop, device, shares or {}, _threads(flop, resources))
    chosen = _on_gpu(request, work) if device.name == "gpu" else _engine(request, work, resources)
    chosen = replace(chosen, evaluation_threads=evaluation, processes=resources.processes, accelerator=device.name)
    not_compiled, why = _eager_evaluation(
        chosen, flop / PASSES / client.batch_size * measured_rows / resources.processes
    )
    return replace(chosen, evaluation="eager" if not_compiled else "compiled", evaluation_why=why)


def _eager_evaluation(chosen: EngineChoice, flop: float) -> tuple[bool, str]:
    """Whether models are evaluated eagerly in a run whose evaluations have so many operations; and why."""
    seconds = flop / FLOP_S
    if chosen.convolution != "direct":
        return True, "the gain is in direct convolutions, which the training does not have"
    if seconds < MEASURING_PAYS_S:
        return True, f"about {seconds:.0f} s in the run: compiling would not pay"
    return False, f"about {seconds:.0f} s in the run eagerly"


def _device_for(request: Request, device: Device, flop: float, clients: int) -> Device:
    """Where to train: as asked, or with `auto` on a GPU if there is one and it pays. `auto` logs why."""
    if request.accelerator != "auto":
        return device
    if device.name == "cpu":
        log.info("accelerator: cpu (there is not a GPU for every process of this run)")
        return device
    pays, why = gpu_pays(flop, clients)
    log.info(f"accelerator: {'gpu' if pays else 'cpu'} ({why})")
    return device if pays else device.at_the_host()


def _on_gpu(request: Request, work: Work) -> EngineChoice:
    """Eager lanes, one for each client of the cohort; the sequential engine if vmap cannot run the net."""
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
    no_compiler = client.not_compilable() or device.not_compilable() or missing_compiler()
    no_compiler = no_compiler or not_written_out(client, sample)
    compiled = no_compiler is None and request.compiled is not False
    require(
        not request.compiled or device.is_plain,
        f"trainer.compiled is true, but {device.not_compilable()}. Leave trainer.compiled out, or set "
        "trainer.precision to 32-true.",
    )
    if request.engine == "sequential":
        return _sequential("as asked", threads)
    if reason is not None:
        if request.engine == "vectorized":
            log.warning(f"trainer.engine is vectorized, but the sequential engine trains this net: {reason}.")
        return _sequential(f"{reason}; {work}", threads)
    check_one_lane(request, client, sample)
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
    """Why only the sequential engine can run the step, or None; an error if the vectorized engine was asked for."""
    module = work.client.user_module
    if module is not None and module.logged:
        logs = f"{module.name}.training_step logs {', '.join(module.logged)}"
        if request.engine == "auto":
            return f"{logs}, whose values a step of many clients does not have"
        log.info(f"{logs}: not recorded by the vectorized engine, whose steps are not run one by one")
    padded = reads_padding(work.client, work.sample)
    if padded is not None:
        check_not_asked_for(request, work.client, padded)
        return f"{padded} reads padding rows: use batch.row_weights, or self.task_loss"
    line = reads_values(work.client, work.sample) if chosen.compiled or chosen.lanes > 1 else None
    if line is not None and request.engine == "vectorized":
        raise ValueReadError(line)
    return None if line is None else f"{line} asks for a tensor's value: use torch.where, not a branch or .item()"


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
    """The evaluation's forward passes, for a choice."""
    if choice.evaluation == "compiled" and device.is_plain:
        return CompiledForward(client, rows, choice.evaluation_threads, ranks)
    return Forward(client, rows, device, ranks)


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
    """Number of threads that call a compiled program."""
    return request.workers or min(resources.cores, work.per_round)


def _compiling_pays(work: Work, workers: int) -> bool:
    if not mixes_rows(work.client):
        layers = count_layers(work.client.net)
        deep_s = layers**2 if _convolves(work.client) else compile_step_s(work.client)
        return work.seconds >= (COMPILE_PAYS_S if layers <= FEW_LAYERS else deep_s)
    return work.seconds - work.seconds_by_compiled_steps(workers) >= compile_step_s(work.client)


def _capacity(work: Work, lanes: int) -> int:
    """Steps of a lane that are scheduled together; `lanes` counts those of all workers."""
    heaviest = np.sort(work.planned)[-work.per_round :].sum() / lanes + int(work.planned.max())
    return min(MAX_CAPACITY, 1 << (max(int(heaviest), 1) - 1).bit_length())  # few shapes: programs are cached


def _lanes(client: Client, planned: np.ndarray, per_round: int, workers: int, compiled: bool) -> int:
    """One for convolutions (vmap would group them) and large nets; else as many as the longest client keeps busy."""
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
