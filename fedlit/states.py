"""ClientStates: what the algorithm keeps for each client between rounds.

Rows are kept only for clients that were touched; scalars and whole models alike. It knows no algorithm.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from fedlit.errors import require


class ModelRow(Enum):
    """Initial value of a state that is a whole model."""

    RECEIVED = "z at the client's first participation"
    INITIAL = "z before the first round"
    ZEROS = "zeros"


RECEIVED, INITIAL, ZEROS = ModelRow

StateSpec = dict[str, float | ModelRow]


@dataclass(frozen=True)
class _Before:
    """What an update replaced: who had rows, of which names, and those that it changed."""

    clients: int
    names: frozenset[str]
    slots: Tensor
    rows: dict[str, Tensor]


RESERVED = {
    "received": "the received model",
    "trained": "the model of the phase before",
    "global": "the server's model, where a personal model is chosen",
    "own": "the tensors of keep_local",
    "memory": "the local optimiser's state",
    "loss": "the loss in a step's dict",
    "task": "the logged loss in a step's dict",
}
"""Names that already mean something beside a client's states."""


def check_state_names(
    client: str, kept: StateSpec, sent: StateSpec, carried: Collection[str], attributes: Collection[str]
) -> None:
    """Refuse names that could not be told apart from something else.

    Args:
        client: the class that declares them.
        kept: its `state_spec`.
        sent: its `sent_spec`.
        carried: its `carried_states`.
        attributes: what the client has under a name of its own already.
    """
    for name in carried:
        require(
            name in kept, f"{client} carries a state named '{name}', but its state_spec() lacks it. Declare it there."
        )
    for name, initial in [*kept.items(), *sent.items()]:
        what = f"{client} declares a state named '{name}', but"
        require(
            not (name in kept and name in sent), f"{what} in both state_spec() and sent_spec(). Rename one of them."
        )
        require(name not in RESERVED, f"{what} that name stands for {RESERVED.get(name)}. Choose another name.")
        require(name.isidentifier(), f"{what} a step reads it as self.<name>. Choose a Python name, without dots.")
        require(name not in attributes, f"{what} {client}.{name} is something else already. Choose another name.")
        require(
            name != "local" or isinstance(initial, ModelRow),
            f"{what} 'local' is x_i, a whole model, and here it starts as {initial}. Give RECEIVED, INITIAL or ZEROS, "
            "or choose another name.",
        )


def number_states(spec: StateSpec) -> list[str]:
    """Names of the states that are one number for each client."""
    return [name for name, initial in spec.items() if not isinstance(initial, ModelRow)]


class ClientStates:
    """Named rows per client, stored densely in the order of first participation.

    The last `update` can be taken back (`discard`) until it is settled (`commit`).
    """

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._rows: dict[str, Tensor] = {}
        self._before: _Before | None = None

    @property
    def touched(self) -> list[int]:
        """Ids of the clients that have rows, in the order of their first participation."""
        return list(self._slots)

    def has(self, client: int) -> bool:
        """Whether the client has taken part before."""
        return client in self._slots

    def rows(self, clients: Sequence[int], defaults: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Stacked rows of the clients; `defaults` (stacked likewise) holds for those never touched."""
        known = [k for k, client in enumerate(clients) if client in self._slots]
        slots = [self._slots[clients[k]] for k in known]
        rows = {}
        for name, default in defaults.items():
            rows[name] = default.clone()
            if known:
                rows[name][known] = self._rows[name][slots].to(default.dtype)  # a callback may have changed it
        return rows

    def keeps(self, name: str) -> bool:
        """Whether there are rows of this name."""
        return name in self._rows

    def column(self, name: str) -> Tensor:
        """One state of all touched clients, in the order of `touched` (a view)."""
        return self._rows[name][: len(self._slots)]

    def row(self, name: str, client: int) -> Tensor:
        """One row of one touched client (a view)."""
        return self._rows[name][self._slots[client]]

    def update(self, clients: Sequence[int], rows: Mapping[str, Tensor]) -> None:
        """Store the stacked rows of these clients, possibly of none; everyone else is untouched."""
        known = torch.tensor([self._slots[client] for client in clients if client in self._slots], dtype=torch.int64)
        held = {name: self._rows[name][known] for name in rows if name in self._rows}
        self._before = _Before(len(self._slots), frozenset(self._rows), known, held)
        for client in clients:
            self._slots.setdefault(client, len(self._slots))
        slots = torch.tensor([self._slots[client] for client in clients], dtype=torch.int64)
        for name, value in rows.items():
            self._reserve(name, value)
            self._rows[name][slots] = value.detach().to(self._rows[name].dtype)

    def commit(self) -> None:
        """The last update stands."""
        self._before = None

    def discard(self) -> None:
        """Take the last update back, if there is one that is not settled."""
        if self._before is None:
            return
        before, self._before = self._before, None
        self._slots = dict(list(self._slots.items())[: before.clients])
        self._rows = {name: value for name, value in self._rows.items() if name in before.names}
        for name, value in before.rows.items():
            self._rows[name][before.slots] = value

    def _reserve(self, name: str, like: Tensor) -> None:
        """Grow by doubling, so that a run that meets its clients one by one copies each row twice at most."""
        held = self._rows.get(name)
        needed = len(self._slots)
        if held is not None and len(held) >= needed:
            return
        grown = like.new_zeros(max(needed, 2 * len(held) if held is not None else needed), *like.shape[1:])
        if held is not None:
            grown[: len(held)] = held
        self._rows[name] = grown

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data only, so that a checkpoint loads with `weights_only=True`."""
        used = len(self._slots)
        return {"clients": self.touched, "rows": {name: value[:used].clone() for name, value in self._rows.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._slots = {client: slot for slot, client in enumerate(state["clients"])}
        self._rows = {name: value.clone() for name, value in state["rows"].items()}
