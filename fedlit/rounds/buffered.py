"""Clients in flight, for a server that steps when its buffer is full: who was sent what and when, who reports next.

Simulated time is data: the time of a client's report is known when the client is sent its model, as a pure function of
keyed draws. So nothing runs concurrently: `fill_buffer` computes at once what happens until the buffer is full, and a
checkpoint holds a row for each client in flight.

What a client receives is fixed when it is sent its model, with the hook on_cohort_start: the model, what the server
sends besides it, the client's rows, its steps and its learning rate. The client trains only when its report is due.
Nothing reads x_i before that, and a client's rows do not change while it is in flight, so the numbers are the same as
if it had trained at once. But exactly K clients train in a round, an error is raised in the round of the report, and no
client trains in vain. Draws are keyed by the server's round in which the client was sent its model: a client is sent a
model once per round at most, because it stays in the buffer until the server steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.cohort_stack import CohortStack
from fedlit.params import stack
from fedlit.rounds.federation import Federation
from fedlit.rounds.gathering import Gatherer
from fedlit.rounds.protocol import Event, ServerProtocol
from fedlit.server.buffer import Buffer
from fedlit.server.server import Server


@dataclass(frozen=True, eq=False)
class InFlightClient:
    """A client that was sent a model and has not reported yet."""

    cohort: Cohort
    """What it was sent, perhaps together with others."""
    index: int
    """Its position in that cohort."""
    sent: float
    """Simulated seconds at which it was sent the model."""
    finish: float
    """Simulated seconds at which its report is back."""

    @classmethod
    def all_of(cls, cohort: Cohort, sent: float) -> "list[InFlightClient]":
        """The clients that were sent a model together."""
        return [cls(cohort, index, sent, sent + seconds) for index, seconds in enumerate(cohort.seconds.tolist())]

    @property
    def client(self) -> int:
        """Its id."""
        return self.cohort.clients[self.index]

    @property
    def version(self) -> int:
        """Steps that the server had taken when it was sent the model."""
        return self.cohort.round

    def alone(self) -> "InFlightClient":
        """The same without the others of its cohort, so that their rows are freed when they have reported."""
        return self if len(self.cohort.clients) == 1 else replace(self, cohort=self.cohort.take([self.index]), index=0)

    def part(self) -> Cohort:
        """A copy of what it was sent: training changes the copy, and the round may fail."""
        return self.cohort.take([self.index])

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data; a model that several clients received is saved once."""
        return {"client": self.client, "sent": self.sent, "finish": self.finish, "given": saved(self.alone().cohort)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "InFlightClient":
        """The inverse of `state_dict`."""
        return cls(loaded(state["given"]), 0, state["sent"], state["finish"])


_STACKED = ("reports", "sizes", "steps", "seconds", "received", "received_buffers", "state", "sent")
_MEASURED = ("risk_received", "grad_received")


def saved(cohort: Cohort) -> dict[str, Any]:
    """A client in flight as tensors and plain data, under the names that checkpoints have had from the start."""
    no_numbers = torch.zeros(0, dtype=torch.float64)
    return {
        **{name: getattr(cohort, name) for name in ("round", "population", "clients", "lr", *_STACKED)},
        **{name: value for name, value in cohort.filled().items() if name in _MEASURED},
        **{"number": cohort.run_round, "lasts": cohort.duration_s, "own": sorted(cohort.local_tensors)},
        **{"keys": [], "rates": [], "memory": cohort.optimizer_state, "taken": torch.zeros(1, dtype=torch.int64)},
        **{"sent_params": {}, "sent_bytes": no_numbers, "discounts": no_numbers},
    }


def loaded(entry: dict[str, Any]) -> Cohort:
    """The inverse of `saved`."""
    stacked = {name: entry[name] for name in (*_STACKED, *_MEASURED) if name in entry}
    return Cohort(
        stack=CohortStack([1], stacked | {"optimizer_state": entry["memory"]}),
        round=entry["round"],
        run_round=entry["number"],
        population=entry["population"],
        clients=entry["clients"],
        draw_rounds=[entry["round"]],
        lrs=[entry["lr"]],
        local_tensors=frozenset(entry["own"]),
        duration_s=entry["lasts"],
    )


@dataclass(frozen=True)
class InFlight:
    """All clients in flight."""

    away: tuple[InFlightClient, ...] = ()
    sendings: int = 0
    """How often models were sent so far; the draw of the next recipients is keyed by it."""

    def alone(self) -> "InFlight":
        """The same, with a cohort of one for each client."""
        return InFlight(tuple(one.alone() for one in self.away), self.sendings)

    def state_dict(self) -> dict[str, Any]:
        """One entry for each client."""
        return {"sendings": self.sendings, "away": [one.state_dict() for one in self.away]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "InFlight":
        """The inverse of `state_dict`."""
        return cls(tuple(InFlightClient.from_state(one) for one in state["away"]), state["sendings"])


@dataclass(frozen=True)
class Filling:
    """What happens until the buffer is full."""

    time: float
    """Simulated seconds of the last report, and of the server's step."""
    sent: list[Cohort]
    """The clients that are sent the present model, in this order."""
    reports: list[InFlightClient]
    """The clients whose reports fill the buffer, ordered by version and id."""
    flight: InFlight
    """The clients in flight after that."""


def fill_buffer(flight: InFlight, buffer: Buffer, server: Server, gatherer: Gatherer, now: float) -> Filling:
    """What happens from the server's last step to its next; models are sent after all reports of the same moment."""
    away, sent, reports, model = list(flight.away), list[Cohort](), list[InFlightClient](), stack([server.model])
    while len(reports) < buffer.size:
        first = min(away, key=lambda one: (one.finish, one.client), default=None)
        moved_on = first is None or first.finish > now
        free = free_clients(server, [*away, *reports]) if moved_on and len(away) < buffer.concurrency else np.arange(0)
        if first is None or len(free):
            count = min(buffer.concurrency - len(away), len(free))
            sent.append(gatherer.sending(server, free, count, flight.sendings + len(sent), model))
            away += InFlightClient.all_of(sent[-1], now)
        else:
            away.remove(first)
            reports.append(first)
            now = first.finish
    reports.sort(key=lambda one: (one.version, one.client))
    return Filling(now, sent, reports, InFlight(tuple(away), flight.sendings + len(sent)))


def free_clients(server: Server, busy: list[InFlightClient]) -> np.ndarray:
    """Ids of the server's clients that have training data and are neither in flight nor in the buffer."""
    with_data = server.clients[server.sizes.numpy() > 0]
    return np.setdiff1d(with_data, [one.client for one in busy], assume_unique=True)


@dataclass(frozen=True, eq=False)
class BufferedEvent(Event):
    """The server's step once its buffer is full."""

    filling: Filling
    buffer: Buffer

    def to_send(self) -> list[tuple[Server, Cohort]]:
        """The clients that are sent the present model before the buffer is full; they train now or in a later event."""
        return [(self.servers[0], cohort) for cohort in self.cohorts]

    def to_train(self) -> list[Cohort]:
        """The clients whose reports fill the buffer, each as a cohort of one."""
        return [report.part() for report in self.filling.reports]

    def to_step(self, trained: list[TrainedCohort]) -> list[TrainedCohort]:
        """The reports as one cohort, as in a flat round; with discounts if clients received older models."""
        [server] = self.servers
        cohort = TrainedCohort.from_reports(trained, server.rounds, len(server.clients))
        discounts = self.buffer.discounts(cohort.staleness)
        if bool(cohort.staleness.any()) or bool((discounts != 1).any()):
            cohort.discounts = discounts
        return [cohort]


class BufferedProtocol(ServerProtocol):
    """Lets a server step whenever its buffer is full.

    Args:
        federation: the one server.
        buffer: how many reports fill it, and how many clients are in flight.
    """

    clock_fields: ClassVar[tuple[str, ...]] = (*ServerProtocol.clock_fields, "flight")

    def __init__(self, federation: Federation, buffer: Buffer) -> None:
        super().__init__(federation)
        self.buffer = buffer
        self.flight = InFlight()
        """Clients in flight."""

    def next_event(self, gatherer: Gatherer) -> BufferedEvent:
        """The server's next step."""
        [server] = self.servers
        filling = fill_buffer(self.flight, self.buffer, server, gatherer, self.time)
        return BufferedEvent([server], filling.time, filling.sent, filling, self.buffer)

    def finish(self, event: Event, number: int) -> None:
        """As in the base; the clients that have reported are no longer in flight."""
        assert isinstance(event, BufferedEvent)
        [server] = event.servers
        self.staleness = float(np.mean([server.rounds - report.version for report in event.filling.reports]))
        self.flight = event.filling.flight.alone()
        super().finish(event, number)

    def trained_at_once(self, cohorts: Sequence[Cohort]) -> int:
        """K clients train in every event."""
        return self.buffer.size

    def metrics(self) -> dict[str, float]:
        """Mean number of the server's steps since the clients of the last event were sent their models."""
        return {"buffer/staleness": self.staleness}

    def state_dict(self) -> dict[str, Any]:
        """The server, the time, and the clients in flight."""
        return super().state_dict() | {"flight": self.flight.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.flight = InFlight.from_state(state["flight"])
        super().load_state_dict(state)
