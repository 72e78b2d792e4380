"""Devices and number formats: the only file that knows where clients train and in which numbers.

The server, its callbacks and weightings, and the rows of clients are *at home*: in the host's memory, in float32 or
float64. A cohort is sent to the device for a local solve (the data set and the net are already there), and its rows
come back in one copy. So the server's code is the same for every device, and a step never waits for the host.

The rules here: which accelerators exist, when a GPU pays, which precisions engines support.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.plugins import MixedPrecision
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.step import Phase
from fedlit.engines.base import BatchPlan, Engine, Solved, Store, TrainData
from fedlit.engines.distributed import DataPart
from fedlit.engines.flat_layout import FlatLayout
from fedlit.engines.lanes import CohortWork, LaneJob, Worker
from fedlit.engines.sequential import SequentialEngine
from fedlit.engines.vectorized import VectorizedEngine
from fedlit.errors import ConfigError, nearest
from fedlit.params import Params, at_least_float32, row

Accelerator = Literal["auto", "cpu", "gpu"]
Precision = Literal["32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true"]

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")
_NEEDS_SCALER = (
    "its gradients leave the range of 16-bit floats unless the loss is scaled by a factor that is adapted from step to "
    "step, and a step of many clients at once has no such factor"
)
GPU_FLOP = 1e9
"""Operations of one step of a whole cohort from which `auto` takes a GPU: below, it waits for the host that starts its
operations. A rule of thumb (1e9 are 50 ms of a core, an eager step takes some ms to start); not measured on a GPU."""
_HOST = torch.device("cpu")
_HOSTS_MIXED = partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=False)


# ---- rules ---------------------------------------------------------------------------------------------------------


def find_accelerator(accelerator: str, devices: int) -> Literal["cpu", "cuda"]:
    """Lightning's name of the accelerator that was asked for; with `auto`, the processor may still be chosen later."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if accelerator == "cpu":
        return "cpu"
    if accelerator == "auto":
        return "cuda" if there >= devices else "cpu"
    if accelerator not in ("gpu", "cuda"):
        raise ConfigError(
            f"trainer.accelerator is {accelerator}. {nearest(accelerator, ['auto', 'cpu', 'gpu'])}Clients train on "
            "processors or on NVIDIA or AMD GPUs: give auto, cpu or gpu."
        )
    if there == 0:
        raise ConfigError(
            f"trainer.accelerator is {accelerator}, but this machine has no GPU that PyTorch {torch.__version__} can "
            "use. Set trainer.accelerator to cpu or auto, or install a PyTorch that is built for your GPU."
        )
    if there < devices:
        raise ConfigError(
            f"trainer.accelerator is {accelerator} and trainer.devices is {devices}, but this machine has {there} "
            f"GPU{'s' * (there > 1)}, and every process needs its own. Set trainer.devices to {there}, or "
            "trainer.accelerator to cpu: processes then share the cores."
        )
    return "cuda"


def check_precision(precision: object) -> None:
    """Refuse number formats that no engine supports, each with its reason."""
    if precision in ("16-mixed", "16-true"):
        other = "bf16-mixed" if precision == "16-mixed" else "bf16-true"
        raise ConfigError(
            f"trainer.precision is {precision}, which fedlit does not support: {_NEEDS_SCALER}. Set trainer.precision "
            f"to {other}, which has the range of 32-bit floats and needs none."
        )
    if precision not in PRECISIONS:
        raise ConfigError(
            f"trainer.precision is {precision}. {nearest(str(precision), PRECISIONS)}Give {', '.join(PRECISIONS[:-1])} "
            f"or {PRECISIONS[-1]}."
        )


def gpu_pays(flop: float, clients: int) -> tuple[bool, str]:
    """Whether a step of `clients` clients at once, with `flop` operations each, is worth a GPU; and why."""
    together = flop * clients
    work = f"one step of {clients} client{'s' * (clients != 1)} at once is {together:.1e} flop"
    return together >= GPU_FLOP, f"{work}, and a GPU pays from about {GPU_FLOP:.0e}"


# ---- where things are ----------------------------------------------------------------------------------------------


