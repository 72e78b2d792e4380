"""RemoteRound: an ordinary round whose clients are nodes. It also notes what happened, for events.jsonl."""

from dataclasses import replace

from fedlit.client.cohort import TrainedCohort
from fedlit.remote.nodes import Nodes
from fedlit.results.events import Asked, RoundEvents
from fedlit.rounds.protocol import Event
from fedlit.rounds.round import Round
from fedlit.rounds.run_state import RoundRecord


class RemoteRound(Round):
    """A round of a federation of nodes."""

    nodes: Nodes
    """Set by the loop."""
    happened = RoundEvents(0)
    """What has happened in the present round so far."""

    def train(self, event: Event, number: int) -> list[TrainedCohort]:
        """As in the base; who was asked, and who answered, is noted."""
        self.nodes.asked.clear()
        trained = super().train(event, number)
        asked = self.nodes.asked.get("train", Asked())
        by_server = {server.id: of_clients(asked, server.members) for server in event.servers}
        self.happened = RoundEvents(number, event.time_s, by_server, self.parts.protocol.finish_times())
        return trained

    def measure_initial_model(self) -> RoundRecord:
        """As in the base; nobody has trained."""
        self.nodes.asked.clear()
        self.happened = RoundEvents(0)
        return super().measure_initial_model()

    def commit(self, number: int, record: RoundRecord) -> None:
        """As in the base; also who was asked for measurements."""
        measured = {kind: asked for kind, asked in self.nodes.asked.items() if kind != "train"}
        super().commit(number, replace(record, happened=replace(self.happened, measured=measured)))


def of_clients(asked: Asked, clients: frozenset[int]) -> Asked:
    """Those who are among these clients."""
    return Asked(
        {client: seconds for client, seconds in asked.answered.items() if client in clients},
        {client: why for client, why in asked.missing.items() if client in clients},
    )
