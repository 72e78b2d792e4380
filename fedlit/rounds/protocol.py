"""ServerProtocol: who steps next, and when. `Event`: the servers that step together, with what they send and get back.

Simulated time is data: when a server will have its reports is a pure function of keyed draws. So nothing runs beside
anything else, and a checkpoint holds two numbers a server. A server's model does not change while its clients train, so
they are trained when the server is due.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.params import Params
from fedlit.rounds.federation import Federation, ServersBefore
from fedlit.rounds.gathering import Gatherer
from fedlit.server.server import Server

ServerRecords = dict[str, list[Any]]
"""The columns of servers.parquet, one row a server; empty where a run has one server."""


class Event(ABC):
    """Servers that step together, and when."""

    servers: list[Server]
    time_s: float
    """Simulated seconds of the step."""

    @property
    def iterations(self) -> int:
        """How often the servers mix and step."""
        return 1

    @abstractmethod
    def to_send(self) -> list[tuple[Server, Cohort]]:
        """Who is sent a model, and by whom: those who train in this event, or in a later one."""

    @abstractmethod
    def to_train(self) -> list[Cohort]:
        """Who trains."""

    def to_step(self, trained: list[TrainedCohort]) -> list[TrainedCohort]:
        """What each server steps with, once those who train have trained."""
        return trained

    def mix(self, iteration: int) -> None:  # noqa: B027  # one server has nobody to mix with
        """Servers that step together mix their models."""

    def records(self) -> ServerRecords:
        """One row a server, before its clock moves on: the round that it is in, or that ends with this event."""
        return {}

    @abstractmethod
    def finish(self, number: int) -> None:
        """The event is over: clocks move on. It was the run's round of this number."""


@dataclass(frozen=True)
class Moment:
    """What the servers of an event, and the clock, were before it."""

    clock: dict[str, Any]
    servers: ServersBefore


class ServerProtocol(ABC):
    """Says which servers of a federation step next.

    Args:
        federation: the servers.
    """

    clock_fields: ClassVar[tuple[str, ...]] = ("time", "events", "staleness")
    """Attributes that a failed round restores."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.time = 0.0
        """Simulated seconds of the last event."""
        self.events = 0
        """Events so far: t of the next one."""
        self.staleness = 0.0
        """How many rounds old what the last event stepped with was, as a mean; 0 for a flat run."""

    @property
    def servers(self) -> list[Server]:
        """All servers of the run."""
        return self.federation.servers

    @property
    def active_servers(self) -> list[Server]:
        """The servers that take part: all, unless one is a process that was lost."""
        return self.servers

    @abstractmethod
    def next_event(self, gatherer: Gatherer) -> Event:
        """The servers that step next. All others keep their model, their cohort and their clock."""

    def trained_at_once(self, cohorts: Sequence[Cohort]) -> int:
        """Clients that train in a round of the run, given a cohort of every server: not all of them step in each."""
        return round(sum(len(cohort.clients) for cohort in cohorts) * self.servers_per_step / len(cohorts))

    @property
    def servers_per_step(self) -> int:
        """How many servers step in an event."""
        return 1

    def metrics(self) -> dict[str, float]:
        """The protocol's own numbers of a round."""
        return {}

    @property
    def global_model(self) -> Params:
        """What is measured as the global model: that of the one server, or the mean over servers."""
        return self.federation.mean_model(self.active_servers)

    def move_on(self, event: Event, number: int) -> None:
        """The event is over: its servers begin their next rounds, all at that moment."""
        self.time = event.time_s
        self.events += 1
        for server in event.servers:
            server.begin_round(event.time_s, number)

    # ---- what is saved -----------------------------------------------------------------------------------------------

    def snapshot(self, servers: Sequence[Server]) -> Moment:
        """What `restore` needs to undo a round in which these servers step."""
        clock = {name: getattr(self, name) for name in self.clock_fields}
        return Moment(clock, self.federation.snapshot(servers))

    def restore(self, before: Moment) -> None:
        """Back to the end of the last finished round; cohorts are gathered again."""
        for name, value in before.clock.items():
            setattr(self, name, value)
        self.federation.restore(before.servers)

    def state_dict(self) -> dict[str, Any]:
        """Every server and the time."""
        return {"time": self.time, "events": self.events, "formed": 0, "servers": self.federation.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.time = state["time"]
        self.events = state.get("events", 0)  # absent in older checkpoints of runs to which it makes no difference
        self.federation.load_state_dict(state["servers"])
