"""Which engine, how many lanes and workers, compiled or not: decided once, from counted work, and recorded."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from fedlit.client import Client
from fedlit.engines.base import Engine, Rows
from fedlit.engines.compiler import missing_compiler
from fedlit.engines.probe import reads_padding
from fedlit.engines.program import mixes_rows
from fedlit.engines.sequential import SequentialEngine
from fedlit.engines.vectorized import MAX_CAPACITY, VectorizedEngine
from fedlit.errors import ResumeError, require
from fedlit.params import clone

EngineName = Literal["auto", "sequential", "vectorized"]

COMPILE_PAYS_S = 12.0
"""Estimated seconds of the sequential engine above which compiling (about 10 s the first time) pays."""
STEP_S, FLOP_S = 3e-4, 2e10
"""Rough costs of a sequential step: its overhead, and the floating-point operations done in a second."""
THREADED_FLOP = 1e8
"""Operations of a step from which threads inside one operation help; below, they only wait for each other."""
SMALL_NET = 20_000
"""Parameters up to which several lanes beat one (docs/performance.md)."""
COUNTED_ROWS = 1024
"""Rows of a batch on which operations are counted, at most: more only cost memory."""
EAGER_LANES = 16
"""Lanes of the eager form, which lives from stacking many clients."""


@dataclass(frozen=True)
class Choice:
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

    def line(self) -> str:
        """One line for the user."""
        form = f", {self.lanes} lanes × {self.workers} workers" if self.engine == "vectorized" else ""
        compiled = (", compiled" if self.compiled else ", eager") if self.engine == "vectorized" else ""
        processes = f", {self.processes} processes" if self.processes > 1 else ""
        return f"engine: {self.engine}{form}{compiled}{processes} ({self.why})"


@dataclass(frozen=True)
class Request:
    """What the user asked for; None = decide."""

    engine: EngineName = "auto"
    lanes: int | None = None
    workers: int | None = None
    compiled: bool | None = None


@dataclass(frozen=True)
class Room:
    """What a process of the run has: its part of the machine, and of the cohort."""

    processes: int = 1
    here: int = 1
    """Processes on the same machine."""

    @property
    def cores(self) -> int:
        """Cores for this process alone, at least one."""
        return max(1, len(os.sched_getaffinity(0)) // self.here)


def choose(
    request: Request,
    client: Client,
    planned: np.ndarray,
    per_round: int,
    rounds: int,
    sample: Tensor,
    *,
    evaluated_rows: int = 0,
    room: Room | None = None,
) -> Choice:
    """Decide from the steps that each client plans for a round (`planned`), the cohort's size and a sample's shape.

    `evaluated_rows` are the rows of a pass when models are measured.
    """
    flop, room = step_flop(client, sample), room or Room()
    evaluation = _threads(flop / client.batch_size * evaluated_rows, room)
    share = -(-per_round // room.processes)
    chosen = _engine(request, client, planned, share, rounds, sample, flop, room)
    return replace(chosen, evaluation_threads=evaluation, processes=room.processes)


def _threads(flop: float, room: Room) -> int:
    return room.cores if flop >= THREADED_FLOP else 1


def _engine(
    request: Request,
    client: Client,
    planned: np.ndarray,
    per_round: int,
    rounds: int,
    sample: Tensor,
    flop: float,
    room: Room,
) -> Choice:
    reason = not_vectorizable(client, sample)
    steps = rounds * per_round * float(planned.mean())
    seconds = steps * (STEP_S + flop / FLOP_S)
    work = f"about {steps:,.0f} local steps of {flop:.1e} flop, {seconds:,.0f} s one by one"
    threads = _threads(flop, room)
    one_lane = one_eager_lane(client)
    no_compiler = one_lane or client.not_compilable() or missing_compiler()
    compiled = no_compiler is None and request.compiled is not False
    if request.engine == "sequential":
        return _sequential("as asked", threads)
    if reason is not None:
        return _sequential(reason, threads)
    if one_lane is not None:
        check_one_eager_lane(request, one_lane)
        if request.engine == "auto":  # one eager lane gains nothing
            return _sequential(one_lane, threads)
    if request.engine == "auto":
        if seconds < COMPILE_PAYS_S and request.compiled is None:
            return _sequential(f"{work}: compiling would not pay", threads)
        if not compiled and not _is_small(client.net):
            return _sequential(no_compiler or "the eager form is slower on this network", threads)
    padded = reads_padding(client, sample)
    if padded is not None:
        check_not_asked_for(request, client, padded)
        return _sequential(f"{padded} reads padding rows: use batch.row_weights, or self.task_loss", threads)
    return _vectorized(request, client, planned, per_round, compiled, threads, no_compiler or work, room)


def check_same_engine(recorded: dict[str, Any], request: Request, processes: int = 1) -> None:
    """A resumed run keeps the engine it began with: another one would not give the same bits.

    With another number of processes the bits are not the same anyway, and lanes and workers may be others too.
    """
    again = recorded["choice"].get("processes", 1) == processes
    for name in ("engine", "lanes", "workers", "compiled") if again else ("engine", "compiled"):
        asked, had = getattr(request, name), recorded["choice"][name]
        if asked not in (None, "auto", had, recorded["request"][name]):
            raise ResumeError(
                f"trainer.{name} is {asked}, but the run to resume used {had}, and another value would not give the "
                f"same bits. Leave trainer.{name} out, or start anew in another folder (--run DIR)."
            )


def resumed_request(recorded: dict[str, Any], request: Request) -> Request:
    """What a run is asked for that continues with another number of processes: the same engine, in the same form."""
    had = recorded["choice"]
    return replace(request, engine=had["engine"], compiled=had["compiled"] if had["engine"] == "vectorized" else None)


def make_engine(choice: Choice, seed: int, rows: Rows) -> Engine:
    """The engine of a choice."""
    if choice.engine == "sequential":
        return SequentialEngine(seed, rows)
    return VectorizedEngine(
        seed, rows, lanes=choice.lanes, workers=choice.workers, compiled=choice.compiled, capacity=choice.capacity
    )


def not_vectorizable(client: Client, sample: Tensor) -> str | None:
    """Why this net can only be trained by the sequential engine, or None."""
    if draws_by_itself(client, sample):
        return "the net draws random numbers (dropout) from a stream that lanes and threads would share"
    return None


def one_eager_lane(client: Client) -> str | None:
    """Why the vectorized engine trains this net in one lane and does not compile it, or None."""
    if any(isinstance(module, nn.RNNBase) for module in client.net.modules()):  # vmap has no rule for LSTM either
        return "recurrent layers are unrolled by the compiler, which takes longer than most runs"
    if mixes_rows(client):
        held = next((f"the buffer '{name}'" for name, _ in client.net.named_buffers()), "BatchNorm")
        return f"the net has {held}, so its batches are not padded to the fixed size that compiling needs"
    return None


def check_one_eager_lane(request: Request, why: str) -> None:
    """Refuse what a net that runs in one eager lane cannot have."""
    require(not request.compiled, f"trainer.compiled is true, but {why}. Leave trainer.compiled out.")
    require(
        request.lanes in (None, 1),
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


def step_flop(client: Client, sample: Tensor) -> float:
    """Floating-point operations of one local step: about three forward passes over a batch."""
    rows = min(client.batch_size, COUNTED_ROWS)
    batch = sample.unsqueeze(0).expand(rows, *sample.shape)
    training = client.net.training
    client.net.eval()  # counting must not move BatchNorm's statistics nor draw for dropout
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_LSTM_FLOP) as counter:
        client.net(batch)
    client.net.train(training)
    return 3.0 * float(counter.get_total_flops()) * (client.batch_size / rows)


def _lstm_flop(x: Sequence[int], w_in: Sequence[int], w_hidden: Sequence[int], *_: Any, **__: Any) -> int:
    """A layer's two products at every step: x is (steps, rows, features), the weights (4 hidden, …)."""
    steps, rows, _features = x
    return 2 * steps * rows * (prod(w_in) + prod(w_hidden))


