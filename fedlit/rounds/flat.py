"""One server that waits for the reports of its cohort, in every round."""

from fedlit.params import clone
from fedlit.rounds.gathering import Gatherer
from fedlit.rounds.protocol import Event, ServerProtocol


class FlatProtocol(ServerProtocol):
    """The server steps once it has the reports of its cohort."""

    def next_event(self, gatherer: Gatherer) -> Event:
        """The server's next round."""
        [server] = self.servers
        [cohort] = gatherer.cohorts([server], clone(self.federation.models([server])))
        return Event([server], server.started + cohort.duration_s, [cohort])
