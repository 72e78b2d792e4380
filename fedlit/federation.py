"""Federation: the servers of a run and their clocks: who steps next, at what simulated time, from which mixed model.

A flat federation has one server, which steps in every round. Simulated time is data: when a server will have its
reports is a pure function of keyed draws, so nothing runs beside anything else, and a checkpoint holds two numbers a
server. A server's model does not change while its clients train, so they are trained when the server is due.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.data.base import FederatedDataModule
from fedlit.data.pooled import Pooled
from fedlit.errors import ResumeError
from fedlit.flight import Filling, Flight, fill
from fedlit.gathering import Gathering
from fedlit.params import Params, clone, row, rows, stack, stacked_sq_norm
from fedlit.server.base import ServerCallback
from fedlit.server.buffer import Buffer
from fedlit.server.cloud import Cloud, check_doubly_stochastic
from fedlit.server.server import Server, Snapshot


@dataclass(frozen=True)
class Event:
    """Servers that step together, and when."""

    time: float
    servers: list[Server]
    filling: Filling | None = None
    """How the buffer was filled, where there is one."""


@dataclass(frozen=True)
class Moment:
    """What a federation was before a round."""

    time: float
    events: int
    formed: int
    staleness: float
    models: Params
    """Stacked: those of the servers that step in it."""
    servers: dict[int, Snapshot]
    """What else each of them was, by id."""
    flight: Flight


class Federation:
    """The servers of a run.

    Args:
        servers: one, or those of a cloud.
        cloud: their protocol and how they mix; None for one server.
        seed: seed of the run.
        buffer: when a server that waits for nobody steps; None for one that waits for its cohort.
    """

    def __init__(self, servers: Sequence[Server], cloud: Cloud | None, seed: int, buffer: Buffer | None = None) -> None:
        self.servers = list(servers)
        self._places = {server.id: place for place, server in enumerate(servers)}
        self._models = stack([server.model for server in servers])
        """Stacked: the models of all servers, so that one operation reads or moves many; each lives in its row."""
        for server, model in zip(servers, rows(self._models, len(servers)), strict=True):
            server.live_in(model)
        self.cloud = cloud
        self.seed = seed
        self.buffer = buffer
        self.time = 0.0
        """Simulated seconds of the last event."""
        self.events = 0
        """Events so far: t of the next one, whose servers mix by a^(t)."""
        self.formed = 0
        """Rounds of the rigorous protocol whose first B servers have stepped."""
        self.staleness = 0.0
        """Rounds of the run since the servers of the last event had stepped before, as a mean; with a buffer, since its
        clients were sent their models."""
        self.flight = Flight()
        """Clients in flight, where there is a buffer."""
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
        buffer: Buffer | None = None,
    ) -> "Federation":
        """The servers of a run. The first has the trainer's callbacks, each other one copies of those that decide."""
        everyone = Pooled(data).sizes if client.pools_data else data.sizes
        population = len(everyone)
        groups = data.load(0, range(population)).groups if cloud is not None else []
        parts = [np.arange(population)] if cloud is None else cloud.clients_of(population, groups, seed)
        servers = []
        for number, clients in enumerate(parts):
            own = callbacks if number == 0 else [deepcopy(callback) for callback in callbacks if callback.decides]
            sizes = everyone if cloud is None else everyone[torch.from_numpy(clients)]
            servers.append(open_one(own, sizes=sizes, id=number, clients=clients))
        return cls(servers, cloud, seed, buffer)

    # ---- who steps ---------------------------------------------------------------------------------------------------

    @property
    def present(self) -> list[Server]:
        """The servers that take part: all, unless one is a process that was lost."""
        return self.servers

    def next_event(self, gathering: Gathering) -> Event:
        """The servers that step next. All others keep their model, their cohort and their clock."""
        if self.buffer is not None:
            filling = fill(self.flight, self.buffer, self.servers[0], gathering, self.time)
            return Event(filling.time, self.servers, filling)
        self.gather(gathering)
        return self.earliest()

    def gather(self, gathering: Gathering) -> None:
        """Every server that begins a round gathers its cohort."""
        idle = [server for server in self.present if server.id not in self._waiting]
        cohorts = gathering.cohorts(idle, clone(self.models(idle)))
        self._waiting |= dict(zip([server.id for server in idle], cohorts, strict=True))

    def earliest(self) -> Event:
        """The next event in time."""
        if self.cloud is None:
            return Event(self.finish(self.servers[0]), [self.servers[0]])
        return self._first(self.present) if self.cloud.protocol == "async" else self._rigorous()

    def trained_at_once(self, cohorts: Sequence[Cohort]) -> int:
        """Clients that train in a round of the run, given a cohort of every server: not all of them step in each."""
        if self.buffer is not None:
            return self.buffer.size
        together = 1 if self.cloud is None else self.cloud.together
        return round(sum(len(cohort.clients) for cohort in cohorts) * together / len(cohorts))

    def finish(self, server: Server) -> float:
        """When a server has its reports."""
        return server.started + self._waiting[server.id].lasts

    def sent(self, event: Event, number: int) -> list[tuple[Server, Cohort]]:
        """Who is sent a model, by whom, in the run's round of this number: those who will train in it, or later."""
        if event.filling is not None:
            sent = [(event.servers[0], cohort) for cohort in event.filling.sent]
        else:
            sent = [(server, self._waiting[server.id]) for server in event.servers]
        for _, cohort in sent:
            cohort.number = number
        return sent

    def parts(self, event: Event, number: int) -> list[Cohort]:
        """Who trains: the cohorts of the event's servers, or those whose reports fill the buffer, one by one."""
        if event.filling is None:
            return [self._waiting[server.id] for server in event.servers]
        parts = [report.part() for report in event.filling.reports]
        for part in parts:
            part.number = number
        return parts

    def cohorts(self, event: Event, parts: list[Cohort], joined: Cohort) -> list[Cohort]:
        """What each of the event's servers steps with, once these parts are trained: its own, or what fills its buffer.

        A buffer whose clients all received the present model is a flat round; else they say how much they count.
        """
        if self.buffer is None:
            return parts
        joined.become_round(parts, event.servers[0].rounds, len(event.servers[0].clients))
        discounts = self.buffer.discounts(joined.staleness)
        if bool(joined.staleness.any()) or bool((discounts != 1).any()):
            joined.discounts = discounts
        return [joined]

    def _first(self, servers: Sequence[Server]) -> Event:
        """The first B of these to have their reports; ties go to the lowest id."""
        assert self.cloud is not None
        order = sorted(servers, key=lambda server: (self.finish(server), server.id))[: self.cloud.together]
        return Event(self.finish(order[-1]), sorted(order, key=lambda server: server.id))

    def _rigorous(self) -> Event:
        """The next in time of two kinds: the first B of round t step together; a server of an earlier round alone."""
        assert self.cloud is not None
        current = [server for server in self.present if server.rounds == self.formed]
        late = [server for server in self.present if server.rounds < self.formed]
        alone = [Event(self.finish(server), [server]) for server in late]
        together = [self._first(current)] if len(current) >= self.cloud.together else []
        return min([*together, *alone], key=lambda event: (event.time, event not in together, event.servers[0].id))

    # ---- a step ------------------------------------------------------------------------------------------------------

    def mix(self, event: Event) -> None:
        """w_n = sum_m a_nm z_m for the servers that step together, as often as they step; one alone keeps its own."""
        if self.cloud is None or len(event.servers) == 1:
            return
        ids = [server.id for server in event.servers]
        matrix = self.cloud.mixing.matrix(ids, self.seed, self.events)
        check_doubly_stochastic(matrix)
        places = self._places_of(event.servers)
        for name, mixed in mixed_models(self.models(event.servers), matrix).items():
            self._models[name][places] = mixed

    def count(self, event: Event, number: int) -> None:
        """The event is over: its servers begin their next rounds, all at that moment."""
        self.time = event.time
        self.events += 1
        if event.filling is not None:
            self._land(event.filling, event.servers[0])
        else:
            self._go_on(event, number)
        for server in event.servers:
            server.rounds += 1
            server.started, server.stepped = event.time, number

    def _land(self, filling: Filling, server: Server) -> None:
        """Whose reports were in the buffer are no longer in flight."""
        self.staleness = float(np.mean([server.rounds - report.version for report in filling.reports]))
        self.flight = filling.flight.alone()

    def _go_on(self, event: Event, number: int) -> None:
        """Servers that have waited for their reports, and perhaps for each other."""
        self.staleness = sum(number - server.stepped for server in event.servers) / len(event.servers)
        if self.cloud is not None and len(event.servers) == self.cloud.together:
            self.formed += event.servers[0].rounds == self.formed
        for server in event.servers:
            server.waited += event.time - self.finish(server)
            del self._waiting[server.id]

    # ---- all servers -------------------------------------------------------------------------------------------------

    def models(self, servers: Sequence[Server]) -> Params:
        """Stacked: the models of these servers; views where they are all."""
        if list(servers) == self.servers:
            return self._models
        places = self._places_of(servers)
        return {name: value[places] for name, value in self._models.items()}

    def _places_of(self, servers: Sequence[Server]) -> torch.Tensor:
        return torch.tensor([self._places[server.id] for server in servers], dtype=torch.int64)

    @property
    def measured(self) -> Params:
        """What is measured as the global model: that of the one server, or the mean over servers."""
        count, others = len(self.present), [server.evaluated_model() for server in self.present]
        models = self.models(self.present)
        if any(others):
            models = stack([own | other for own, other in zip(rows(models, count), others, strict=True)])
        return row(models if count == 1 else mixed_models(models, np.full((1, count), 1 / count)), 0)

    @property
    def distances(self) -> list[float]:
        """How far each server's parameters are from their mean, as a Euclidean norm."""
        models = self.models(self.present)
        params = {name: models[name].double() for name in self.servers[0].params}
        apart = {name: value - value.mean(0) for name, value in params.items()}
        return stacked_sq_norm(apart).sqrt().tolist()

    def metrics(self) -> dict[str, float]:
        """How far apart servers are, how old what they step with is, how much of their time they wait; none if flat."""
        if self.cloud is None:
            return {} if self.buffer is None else {"buffer/staleness": self.staleness}
        waiting = float(np.mean([server.waited for server in self.present])) / self.time if self.time else 0.0
        return {
            "cloud/consensus": float(np.mean(self.distances)),
            "cloud/staleness": self.staleness,
            "cloud/waiting": waiting,
        }

    def records(self, event: Event) -> dict[str, list[Any]]:
        """One row a server, before its clock moves on: the round that it is in, or that ends with this event."""
        now, due = event.time, {server.id for server in event.servers}
        finish = [self.finish(server) for server in self.present]
        return {
            "server": [server.id for server in self.present],
            "time_s": [now] * len(self.present),
            "rounds": [server.rounds + (server.id in due) for server in self.present],
            "start_s": [server.started for server in self.present],
            "finish_s": finish,
            "waited_s": [max(0.0, now - end) for end in finish],
            "distance": self.distances,
            "clients": [int(np.count_nonzero(self._waiting[server.id].reports.numpy())) for server in self.present],
            "stepped": [server.id in due for server in self.present],
        }

    def server_of(self, client: int) -> Server:
        """The server that a client belongs to."""
        if len(self.servers) == 1:
            return self.servers[0]
        return next(server for server in self.servers if client in server.members)

    # ---- what is saved -----------------------------------------------------------------------------------------------

    def snapshot(self, servers: Sequence[Server]) -> Moment:
        """What `restore` needs to undo a round in which these servers step."""
        snapshots = {server.id: server.snapshot({}) for server in servers}
        models = clone(self.models(servers))
        return Moment(self.time, self.events, self.formed, self.staleness, models, snapshots, self.flight)

    def restore(self, before: Moment) -> None:
        """Back to the end of the last finished round; cohorts are gathered again."""
        self.time, self.formed, self.staleness = before.time, before.formed, before.staleness
        self.events = before.events
        self.flight = before.flight
        self._waiting.clear()
        models = rows(before.models, len(before.servers))
        with ExitStack() as steps:  # every server is restored, even if a callback of another raises
            for model, (id, snapshot) in zip(models, before.servers.items(), strict=True):
                steps.callback(self.servers[self._places[id]].restore, replace(snapshot, model=model))

    def state_dict(self) -> dict[str, Any]:
        """Every server, the time, and who is in flight."""
        flight = {} if self.buffer is None else {"flight": self.flight.state_dict()}
        servers = [server.state_dict() for server in self.servers]
        return {"time": self.time, "events": self.events, "formed": self.formed, "servers": servers, **flight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        if self.cloud is not None and not self.cloud.mixing.is_fixed:
            check_mixes_alike(state)
        self.time, self.formed = state["time"], state["formed"]
        self.events = state.get("events", 0)  # without it the run is flat, or mixes alike in every event
        self.flight = Flight.from_state(state["flight"]) if "flight" in state else Flight()
        self._waiting.clear()
        for server, kept in zip(self.servers, state["servers"], strict=True):
            server.load_state_dict(kept)


def check_mixes_alike(state: dict[str, Any]) -> None:
    """Refuse a run whose matrices were counted in another way by an earlier fedlit: they would change half way."""
    if "events" not in state:
        raise ResumeError(
            "This run was begun with a fedlit that took the matrices of trainer.cloud.mixing from the second one on, "
            "and another one in each of trainer.cloud.iterations. Now event t takes matrix t, from 0 on, so the rest "
            "of the run would not fit what is there. Start it anew with --overwrite (in Python: overwrite=True), or "
            "resume it with the fedlit that began it."
        )


def mixed_models(models: Params, matrix: np.ndarray) -> Params:
    """Stacked: sum_m matrix_nm model_m for every row n, summed in float64; counters are those of the first."""
    return {name: _mixed(value, torch.from_numpy(matrix)) for name, value in models.items()}


def _mixed(values: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    if not values.is_floating_point():
        return values[:1].expand(len(matrix), *values.shape[1:]).clone()
    mixed: torch.Tensor = torch.tensordot(matrix, values.double(), dims=1)
    return mixed.to(values.dtype)
