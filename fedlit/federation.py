"""Federation: the servers of a run and their clocks: who steps next, at what simulated time, from which mixed model.

A flat federation has one server, which steps in every round. Simulated time is data: when a server will have its
reports is a pure function of keyed draws, so nothing runs beside anything else, and a checkpoint holds two numbers a
server. A server's model does not change while its clients train, so they are trained when the server is due.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.data.base import FederatedDataModule
from fedlit.gathering import Gathering
from fedlit.params import Params, sq_norm, weighted_mean
from fedlit.server.base import ServerCallback
from fedlit.server.cloud import Cloud, check_doubly_stochastic
from fedlit.server.server import Server, Snapshot


@dataclass(frozen=True)
class Event:
    """Servers that step together, and when."""

    time: float
    servers: list[Server]


@dataclass(frozen=True)
class Moment:
    """What a federation was before a round."""

    time: float
    formed: int
    servers: dict[int, Snapshot]


class Federation:
    """The servers of a run.

    Args:
        servers: one, or those of a cloud.
        cloud: their protocol and how they mix; None for one server.
        seed: seed of the run.
    """

    def __init__(self, servers: Sequence[Server], cloud: Cloud | None, seed: int) -> None:
        self.servers = list(servers)
        self.cloud = cloud
        self.seed = seed
        self.time = 0.0
        """Simulated seconds of the last event."""
        self.formed = 0
        """Rounds of the rigorous protocol whose first B servers have stepped."""
        self.staleness = 0.0
        """Rounds of the run since the servers of the last event had stepped before, as a mean."""
        self._waiting: dict[int, Cohort] = {}

    @classmethod
    def of(
        cls,
        client: Client,
        data: FederatedDataModule,
        open_one: Callable[..., Server],
        callbacks: Sequence[ServerCallback],
        cloud: Cloud | None,
        seed: int,
    ) -> "Federation":
        """The servers of a run. The first has the trainer's callbacks, each other one copies of those that decide."""
        population = 1 if client.pools_data else data.num_clients
        groups = data.load(0, range(population)).groups if cloud is not None else []
        parts = [np.arange(population)] if cloud is None else cloud.clients_of(population, groups, seed)
        servers = []
        for number, clients in enumerate(parts):
            own = callbacks if number == 0 else [deepcopy(callback) for callback in callbacks if callback.decides]
            sizes = data.sizes if cloud is None else data.sizes[torch.from_numpy(clients)]
            servers.append(open_one(own, sizes=sizes, id=number, clients=clients))
        return cls(servers, cloud, seed)

    # ---- who steps ---------------------------------------------------------------------------------------------------

    def next_event(self, gathering: Gathering) -> Event:
        """The servers that step next. All others keep their model, their cohort and their clock."""
        for server in self.servers:
            if server.id not in self._waiting:
                self._waiting[server.id] = gathering.cohort(server)
        if self.cloud is None:
            return Event(self.finish(self.servers[0]), [self.servers[0]])
        return self._first(self.servers) if self.cloud.protocol == "async" else self._rigorous()

    def finish(self, server: Server) -> float:
        """When a server has its reports."""
        return server.started + self._waiting[server.id].lasts

    def cohorts(self, event: Event, number: int) -> list[Cohort]:
        """What the event's servers have gathered, for the run's round of this number."""
        cohorts = [self._waiting[server.id] for server in event.servers]
        for cohort in cohorts:
            cohort.number = number
        return cohorts

    def _first(self, servers: Sequence[Server]) -> Event:
        """The first B of these to have their reports; ties go to the lowest id."""
        assert self.cloud is not None
        order = sorted(servers, key=lambda server: (self.finish(server), server.id))[: self.cloud.together]
        return Event(self.finish(order[-1]), sorted(order, key=lambda server: server.id))

    def _rigorous(self) -> Event:
        """The next in time of two kinds: the first B of round t step together; a server of an earlier round alone."""
        assert self.cloud is not None
        current = [server for server in self.servers if server.rounds == self.formed]
        late = [server for server in self.servers if server.rounds < self.formed]
        alone = [Event(self.finish(server), [server]) for server in late]
        together = [self._first(current)] if len(current) >= self.cloud.together else []
        return min([*together, *alone], key=lambda event: (event.time, event not in together, event.servers[0].id))

    # ---- a step ------------------------------------------------------------------------------------------------------

    def mix(self, event: Event, number: int, iteration: int) -> None:
        """w_n = sum_m a_nm z_m for the servers that step together; one alone keeps its own."""
        if self.cloud is None or len(event.servers) == 1:
            return
        ids = [server.id for server in event.servers]
        matrix = self.cloud.mixing.matrix(ids, self.seed, number * self.cloud.iterations + iteration)
        check_doubly_stochastic(matrix)
        mixed = [mixed_model([server.model for server in event.servers], row) for row in matrix]
        for server, model in zip(event.servers, mixed, strict=True):
            server.load_model(model)

    def count(self, event: Event, number: int) -> None:
        """The event is over: its servers begin their next rounds, all at that moment."""
        self.staleness = float(np.mean([number - server.stepped for server in event.servers]))
        self.time = event.time
        if self.cloud is not None and len(event.servers) == self.cloud.together:
            self.formed += event.servers[0].rounds == self.formed
        for server in event.servers:
            server.waited += event.time - self.finish(server)
            server.rounds += 1
            server.started, server.stepped = event.time, number
            del self._waiting[server.id]

    # ---- all servers -------------------------------------------------------------------------------------------------

    @property
    def measured(self) -> Params:
        """What is measured as the global model: that of the one server, or the mean over servers."""
        models = [server.measured for server in self.servers]
        return models[0] if len(models) == 1 else mixed_model(models, self._alike)

    @property
    def distances(self) -> list[float]:
        """How far each server's parameters are from their mean, as a Euclidean norm."""
        mean = mixed_model([dict(server.params) for server in self.servers], self._alike)
        apart = [{name: server.params[name].detach() - mean[name] for name in mean} for server in self.servers]
        return [float(sq_norm(gap)) ** 0.5 for gap in apart]

    @property
    def _alike(self) -> np.ndarray:
        return np.full(len(self.servers), 1 / len(self.servers))

    def metrics(self) -> dict[str, float]:
        """How far apart the servers are, how old what they bring is, and how much of their time they wait."""
        waiting = float(np.mean([server.waited for server in self.servers])) / self.time if self.time else 0.0
        return {
            "cloud/consensus": float(np.mean(self.distances)),
            "cloud/staleness": self.staleness,
            "cloud/waiting": waiting,
        }

    def records(self, event: Event) -> dict[str, list[Any]]:
        """One row a server, before its clock moves on: the round that it is in, or that ends with this event."""
        now, due = event.time, event.servers
        finish = [self.finish(server) for server in self.servers]
        return {
            "server": [server.id for server in self.servers],
            "time_s": [now] * len(self.servers),
            "rounds": [server.rounds + (server in due) for server in self.servers],
            "start_s": [server.started for server in self.servers],
            "finish_s": finish,
            "waited_s": [max(0.0, now - end) for end in finish],
            "distance": self.distances,
            "clients": [int(self._waiting[server.id].reports.sum()) for server in self.servers],
            "stepped": [server in due for server in self.servers],
        }

    def server_of(self, client: int) -> Server:
        """The server that a client belongs to."""
        if len(self.servers) == 1:
            return self.servers[0]
        return next(server for server in self.servers if client in server.members)

    # ---- what is saved -----------------------------------------------------------------------------------------------

    def snapshot(self, servers: Sequence[Server]) -> Moment:
        """What `restore` needs to undo a round in which these servers step."""
        return Moment(self.time, self.formed, {server.id: server.snapshot() for server in servers})

    def restore(self, before: Moment) -> None:
        """Back to the end of the last finished round; cohorts are gathered again."""
        self.time, self.formed = before.time, before.formed
        self._waiting.clear()
        for number, snapshot in before.servers.items():
            self.servers[number].restore(snapshot)

    def state_dict(self) -> dict[str, Any]:
        """Every server, and the time."""
        return {"time": self.time, "formed": self.formed, "servers": [server.state_dict() for server in self.servers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.time, self.formed = state["time"], state["formed"]
        self._waiting.clear()
        for server, kept in zip(self.servers, state["servers"], strict=True):
            server.load_state_dict(kept)


def mixed_model(models: Sequence[Params], weights: np.ndarray) -> Params:
    """sum_m weights_m model_m, summed in float64; counters are those of the first."""
    return {name: _mixed([model[name] for model in models], weights) for name in models[0]}


def _mixed(values: Sequence[torch.Tensor], weights: np.ndarray) -> torch.Tensor:
    if not values[0].is_floating_point():
        return values[0]
    return weighted_mean({"": torch.stack([value.detach() for value in values])}, torch.from_numpy(weights))[""]
