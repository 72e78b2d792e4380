"""ClientStates: what the algorithm keeps for each client between rounds.

Rows are kept only for clients that were touched; scalars and whole models alike. It knows no algorithm.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor


class ModelRow(Enum):
    """Initial value of a state that is a whole model."""

    RECEIVED = "z at the client's first participation"
    INITIAL = "z before the first round"
    ZEROS = "zeros"


RECEIVED, INITIAL, ZEROS = ModelRow

StateSpec = dict[str, float | ModelRow]


def number_states(spec: StateSpec) -> list[str]:
    """Names of the states that are one number for each client."""
    return [name for name, initial in spec.items() if not isinstance(initial, ModelRow)]


class ClientStates:
    """Named rows per client, stored densely in the order of first participation."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._rows: dict[str, Tensor] = {}

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
        """Store the stacked rows of these clients; everyone else is untouched."""
        for client in clients:
            self._slots.setdefault(client, len(self._slots))
        slots = torch.tensor([self._slots[client] for client in clients])
        for name, value in rows.items():
            self._reserve(name, value)
            self._rows[name][slots] = value.detach().to(self._rows[name].dtype)

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
