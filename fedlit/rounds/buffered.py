"""Clients in flight, for a server that steps when its buffer is full: who was sent what and when, who reports next.

Simulated time is data: when a client's report is back is known when it is sent its model, as a pure function of keyed
draws. So nothing runs beside anything else: what happens until the buffer is full is worked out at once
(`fill_buffer`), and a checkpoint holds a row for each client in flight.

What a client is given is settled when it is sent its model, with the hook on_cohort_start: the model, what the server
sends beside it, its own rows, its steps and its rate. It trains when its report is due. Nobody reads x_i before that,
and a client's own rows do not change while it is away, so the numbers are those of training at once; but exactly K
clients train in a round, what fails fails in the round that the report belongs to, and nothing is trained that never
reports. Draws are keyed by the round of the server at which the client was sent its model: once a round at most,
because whoever reports stays in the buffer until the server steps.
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
    """A client in flight."""

    cohort: Cohort
    """What it was given, perhaps together with others."""
    place: int
    """Which of them it is."""
    sent: float
    """Simulated seconds at which it was sent the model."""
    finish: float
    """Simulated seconds at which its report is back."""

    @classmethod
    def all_of(cls, cohort: Cohort, sent: float) -> "list[InFlightClient]":
        """Those who were sent a model together."""
        return [cls(cohort, place, sent, sent + seconds) for place, seconds in enumerate(cohort.seconds.tolist())]

    @property
    def client(self) -> int:
        """Its id."""
        return self.cohort.clients[self.place]

    @property
    def version(self) -> int:
        """Steps that the server had taken when it was sent the model."""
        return self.cohort.round

    def alone(self) -> "InFlightClient":
        """The same without the others, so that these are forgotten when they have reported."""
        return self if len(self.cohort.clients) == 1 else replace(self, cohort=self.cohort.take([self.place]), place=0)

    def part(self) -> Cohort:
        """What it was given, as a copy: training changes it, and a round can fail."""
        return self.cohort.take([self.place])

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data; what several received is saved once."""
        return {"client": self.client, "sent": self.sent, "finish": self.finish, "given": saved(self.alone().cohort)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "InFlightClient":
        """The inverse."""
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


def loaded(given: dict[str, Any]) -> Cohort:
    """The inverse."""
    stacked = {name: given[name] for name in (*_STACKED, *_MEASURED) if name in given}
    return Cohort(
        stack=CohortStack([1], stacked | {"optimizer_state": given["memory"]}),
        round=given["round"],
        run_round=given["number"],
        population=given["population"],
        clients=given["clients"],
        draw_rounds=[given["round"]],
        lrs=[given["lr"]],
        local_tensors=frozenset(given["own"]),
        duration_s=given["lasts"],
    )


@dataclass(frozen=True)
class InFlight:
    """Everyone who is in flight."""

    away: tuple[InFlightClient, ...] = ()
    sendings: int = 0
    """How often models were sent so far: the key of the draws of who is sent one."""

    def alone(self) -> "InFlight":
        """The same, each client by itself."""
        return InFlight(tuple(one.alone() for one in self.away), self.sendings)

    def state_dict(self) -> dict[str, Any]:
        """One row a client."""
        return {"sendings": self.sendings, "away": [one.state_dict() for one in self.away]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "InFlight":
        """The inverse."""
        return cls(tuple(InFlightClient.from_state(one) for one in state["away"]), state["sendings"])


@dataclass(frozen=True)
class Filling:
    """What happens until the buffer is full."""

    time: float
    """Simulated seconds of the last report, and of the server's step."""
    sent: list[Cohort]
    """Those who are sent the present model, as they go."""
    reports: list[InFlightClient]
    """Those whose reports fill the buffer, ordered by version and id."""
    flight: InFlight
    """Who is in flight then."""


def fill_buffer(flight: InFlight, buffer: Buffer, server: Server, gatherer: Gatherer, now: float) -> Filling:
    """From the server's last step to its next; free places are filled when all reports of that moment are in."""
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
    """Ids of the server's clients that have something to train on and are neither in flight nor in the buffer."""
    filled = server.clients[server.sizes.numpy() > 0]
    return np.setdiff1d(filled, [one.client for one in busy], assume_unique=True)


@dataclass(frozen=True, eq=False)
class BufferedEvent(Event):
    """The server's step once its buffer is full."""

    protocol: "BufferedProtocol"
    servers: list[Server]
    time_s: float
    filling: Filling

    def to_send(self) -> list[tuple[Server, Cohort]]:
        """Those who are sent the present model until the buffer is full; they train in this event or in a later one."""
        return [(self.servers[0], cohort) for cohort in self.filling.sent]

    def to_train(self) -> list[Cohort]:
        """Those whose reports fill the buffer, one by one."""
        return [report.part() for report in self.filling.reports]

    def to_step(self, trained: list[TrainedCohort]) -> list[TrainedCohort]:
        """The reports as one cohort.

        If all clients received the present model, it is that of a flat round; else it says how much each counts.
        """
        [server], buffer = self.servers, self.protocol.buffer
        cohort = TrainedCohort.from_reports(trained, server.rounds, len(server.clients))
        discounts = buffer.discounts(cohort.staleness)
        if bool(cohort.staleness.any()) or bool((discounts != 1).any()):
            cohort.discounts = discounts
        return [cohort]

    def finish(self, number: int) -> None:
        """Whose reports were in the buffer are no longer in flight."""
        [server] = self.servers
        self.protocol.staleness = float(np.mean([server.rounds - report.version for report in self.filling.reports]))
        self.protocol.flight = self.filling.flight.alone()
        self.protocol.move_on(self, number)


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
        return BufferedEvent(self, [server], filling.time, filling)

    def trained_at_once(self, cohorts: Sequence[Cohort]) -> int:
        """K clients train in every event."""
        return self.buffer.size

    def metrics(self) -> dict[str, float]:
        """Steps of the server since the clients of the last event were sent their models, as a mean."""
        return {"buffer/staleness": self.staleness}

    def state_dict(self) -> dict[str, Any]:
        """The server, the time, and who is in flight."""
        return super().state_dict() | {"flight": self.flight.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.flight = InFlight.from_state(state["flight"])
        super().load_state_dict(state)
