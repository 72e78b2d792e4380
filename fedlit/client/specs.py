"""What an algorithm declares of its states: their first values, where they live, and what travels besides the models.

state_spec    rows kept per client    with the client, at the server (`at_server`), or both (`at_both`)
sent_spec     what goes down besides z
report_spec   what goes up besides x_i
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import TypeGuard

from torch import Tensor

from fedlit.errors import require


class ModelRow(Enum):
    """Initial value of a state that is a whole model."""

    RECEIVED = "the server's model z at the client's first participation"
    INITIAL = "the server's model z before the first round"
    ZEROS = "zeros"


RECEIVED, INITIAL, ZEROS = ModelRow

FirstValue = float | Tensor | ModelRow
"""The first value of a state: a number, a tensor of any shape, or a whole model."""


class Lives(Enum):
    """Where a state is kept between rounds."""

    CLIENT = "with the client"
    SERVER = "at the server"
    BOTH = "with the client, and at the server as it was sent last"


@dataclass(frozen=True)
class Kept:
    """An entry of a `state_spec` that does not live with the client alone."""

    first: FirstValue
    lives: Lives
    is_sent: bool
    """Whether the server sends it with z, because a step or the planned work reads it."""


StateSpec = dict[str, FirstValue | Kept]
"""What `state_spec` returns. An entry without a place lives with the client."""
FirstValues = dict[str, FirstValue]
"""The same without places."""


def at_server(first: FirstValue, *, sent: bool = False) -> Kept:
    """A state that the server keeps for each client, because it can compute it from what it sends and receives.

    Args:
        first: its first value.
        sent: whether the client reads it in a step or in `local_work`; then it is sent with z.
    """
    return Kept(first, Lives.SERVER, sent)


def at_both(first: ModelRow) -> Kept:
    """x_i (the state `local`) if the client trains from it and the server reads the last one of clients that are away.

    The server keeps it as it was reported; nothing else is sent for it.
    """
    return Kept(first, Lives.BOTH, is_sent=False)


def first_values(spec: StateSpec) -> FirstValues:
    """The first value of each state."""
    return {name: entry.first if isinstance(entry, Kept) else entry for name, entry in spec.items()}


def lives_of(spec: StateSpec) -> dict[str, Lives]:
    """Where each state lives."""
    return {name: entry.lives if isinstance(entry, Kept) else Lives.CLIENT for name, entry in spec.items()}


def sent_values(spec: StateSpec) -> FirstValues:
    """The first values of the states at the server that are sent with z."""
    return {name: entry.first for name, entry in spec.items() if isinstance(entry, Kept) and entry.is_sent}


RESERVED = {
    "received": "the received model",
    "trained": "the model of the phase before",
    "global": "the server's model, as a choice of personal model",
    "own": "the tensors of keep_local",
    "memory": "the local optimiser's state",
    "loss": "the loss in a step's dict",
    "task": "the logged loss in a step's dict",
}
"""Names that already mean something else in rows, phases or steps."""


def check_state_names(
    client: str, kept: FirstValues, sent: FirstValues, carried: Collection[str], attributes: Collection[str]
) -> None:
    """Refuse names of states that are taken already.

    Args:
        client: the class that declares them.
        kept: its `state_spec`.
        sent: its `sent_spec`.
        carried: its `carried_states`.
        attributes: names of the attributes that the client has already.
    """
    for name in carried:
        require(
            name in kept, f"{client} carries a state named '{name}', but its state_spec() lacks it. Declare it there."
        )
    for name, initial in [*kept.items(), *sent.items()]:
        what = f"{client}.{'state_spec' if name in kept else 'sent_spec'}() declares a state named '{name}', but"
        require(
            not (name in kept and name in sent), f"{what} in both state_spec() and sent_spec(). Rename one of them."
        )
        require(name not in RESERVED, f"{what} that name means {RESERVED.get(name)}. Choose another name.")
        require(name.isidentifier(), f"{what} a step reads it as self.<name>. Choose a Python name, without dots.")
        require(
            name not in attributes,
            f"{what} {client}.{name} is something else already: an attribute that __init__ sets, or one of Client's. "
            f"In a step self.{name} would mean both. Choose another name, such as 'own_{name}'; if __init__ sets the "
            "state's first value, leave that line out.",
        )
        require(
            name != "local" or isinstance(initial, ModelRow),
            f"{what} 'local' is x_i, a whole model, and here it starts as {initial}. Give RECEIVED, INITIAL or ZEROS, "
            "or choose another name.",
        )


def check_first_values(client: str, specs: Mapping[str, StateSpec]) -> None:
    """Refuse first values that are neither a number, nor a tensor of floating-point numbers, nor a whole model.

    Args:
        client: the class that declares them.
        specs: by name: `state_spec`, `sent_spec` and `report_spec`.
    """
    for spec, entries in specs.items():
        for name, first in first_values(entries).items():
            why = _misfit(first)
            require(why is None, f"{client}.{spec}() declares '{name}', but {why}")


def _misfit(first: object) -> str | None:
    """What is wrong with a first value; None if it can be one."""
    if is_number(first) or isinstance(first, ModelRow):
        return None
    if not isinstance(first, Tensor):
        return (
            f"its first value is a {type(first).__name__}. All clients begin with the same value of the same shape: "
            "give a number, a tensor such as torch.zeros(10, 64), or ZEROS, INITIAL or RECEIVED for a whole model."
        )
    if first.dim() == 0 or first.numel() == 0:
        return f"its first value is a tensor of shape {tuple(first.shape)}. Give a number, or a shape such as (10, 64)."
    if not first.is_floating_point():
        kind = str(first.dtype).removeprefix("torch.")
        return (
            f"its first value is a tensor of type {kind}. States have the model's floating-point numbers: give "
            "floats, for a mask 0.0 and 1.0."
        )
    return None


def check_places(client: str, spec: StateSpec, trained: Collection[str]) -> None:
    """Refuse states that live where they cannot; `trained` are those that steps or phases change."""
    for name, lives in lives_of(spec).items():
        require(
            lives is not Lives.BOTH or name == "local",
            f"{client}.state_spec() declares '{name}' with at_both(), which is for 'local', x_i as it is reported. "
            "Leave at_both out; if the server reads the state, declare it in report_spec() too.",
        )
        require(
            lives is not Lives.SERVER or name not in trained,
            f"{client}.state_spec() declares '{name}' with at_server(), but its local training changes it. Leave "
            "at_server out; if the server reads the state, declare it in report_spec() too.",
        )


def check_reported(client: str, kept: StateSpec, sent: StateSpec, reported: StateSpec) -> None:
    """Refuse entries of a `report_spec` that cannot be reported."""
    for name, first in reported.items():
        what = f"{client}.report_spec() declares '{name}', but"
        require(name not in sent, f"{what} sent_spec() does, too: one of them goes down and the other up. Rename one.")
        require(name.isidentifier(), f"{what} a name has no dots. Choose a Python name.")
        require(
            name not in kept or lives_of(kept)[name] is Lives.CLIENT,
            f"{what} that state lives at the server already. Leave it out of report_spec().",
        )
        require(
            name in kept or first is ZEROS or not isinstance(first, ModelRow | Kept),
            f"{what} starts it as {first}. Give a number, a tensor, or ZEROS for a whole model: what a client without "
            "a local step reports.",
        )


def is_number(first: object) -> TypeGuard[float]:
    """Whether a first value declares one number for each client."""
    return isinstance(first, Real)


def number_states(spec: FirstValues) -> list[str]:
    """Names of the states that are one number for each client."""
    return [name for name, initial in spec.items() if is_number(initial)]


def count_numbers(spec: FirstValues, model: int) -> int:
    """How many numbers the entries of a spec have together; `model` is how many a whole model has."""
    models = sum(isinstance(first, ModelRow) for first in spec.values())
    tensors = sum(first.numel() for first in spec.values() if isinstance(first, Tensor))
    return models * model + tensors + len(number_states(spec))


def row_names(spec: FirstValues, model: Collection[str]) -> list[str]:
    """Names of the rows of a spec: one for a number or a tensor, one per parameter for a whole model."""
    return [
        row
        for name, initial in spec.items()
        for row in ([f"{name}.{key}" for key in model] if isinstance(initial, ModelRow) else [name])
    ]
