"""A cloud of nodes at a real pace: the servers that have the reports of their nodes first step next."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Self

from fedlit.client.cohort import Cohort
from fedlit.client.messages import Message
from fedlit.errors import ConfigError, require
from fedlit.remote.inbox import Inbox
from fedlit.remote.training import NodeTraining
from fedlit.rounds.federation import Federation
from fedlit.rounds.gathering import Gatherer, RoundOptions
from fedlit.rounds.paced import PacedCloud
from fedlit.rounds.protocol import Event, Moment
from fedlit.server.cloud import Cloud
from fedlit.server.server import Server

AskServer = Callable[[Server, Cohort, int], None]
"""Asks the clients of a server's cohort to train, in this round of the run, and waits for nothing."""


@dataclass(frozen=True)
class AwaitedTraining(NodeTraining):
    """Servers ask their nodes as soon as they begin a round; by the time they step, the answers are there."""

    inbox: Inbox

    @classmethod
    def of_nodes(cls, training: NodeTraining, inbox: Inbox) -> Self:
        """The same training, with answers that are awaited elsewhere."""
        return cls(**{item.name: getattr(training, item.name) for item in fields(training)}, inbox=inbox)

    def begin(self, server: Server, cohort: Cohort) -> None:
        """Ask the nodes of a server's cohort, and wait for nothing."""
        reporting = [client for client, reports in zip(cohort.clients, cohort.reports.tolist(), strict=True) if reports]
        self.inbox.ask(server.id, self.requests_of([cohort]), reporting)

    def answers_of(self, cohorts: Sequence[Cohort]) -> dict[int, Message]:
        """Those that have come."""
        return self.inbox.taken(client for cohort in cohorts for client in cohort.clients)

    def asked_in(self, cohort: Cohort, client: int) -> int:
        """The round of the run in which the client was asked, which may be an earlier one than the cohort's."""
        return self.inbox.asked_in(client)


class RealPace(PacedCloud):
    """Real arrivals decide which servers step next.

    Args:
        federation: the servers.
        cloud: how many of them step together, what the others do, and how models are mixed.
        seed: of the run.
        inbox: what comes from nodes.
    """

    ask: AskServer
    """Set once the parts of the run are there."""

    def __init__(self, federation: Federation, cloud: Cloud, seed: int, inbox: Inbox) -> None:
        super().__init__(federation, cloud, seed)
        self.inbox = inbox
        self._began: float | None = None

    def next_event(self, gatherer: Gatherer) -> Event:
        """The servers that step next, once each of them has its reports."""
        if self._began is None:
            self._began = self.inbox.nodes.link.now() - self.time  # the time between two parts of a run does not count
        self.gather(gatherer)
        for server in self.servers:
            if self.inbox.needs_asking(server.id):
                self.ask(server, self.waiting[server.id], self.events + 1)
        while math.isinf((event := self.paced_event()).time_s):
            if not self.inbox.is_waiting:
                self.inbox.nodes.require_some([], f"enough for {self.servers_per_step} servers to step")
            self.inbox.wait()
        return event

    def reported_s(self, server: int) -> float | None:
        """When the last of its clients had answered, since the run began."""
        asking = self.inbox.askings.get(server)
        return asking.last_at - (self._began or 0.0) if asking is not None and asking.has_reports else None

    def finish(self, event: Event, number: int) -> None:
        """As in the base; the servers of the event will ask anew."""
        super().finish(event, number)
        self.inbox.forget(server.id for server in event.servers)

    def restore(self, before: Moment) -> None:
        """As in the base; what was asked does not count any more."""
        self.inbox.forget(server.id for server in self.servers)
        super().restore(before)


def check_pace(options: RoundOptions) -> None:
    """ConfigError for a run in which real arrivals have nothing to decide, or in which reports are lost on purpose."""
    clock = options.clock
    require(
        options.cloud is not None,
        "--pace real lets real arrivals decide which servers of a cloud step next, but there is no trainer.cloud. "
        "Leave --pace out: one server waits for the nodes that it has asked.",
    )
    if clock is not None and (clock.deadline is not None or clock.dropout):
        raise ConfigError(
            "trainer.clock has a deadline or dropout, which are simulated, but at a real pace nodes are late or lost "
            "by themselves. Leave them out (--deadline says how long to wait for a node), or give --pace clock."
        )
