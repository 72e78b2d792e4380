"""What a local step is given and gives back, and how its tensors are named: words that clients and engines share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from fedlit.client.local_optimizers import LocalOptimizer
from fedlit.params import Params


class Batch(NamedTuple):
    """A mini-batch. `row_weights` is 1/n for the n real rows and 0 for padding, so ragged batches are exact."""

    x: Tensor
    y: Tensor
    row_weights: Tensor


Batches = Batch | tuple[Batch, ...]
"""What a step is given: one batch, or, with `batches_per_step` above 1, a tuple of independent ones."""


@dataclass(frozen=True)
class Phase:
    """One local solve of a client; the loop calls the engine once for each."""

    name: str = "local"
    start: str = "received"
    """Where the parameters start: `received`, `trained` (by the phase before), or the name of a whole-model state."""
    step_method: str = "training_step"
    """The method whose gradient is followed."""
    work_method: str = "local_work"
    """The method that says how many steps each client takes."""
    writes: str = ""
    """The whole-model state that the result becomes; empty for the model that is sent to the server."""
    optimizer: LocalOptimizer | None = None
    """Its own optimiser, without memory between rounds; the client's when not given."""
    lr: float | None = None
    """Its own learning rate; the client's, after any decay, when not given."""
    stream: int = 0
    """Phases with different numbers draw different batches."""


AdaptOn = Literal["train", "test", "adapt"]
"""Which of a user's data a step at evaluation is taken on."""


@dataclass(frozen=True)
class Adaptation:
    """One SGD step on one batch of the user's data, taken only to be measured."""

    lr: float
    on: AdaptOn = "train"

    def describe(self) -> str:
        """In words, for the summary."""
        return f"one step of rate {self.lr:g} on {self.on} data"


@dataclass(frozen=True)
class Personal:
    """What a user's personal model is: the start, and the step with which it is adapted where it is."""

    model: str = "local"
    """`global` (z with the tensors that the user keeps), or the name of a whole-model state; `local` is x_i."""
    adapt_lr: float | None = None
    """Rate of one SGD step on one batch before it is measured; none when not given."""
    adapt_on: AdaptOn = "train"
    """Which of the user's data that batch is taken from."""

    @property
    def adaptation(self) -> Adaptation | None:
        """That step, where there is one."""
        return None if self.adapt_lr is None else Adaptation(self.adapt_lr, self.adapt_on)

    def describe(self) -> str:
        """In words, for the summary."""
        names = {"local": "x_i", "global": "z"}
        start = names.get(self.model, f"the state '{self.model}'")
        return start if self.adaptation is None else f"{start} after {self.adaptation.describe()}"


class StepOutput(NamedTuple):
    """What a step returned, in one form."""

    loss: Tensor
    task: Tensor
    carried: dict[str, Tensor]
    """Changed states under the names of the client's buffers."""


class TensorGroup(nn.Module):
    """A parameter dict as buffers, so that an engine can replace them; never saved."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = list(tensors)
        for name, value in tensors.items():
            self.register_buffer(escape(name), value.detach().clone(), persistent=False)

    def read(self) -> Params:
        """The tensors under their own names."""
        return {name: getattr(self, escape(name)) for name in self._names}


def escape(name: str) -> str:
    """A parameter's name as the name of a buffer, which must not hold a dot."""
    return name.replace(".", "/")


def buffer_name(state: str) -> str:
    """`personal.linear.weight`, a row's name, -> `personal.linear/weight`, the buffer's; a number's stays as it is."""
    group, dot, parameter = state.partition(".")
    return f"{group}{dot}{escape(parameter)}"


def state_name(buffer: str) -> str:
    """The inverse of `buffer_name`."""
    return buffer.replace("/", ".")


def parse_step_output(output: Tensor | Mapping[str, Any]) -> StepOutput:
    """A scalar or Lightning's dict (`step_errors.check_step_output`), as a StepOutput."""
    if isinstance(output, Tensor):
        return StepOutput(output, output.detach(), {})
    flat: dict[str, Tensor] = {}
    for name, value in output.items():
        if name not in ("loss", "task"):
            flat |= {name: value} if isinstance(value, Tensor) else {f"{name}.{escape(k)}": v for k, v in value.items()}
    return StepOutput(output["loss"], output.get("task", output["loss"]).detach(), flat)