@dataclass
class Device:
    """Where clients train and models are evaluated, and in which numbers.

    Args:
        at: the device.
        low: the number format of the net there, if it differs from that at home.
        mixed: Lightning's context in which a net computes partly in a lower format; None without mixed precision.
    """

    at: torch.device = _HOST
    low: torch.dtype | None = None
    mixed: Callable[[], AbstractContextManager[object]] | None = None
    _store: tuple[Store, Store] = field(default_factory=lambda: ({}, {}), repr=False)

    @classmethod
    def of(cls, trainer: Trainer) -> "Device":
        """Where Lightning has put the net, and in which numbers."""
        mixed = isinstance(trainer.precision_plugin, MixedPrecision)
        low = torch.bfloat16 if trainer.precision == "bf16-true" else None
        return cls(trainer.strategy.root_device, low, trainer.precision_plugin.forward_context if mixed else None)

    @classmethod
    def at_home(cls, precision: str) -> "Device":
        """The processor, in the numbers of a run with this precision."""
        low = torch.bfloat16 if precision == "bf16-true" else None
        return cls(low=low, mixed=_HOSTS_MIXED if precision == "bf16-mixed" else None)

    @property
    def name(self) -> Literal["cpu", "gpu"]:
        """The user's name for it."""
        return "cpu" if self.at == _HOST else "gpu"

    @property
    def is_home(self) -> bool:
        """Whether tensors need not be sent: it is the host, with the home's numbers."""
        return self.at == _HOST and self.low is None

    @property
    def is_plain(self) -> bool:
        """Whether it is the host, with the home's numbers and without mixed precision."""
        return self.is_home and self.mixed is None

    def not_compilable(self) -> str | None:
        """Why programs cannot be compiled for this device, or None."""
        if self.name == "gpu":
            return "compiled programs are for processors; on a GPU lanes run eagerly"
        return None if self.is_plain else "16-bit numbers run in the eager form"

    def at_the_host(self) -> "Device":
        """The same numbers, on the processor."""
        return replace(self, at=_HOST, mixed=_HOSTS_MIXED if self.mixed else None, _store=({}, {}))

    def settled(self, name: str, client: Client, optimizers: Iterable[torch.optim.Optimizer]) -> "Device":
        """The device by its decided name, with the client moved there and the server's optimisers moved home.

        Lightning restores the optimisers on its own device.
        """
        if not self.is_home:
            for optimizer in optimizers:
                optimizer.load_state_dict(optimizer.state_dict())  # moves the state to its parameters' device
        if name == self.name:
            return self
        client.to(_HOST)
        return self.at_the_host()

    def computing(self) -> AbstractContextManager[object]:
        """The context for every pass of the net."""
        return nullcontext() if self.mixed is None else self.mixed()

    def put(self, value: Tensor) -> Tensor:
        """Send a tensor; one row for all clients stays a view of one row. The host does not wait for the copy."""
        if self.is_home:
            return value
        if value.dim() and value.stride(0) == 0 and len(value):
            return self.put(value[0]).unsqueeze(0).expand(value.shape)
        dtype = self.low if self.low is not None and value.is_floating_point() else value.dtype
        return value.to(self.at, dtype, non_blocking=True)

    def sent(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Send tensors; at home the same objects are returned."""
        return tensors if self.is_home else {name: self.put(value) for name, value in tensors.items()}

    def home(self, tensors: Params) -> Params:
        """Bring stacked rows home, in one copy for which the host waits."""
        if self.is_home or not tensors:
            return tensors
        layout = FlatLayout.of(tensors, stacked=True)
        rows = layout.split(layout.join(tensors).cpu())
        return {name: value.to(at_least_float32(value.dtype)) for name, value in rows.items()}

    def home_one(self, tensors: Params) -> Params:
        """Bring tensors home that are not stacked."""
        if self.is_home:
            return tensors
        return row(self.home({name: value.unsqueeze(0) for name, value in tensors.items()}), 0)

    def cohort(self, cohort: TrainedCohort, phase: Phase) -> TrainedCohort:
        """A cohort with its rows on the device; steps and sizes, which plans need, stay at home."""
        there = replace(cohort, parts=dict(cohort.parts))
        there.received, there.received_buffers = (
            dict(self.sent(cohort.received)),
            dict(self.sent(cohort.received_buffers)),
        )
        there.state, there.sent = dict(self.sent(cohort.state)), dict(self.sent(cohort.sent))
        there.optimizer_state = dict(self.sent(cohort.optimizer_state))
        if phase.start == "trained":
            there.params, there.buffers = dict(self.sent(cohort.params)), dict(self.sent(cohort.buffers))
        return there

    def store(self, store: Store) -> Store:
        """The data set on the device, sent once; the store of fresh clients replaces it."""
        if self.is_home:
            return store
        before, there = self._store
        if before.keys() != store.keys() or any(before[name] is not value for name, value in store.items()):
            there = dict(self.sent(store))
            self._store = (dict(store), there)
        return there

    @contextmanager
    def client_at_home(self, client: Client) -> Iterator[None]:
        """Move the client to the host while servers copy its model, or while its work is counted and tried."""
        if self.is_home:
            yield
            return
        client.to(_HOST)
        if self.low is not None:
            client.float()
        yield
        client.to(self.at, self.low)


# ---- engines there -------------------------------------------------------------------------------------------------


class DeviceEngine(Engine):
    """Any engine on a device: the cohort is sent there, and its rows come back in one copy.

    Args:
        engine: what trains there.
        device: where it trains, and in which numbers.
    """

    def __init__(self, engine: Engine, device: Device) -> None:
        super().__init__(engine.seed, engine.rows)
        self.engine, self.device = engine, device

    def train(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> Solved:
        """Train on the device, and bring the result home."""
        self.engine.ranks = self.ranks
        there = DataPart(self.device.store(data.store), data.train, data.vary, data.largest)
        with self.device.computing():
            solved = self.engine.train(client, self.device.cohort(cohort, phase), there, phase)
        return Solved.from_flat(self.device.home(solved.flat()))


@dataclass(frozen=True)
class SentPlan(BatchPlan):
    """A client's mini-batches, with all row numbers on the device."""

    sent: Tensor


class DeviceSequential(SequentialEngine):
    """The sequential engine with the row numbers of batches on the device.

    Args:
        engine: the engine whose seed and rows it takes.
        device: where it trains.
    """

    def __init__(self, engine: SequentialEngine, device: Device) -> None:
        super().__init__(engine.seed, engine.rows)
        self.device = device

    def prepared(self, plan: BatchPlan) -> BatchPlan:
        """Send the plan's row numbers."""
        return SentPlan(plan.index, plan.counts, self.device.put(torch.from_numpy(plan.index)))

    def row_numbers(self, plan: BatchPlan, batch: int, rows: int) -> Tensor:
        """A view of the batch's row numbers."""
        assert isinstance(plan, SentPlan)
        return plan.sent[batch, :rows]

    @contextmanager
    def drawing(self, key: int) -> Iterator[None]:
        """Seed the device's own generator too."""
        with super().drawing(key):
            if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's
                yield
                return
            generator = torch.cuda.default_generators[self.device.at.index or 0]
            before = generator.get_state()
            generator.manual_seed(key)
            yield
            generator.set_state(before)


class DeviceWorker(Worker):
    """Lanes whose rows torch copies: they are on a device, or in a format that NumPy does not have."""

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        """The schedule on the host, sent once for a window."""
        return [np.zeros(part.shape, _ARRAYS.get(part.dtype, np.float32)) for part in self.schedule if part is not None]

    def _fill(
        self, timeline: list[list[LaneJob]], plans: dict[int, BatchPlan], keys: dict[int, np.ndarray], window: int
    ) -> None:
        super()._fill(timeline, plans, keys, window)
        for part, array in zip(self.schedule, self.arrays, strict=True):
            assert part is not None
            part.copy_(torch.from_numpy(array), non_blocking=True)

    def _take(self, lane: int, row: int, work: CohortWork) -> None:
        work.out[row].copy_(self.carried_rows[lane])

    def _put(self, lane: int, row: int, work: CohortWork) -> None:
        self.carried_rows[lane].copy_(work.out[row])
        one = {name: value[row : row + 1] for name, value in work.context.items()}
        self.context_rows[lane].copy_(self.context.join(one)[0])


_ARRAYS = {torch.int64: np.int64, torch.float64: np.float64}


def on_device(engine: Engine, device: Device) -> Engine:
    """The engine for this device; the engine itself on a processor with plain numbers."""
    if device.is_plain:
        return engine
    if not device.is_home:
        if isinstance(engine, SequentialEngine):
            engine = DeviceSequential(engine, device)
        if isinstance(engine, VectorizedEngine):
            engine.worker = DeviceWorker
    return DeviceEngine(engine, device)
