"""ServerProtocol: which servers step next, and when. Event: servers that step together, and the cohorts that train.

`assembly.create_protocol` chooses one: flat, cloud or buffered.

Simulated time is data: the time at which a server has its reports is a pure function of keyed draws. So nothing runs
concurrently, and a checkpoint holds two numbers for each server's clock. A server's model does not change while its
clients train, so they are trained only when the server is due.
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
"""The columns of servers.parquet, with one row for each server; empty for a run with one server."""


@dataclass(frozen=True, eq=False)
class Event:
    """Servers that step together, and when."""

    servers: list[Server]
    time_s: float
    """Simulated seconds of the step."""
    cohorts: list[Cohort]
    """The cohort of each server."""

    def to_send(self) -> list[tuple[Server, Cohort]]:
        """Cohorts that are sent a model, each with its server; they train in this event or in a later one."""
        return list(zip(self.servers, self.cohorts, strict=True))

    def to_train(self) -> list[Cohort]:
        """Cohorts that train in this event."""
        return self.cohorts

    def to_step(self, trained: list[TrainedCohort]) -> list[TrainedCohort]:
        """The cohort with which each server steps, made from those that have trained."""
        return trained


@dataclass(frozen=True)
class Moment:
    """The state of the clock, and of the servers of an event, before the event."""

    clock: dict[str, Any]
    servers: ServersBefore


class ServerProtocol(ABC):
    """Decides which servers of a federation step next.

    Args:
        federation: the servers.
    """

    clock_fields: ClassVar[tuple[str, ...]] = ("time", "events", "staleness")
    """Attributes that a failed round restores."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.servers = federation.servers
        """All servers of the run."""
        self.servers_per_step = 1
        """How many servers step in an event."""
        self.iterations = 1
        """How often they mix and step in it."""
        self.time = 0.0
        """Simulated seconds of the last event."""
        self.events = 0
        """Number of events so far, which is t of the next event."""
        self.staleness = 0.0
        """Mean age, in rounds, of the models on which the reports of the last event are based; 0 for a flat run."""

    @abstractmethod
    def next_event(self, gatherer: Gatherer) -> Event:
        """The servers that step next. All others keep their model, their cohort and their clock."""

    def trained_at_once(self, cohorts: Sequence[Cohort]) -> int:
        """How many clients train in a round, given a cohort of every server: not every server steps in each round."""
        return round(sum(len(cohort.clients) for cohort in cohorts) * self.servers_per_step / len(cohorts))

    def mix(self, servers: Sequence[Server]) -> None:  # noqa: B027  # one server has nobody to mix with
        """Mix the models of servers that step together."""

    def records(self, event: Event) -> ServerRecords:
        """One row for each server, before clocks advance: the round that it is in, or that ends with this event."""
        return {}

    def finish_times(self) -> dict[int, float]:
        """Server -> seconds at which its reports were there, if no clock of ours says so; before clocks advance."""
        return {}

    def metrics(self) -> dict[str, float]:
        """The protocol's own numbers of a round."""
        return {}

    @property
    def global_model(self) -> Params:
        """The model that is measured as the global one: that of the one server, or the mean over servers."""
        return self.federation.mean_model(self.servers)

    def finish(self, event: Event, number: int) -> None:
        """Advance the clocks after the run's round `number`: the event's servers begin their next rounds."""
        self.time = event.time_s
        self.events += 1
        for server in event.servers:
            server.begin_round(event.time_s, number)

    # ---- what is saved -----------------------------------------------------------------------------------------------

    def snapshot(self, servers: Sequence[Server]) -> Moment:
        """The state that `restore` needs to undo a round in which these servers step."""
        clock = {name: getattr(self, name) for name in self.clock_fields}
        return Moment(clock, self.federation.snapshot(servers))

    def restore(self, before: Moment) -> None:
        """Return to the end of the last finished round; cohorts are gathered again."""
        for name, value in before.clock.items():
            setattr(self, name, value)
        self.federation.restore(before.servers)

    def state_dict(self) -> dict[str, Any]:
        """Every server and the time."""
        return {"time": self.time, "events": self.events, "formed": 0, "servers": self.federation.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.time = state["time"]
        self.events = state.get("events", 0)  # older checkpoints lack it, where it makes no difference
        self.federation.load_state_dict(state["servers"])