_LSTM_FLOP = {torch.ops.aten.mkldnn_rnn_layer: _lstm_flop}
"""What torch's counter does not know: nn.LSTM in float32 is one operator a layer."""


def draws_by_itself(client: Client, sample: Tensor) -> bool:
    """Whether a training pass of the net moves torch's generator (nn.Dropout, F.dropout, RReLU …)."""
    batch = sample.unsqueeze(0).expand(min(client.batch_size, COUNTED_ROWS), *sample.shape)
    training = client.net.training
    client.net.train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.random.get_rng_state()
        functional_call(client.net, clone(dict(client.net.named_buffers())), (batch,))  # copies: BatchNorm writes
        moved = not torch.equal(before, torch.random.get_rng_state())
    client.net.train(training)
    return moved


def _sequential(why: str, threads: int) -> Choice:
    return Choice("sequential", lanes=1, workers=1, compiled=False, capacity=0, threads=threads, why=why)


def _vectorized(
    request: Request,
    client: Client,
    planned: np.ndarray,
    per_round: int,
    compiled: bool,
    threads: int,
    why: str,
    room: Room,
) -> Choice:
    workers = request.workers or (min(room.cores, per_round) if compiled else 1)
    lanes = request.lanes or _lanes(client, planned, per_round, workers, compiled)
    longest = int(planned.max())
    heaviest = np.sort(planned)[-per_round:].sum() / (lanes * workers) + longest
    capacity = min(MAX_CAPACITY, 1 << (max(int(heaviest), 1) - 1).bit_length())  # few shapes: programs are cached
    return Choice("vectorized", lanes, workers, compiled, capacity, threads, why)


def _lanes(client: Client, planned: np.ndarray, per_round: int, workers: int, compiled: bool) -> int:
    """One for convolutions (vmap would group them) and large nets; else what the longest client leaves room for."""
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in client.net.modules())
    if convolves or one_eager_lane(client) is not None:
        return 1
    if not compiled:
        return min(per_round, EAGER_LANES)
    if not _is_small(client.net):
        return 1
    longest = np.quantile(planned, 1 - 1 / (per_round + 1))
    return int(np.clip(np.ceil(per_round * planned.mean() / longest / workers), 1, 5))


def _is_small(net: nn.Module) -> bool:
    return sum(value.numel() for value in net.parameters()) <= SMALL_NET
