"""Types that clients and engines share: batches, phases, the output of a step. `base.py` says what a step may read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from fedlit.client.local_optimizers import LocalOptimizer
from fedlit.params import Params


class Batch(NamedTuple):
    """A mini-batch. `row_weights` is 1/n for the n real rows and 0 for padding, so ragged batches are exact."""

    x: Any
    """One tensor; or a dict or tuple of tensors, with a row for each sample in each: `self(batch.x)` calls the net."""
    y: Tensor
    row_weights: Tensor


Batches = Batch | tuple[Batch, ...]
"""The batches of a step: one batch, or a tuple of independent ones if `batches_per_step` is above 1."""


@dataclass(frozen=True)
class Phase:
    """One local solve of a client; the loop calls the engine once for each."""

    name: str = "local"
    start: str = "received"
    """Where the parameters start: `received`, `trained` (the result of the phase before), or a whole-model state."""
    step_method: str = "training_step"
    """The method whose gradient is followed."""
    work_method: str = "local_work"
    """The method that says how many steps each client takes."""
    writes: str = ""
    """The whole-model state that the result becomes; empty for the model that is sent to the server."""
    optimizer: LocalOptimizer | None = None
    """Its own optimiser, whose state is not kept between rounds; the client's if None."""
    lr: float | None = None
    """Its own learning rate; the client's, after any decay, if None."""
    stream: int = 0
    """Phases with different numbers draw different batches."""
    summary_method: str = "summarize"
    """The method that sums something over the client's own rows at the result; none if empty."""

    @property
    def program(self) -> "ProgramKey":
        """What a compiled program depends on: phases that agree in it share one."""
        return self.start, self.step_method, self.optimizer


ProgramKey = tuple[str, str, LocalOptimizer | None]
AdaptOn = Literal["train", "test", "adapt"]
"""Which of a user's data the step before a measurement uses."""
FinetuneFrom = Literal["personal", "global"]
"""The model that is fine-tuned: the algorithm's personal model, or z with the tensors that the user keeps."""


@dataclass(frozen=True)
class Adaptation:
    """Plain SGD on the user's data, taken before a measurement and then forgotten."""

    lr: float
    on: AdaptOn = "train"
    epochs: int | None = None
    """Passes over these data in shuffled batches; None is one step on the first batch."""
    part: str | None = None
    """The part of the net that changes: a module, a parameter, or a pattern with *; None is the whole net."""

    def describe(self) -> str:
        """A text for the summary."""
        length = "one step" if self.epochs is None else "one epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        part = "" if self.part is None else f", of '{self.part}' alone"
        return f"{length} of rate {self.lr:g} on {self.on} data{part}"


@dataclass(frozen=True)
class Personal:
    """What a user's personal model is: a model, and the step that adapts it, if any."""

    model: str = "local"
    """`global` (z with the tensors that the user keeps), or the name of a whole-model state; `local` is x_i."""
    adapt_lr: float | None = None
    """Rate of one SGD step on one batch before it is measured; no step if None."""
    adapt_on: AdaptOn = "train"
    """Which of the user's data that batch is taken from."""

    @property
    def adaptation(self) -> Adaptation | None:
        """The step that adapts the model, or None."""
        return None if self.adapt_lr is None else Adaptation(self.adapt_lr, self.adapt_on)

    def describe(self) -> str:
        """A text for the summary."""
        names = {"local": "x_i", "global": "z"}
        start = names.get(self.model, f"the state '{self.model}'")
        return start if self.adaptation is None else f"{start} after {self.adaptation.describe()}"


@dataclass(frozen=True)
class Newcomer:
    """What a client gets that comes after the training, with a server's model and states at their first values."""

    personal: Personal = Personal("global")
    """The model that it uses then; z unless given."""
    phases: tuple[Phase, ...] = ()
    """Local solves before that; none unless given."""

    def describe(self) -> str:
        """A text for the summary."""
        if not self.phases:
            return self.personal.describe()
        return f"{self.personal.describe()} after a first round ({', '.join(phase.name for phase in self.phases)})"


class StepOutput(NamedTuple):
    """The output of a step, whether it returned a scalar or a dict."""

    loss: Tensor
    task: Tensor
    carried: dict[str, Tensor]
    """The states that the step changed, under the names of the client's buffers."""


class TensorGroup(nn.Module):
    """A parameter dict as buffers, so that an engine can replace them; never saved."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = list(tensors)
        for name, value in tensors.items():
            self.register_buffer(escape(name), value.detach().clone(), persistent=False)

    def read(self) -> Params:
        """The tensors under their own names."""
        pairs = zip(self._names, self._buffers.values(), strict=True)
        return {name: value for name, value in pairs if value is not None}


def escape(name: str) -> str:
    """A parameter's name as the name of a buffer, which must not hold a dot."""
    return name.replace(".", "/")


def buffer_name(state: str) -> str:
    """Name of a row -> name of its buffer: `personal.linear.weight` -> `personal.linear/weight`, `dual` -> `dual`."""
    group, dot, parameter = state.partition(".")
    return f"{group}{dot}{escape(parameter)}"


def state_name(buffer: str) -> str:
    """The inverse of `buffer_name`."""
    return buffer.replace("/", ".")


def parse_step_output(output: Tensor | Mapping[str, Any]) -> StepOutput:
    """A StepOutput from a scalar, or from a dict that `step_errors.check_step_output` has accepted."""
    if isinstance(output, Tensor):
        return StepOutput(output, output.detach(), {})
    flat: dict[str, Tensor] = {}
    for name, value in output.items():
        if name not in ("loss", "task"):
            flat |= {name: value} if isinstance(value, Tensor) else {f"{name}.{escape(k)}": v for k, v in value.items()}
    return StepOutput(output["loss"], output.get("task", output["loss"]).detach(), flat)
