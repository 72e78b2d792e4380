"""Federation: the servers of a run. Their models are rows of one tensor, so that one operation reads or moves many.

When they step is a `ServerProtocol`'s to say: one server in rounds (`flat.py`), several that mix (`cloud.py`), one that
waits for nobody (`buffered.py`).
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
    """What some servers were before a round."""

    models: Params
    """Stacked."""
    others: dict[int, Snapshot]
    """What else each of them was, by id."""


class Federation:
    """The servers of a run.

    Args:
        servers: one, or those of a cloud.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = list(servers)
        self._places = {server.id: place for place, server in enumerate(servers)}
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
        """A server for each group of clients. The first has the trainer's callbacks, each other one copies of those
        that decide.

        Args:
            members: ids of each server's clients.
            sizes: (clients,) training samples of everybody.
            create: makes a server.
            callbacks: the trainer's.
        """
        servers = []
        for number, clients in enumerate(members):
            own = callbacks if number == 0 else [deepcopy(callback) for callback in callbacks if callback.decides]
            servers.append(create(own, sizes=sizes[torch.from_numpy(clients)], id=number, clients=clients))
        return cls(servers)

    def models(self, servers: Sequence[Server]) -> Params:
        """Stacked: the models of these servers; views where they are all."""
        if list(servers) == self.servers:
            return self._models
        places = self._places_of(servers)
        return {name: value[places] for name, value in self._models.items()}

    def mix(self, servers: Sequence[Server], matrix: np.ndarray) -> None:
        """w_n = sum_m a_nm z_m takes the place of each of these servers' models."""
        places = self._places_of(servers)
        for name, mixed in mixed_models(self.models(servers), matrix).items():
            self._models[name][places] = mixed

    def _places_of(self, servers: Sequence[Server]) -> torch.Tensor:
        return torch.tensor([self._places[server.id] for server in servers], dtype=torch.int64)

    def mean_model(self, servers: Sequence[Server]) -> Params:
        """What is measured as the global model: that of the one server, or the mean over these servers."""
        count, others = len(servers), [server.evaluated_model() for server in servers]
        models = self.models(servers)
        if any(others):
            models = stack([own | other for own, other in zip(unstack(models, count), others, strict=True)])
        return row(models if count == 1 else mixed_models(models, np.full((1, count), 1 / count)), 0)

    def distances(self, servers: Sequence[Server]) -> list[float]:
        """How far each server's parameters are from their mean, as a Euclidean norm."""
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
        """What `restore` needs to undo a round in which these servers step."""
        return ServersBefore(clone(self.models(servers)), {server.id: server.snapshot({}) for server in servers})

    def restore(self, before: ServersBefore) -> None:
        """Back to the end of the last finished round."""
        models = unstack(before.models, len(before.others))
        with ExitStack() as steps:  # every server is restored, even if a callback of another raises
            for model, (id, snapshot) in zip(models, before.others.items(), strict=True):
                steps.callback(self.servers[self._places[id]].restore, replace(snapshot, model=model))

    def state_dict(self) -> list[dict[str, Any]]:
        """Of every server."""
        return [server.state_dict() for server in self.servers]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """The inverse."""
        for server, kept in zip(self.servers, state, strict=True):
            server.load_state_dict(kept)


def mixed_models(models: Params, matrix: np.ndarray) -> Params:
    """Stacked: sum_m matrix_nm model_m for every row n, summed in float64; counters are those of the first."""
    return {name: _mixed(value, torch.from_numpy(matrix)) for name, value in models.items()}


def _mixed(values: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    if not values.is_floating_point():
        return values[:1].expand(len(matrix), *values.shape[1:]).clone()
    mixed: torch.Tensor = torch.tensordot(matrix, values.double(), dims=1)
    return mixed.to(values.dtype)
