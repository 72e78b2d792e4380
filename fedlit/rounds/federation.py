"""Federation: the servers of a run. Their models are rows of one tensor, so that one operation reads or moves many.

A `ServerProtocol` decides when they step: one server in rounds (`flat.py`), several servers that mix (`cloud.py`), or
one server that does not wait for slow clients (`buffered.py`).
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedlit.params import Params, clone, row, stack, stacked_sq_norm, unstack
from fedlit.server.base import ServerCallback
from fedlit.server.server import Server, Snapshot


@dataclass(frozen=True)
class ServersBefore:
    """The state of some servers before a round."""

    models: Params
    """Stacked: the models of these servers."""
    others: dict[int, Snapshot]
    """Everything else of each server, by id."""


class Federation:
    """The servers of a run.

    Args:
        servers: one, or those of a cloud.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = list(servers)
        self._position_of = {server.id: position for position, server in enumerate(servers)}
        self._models = stack([server.model for server in servers])
        """Stacked: the models of all servers; each server's tensors are views of its row."""
        for server, model in zip(servers, unstack(self._models, len(servers)), strict=True):
            server.bind_storage(model)

    @classmethod
    def of(
        cls,
        members: Sequence[np.ndarray],
        sizes: torch.Tensor,
        create: Callable[..., Server],
        callbacks: Sequence[ServerCallback],
    ) -> "Federation":
        """Create a server for each group of clients. The first has the trainer's callbacks, every other one copies of
        those that decide (`ServerCallback.decides`).

        Args:
            members: ids of each server's clients.
            sizes: (clients,) training samples of everybody.
            create: makes a server.
            callbacks: the trainer's.
        """
        servers = []
        for number, clients in enumerate(members):
            server_callbacks = (
                callbacks if number == 0 else [deepcopy(callback) for callback in callbacks if callback.decides]
            )
            servers.append(create(server_callbacks, sizes=sizes[torch.from_numpy(clients)], id=number, clients=clients))
        return cls(servers)

    def models(self, servers: Sequence[Server]) -> Params:
        """Stacked: the models of these servers; views if they are all servers."""
        if list(servers) == self.servers:
            return self._models
        positions = self._positions(servers)
        return {name: value[positions] for name, value in self._models.items()}

    def mix(self, servers: Sequence[Server], matrix: np.ndarray) -> None:
        """Replace the model of each of these servers by w_n = sum_m a_nm z_m."""
        positions = self._positions(servers)
        for name, mixed in mixed_models(self.models(servers), matrix).items():
            self._models[name][positions] = mixed

    def _positions(self, servers: Sequence[Server]) -> torch.Tensor:
        return torch.tensor([self._position_of[server.id] for server in servers], dtype=torch.int64)

    def mean_model(self, servers: Sequence[Server]) -> Params:
        """The model that is measured as the global one: that of the one server, or the mean over these servers."""
        count, others = len(servers), [server.evaluated_model() for server in servers]
        models = self.models(servers)
        if any(others):
            models = stack([model | other for model, other in zip(unstack(models, count), others, strict=True)])
        return row(models if count == 1 else mixed_models(models, np.full((1, count), 1 / count)), 0)

    def distances(self, servers: Sequence[Server]) -> list[float]:
        """The Euclidean distance of each server's parameters from the mean of these servers."""
        models = self.models(servers)
        params = {name: models[name].double() for name in self.servers[0].params}
        apart = {name: value - value.mean(0) for name, value in params.items()}
        return stacked_sq_norm(apart).sqrt().tolist()

    def server_of(self, client: int) -> Server:
        """The server that a client belongs to."""
        if len(self.servers) == 1:
            return self.servers[0]
        return next(server for server in self.servers if client in server.members)

    # ---- what is saved -----------------------------------------------------------------------------------------------

    def snapshot(self, servers: Sequence[Server]) -> ServersBefore:
        """The state that `restore` needs to undo a round in which these servers step."""
        return ServersBefore(clone(self.models(servers)), {server.id: server.snapshot({}) for server in servers})

    def restore(self, before: ServersBefore) -> None:
        """Return to the end of the last finished round."""
        models = unstack(before.models, len(before.others))
        with ExitStack() as steps:  # every server is restored, even if a callback of another raises
            for model, (id, snapshot) in zip(models, before.others.items(), strict=True):
                steps.callback(self.servers[self._position_of[id]].restore, replace(snapshot, model=model))

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of every server."""
        return [server.state_dict() for server in self.servers]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """The inverse of `state_dict`."""
        for server, kept in zip(self.servers, state, strict=True):
            server.load_state_dict(kept)


def mixed_models(models: Params, matrix: np.ndarray) -> Params:
    """Stacked: sum_m matrix_nm model_m for every row n, summed in float64; integer buffers are those of the first."""
    return {name: _mixed(value, torch.from_numpy(matrix)) for name, value in models.items()}


def _mixed(values: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    if not values.is_floating_point():
        return values[:1].expand(len(matrix), *values.shape[1:]).clone()
    mixed: torch.Tensor = torch.tensordot(matrix, values.double(), dims=1)
    return mixed.to(values.dtype)
