"""One server that waits for the reports of its cohort, in every round."""

from dataclasses import dataclass

from fedlit.client.cohort import Cohort
from fedlit.params import clone
from fedlit.rounds.gathering import Gatherer
from fedlit.rounds.protocol import Event, ServerProtocol
from fedlit.server.server import Server


@dataclass(frozen=True, eq=False)
class FlatEvent(Event):
    """One round of the one server."""

    protocol: "FlatProtocol"
    servers: list[Server]
    time_s: float
    cohort: Cohort

    def to_send(self) -> list[tuple[Server, Cohort]]:
        """The server sends its cohort the model."""
        return [(self.servers[0], self.cohort)]

    def to_train(self) -> list[Cohort]:
        """The cohort trains."""
        return [self.cohort]

    def finish(self, number: int) -> None:
        """The server begins its next round."""
        self.protocol.move_on(self, number)


class FlatProtocol(ServerProtocol):
    """The server steps once it has the reports of its cohort."""

    def next_event(self, gatherer: Gatherer) -> FlatEvent:
        """The server's next round."""
        [server] = self.servers
        [cohort] = gatherer.cohorts([server], clone(self.federation.models([server])))
        return FlatEvent(self, [server], server.started + cohort.duration_s, cohort)
