"""A server's process: the ordinary round of one server. Client processes train, and the coordinator mixes.

round     gather, send, clients train, report to the coordinator
step      receive, weigh; K_z times: send the model to the coordinator, receive it mixed, and step
end       send the new state to the coordinator. It commits the round, or undoes it if another server was lost
          during the round; then the clients train again
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.cohort_messages import join_replies, request_of
from fedlit.client.messages import Message
from fedlit.clock import Clock
from fedlit.params import clone
from fedlit.rounds.assembly import RoundParts
from fedlit.rounds.federation import Federation
from fedlit.rounds.flat import FlatProtocol
from fedlit.rounds.gathering import Gatherer
from fedlit.rounds.local_training import LocalTraining
from fedlit.rounds.nodes.base import NodeLoop, NodeRound
from fedlit.rounds.nodes.messages import Wire
from fedlit.rounds.nodes.plan import COORDINATOR, NodeProcess
from fedlit.rounds.protocol import Event
from fedlit.server.server import Server, Snapshot


class UndoneError(Exception):
    """The coordinator asks to undo the round."""


class Link:
    """The connection of a server to the coordinator: it sends a message and waits for the answer."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def ask(self, message: Message) -> Message:
        """Send a message and return the coordinator's answer; UndoneError if the round is to be undone."""
        self.wire.send(COORDINATOR, message)
        answer = self.wire.receive(COORDINATOR)
        if "undo" in answer:
            raise UndoneError
        return answer


class NodeProtocol(FlatProtocol):
    """A federation as one of its servers sees it: itself, and a coordinator that mixes.

    Args:
        server: this server.
        iterations: K_z: how often it mixes and steps in a round.
        link: the connection to the coordinator.
    """

    def __init__(self, server: Server, iterations: int, link: Link) -> None:
        super().__init__(Federation([server]))
        self.iterations = iterations
        self.link = link

    def next_event(self, gatherer: Gatherer) -> Event:
        """Its next step; the coordinator decides when it happens."""
        return replace(super().next_event(gatherer), time_s=0.0)

    def mix(self, servers: Sequence[Server]) -> None:
        """Let the coordinator mix this server's model with those of the others."""
        [server] = servers
        server.load_model(self.link.ask({"model": server.model})["model"])


class ServerRound(NodeRound):
    """A round of this server, which the coordinator commits."""

    def step_together(self, event: Event, cohorts: Sequence[TrainedCohort]) -> list[WeighedCohort]:
        """As in the base; then send the new state to the coordinator."""
        [server], [cohort] = event.servers, super().step_together(event, cohorts)
        current = server.snapshot()
        fields = {name: getattr(cohort, name) for name in ("state", "optimizer_state", "weights", "sent_bytes")}
        state = {"model": current.model, "optimizer": current.optimizer, "callbacks": current.callbacks}
        self.protocol.link.ask({"stepped": state, "cohort": fields})
        return [cohort]

    @property
    def protocol(self) -> NodeProtocol:
        """The protocol of this server."""
        assert isinstance(self.parts.protocol, NodeProtocol)
        return self.parts.protocol


@dataclass(frozen=True)
class ClientsTraining(LocalTraining):
    """Lets client processes train."""

    workers: Sequence[NodeProcess]
    """The client processes of this server."""
    link: Link
    """The connection to the coordinator."""
    arrivals: tuple[Clock, int] | None
    """The clock and the seed of the clients' arrivals, if processes wait for them; else None."""

    @classmethod
    def of(
        cls, training: LocalTraining, workers: Sequence[NodeProcess], link: Link, arrivals: tuple[Clock, int] | None
    ) -> "ClientsTraining":
        """The same training, but in client processes; risks are still measured here."""
        arguments = {item.name: getattr(training, item.name) for item in fields(training)}
        return cls(**arguments, workers=workers, link=link, arrivals=arrivals)

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainedCohort]:
        """Train the clients of this server; returns when the coordinator starts its step."""
        [cohort] = cohorts
        asked = {worker.rank: positions for worker in self.workers if (positions := positions_of(worker, cohort))}
        waits = self._waits(cohort)
        for rank, positions in asked.items():
            wait = max(waits[k] for k in positions)
            self.link.wire.send(rank, request_of(cohort, positions) | {"wait": wait})
        replies = [self.link.wire.receive(rank) for rank in asked]
        took = [reply.pop("seconds") for reply in replies]
        seconds = {k: each for rows, each in zip(asked.values(), took, strict=True) for k in rows}
        trained = join_replies(cohort, list(asked.values()), replies)
        answer = self.link.ask({"report": report_of(trained), "seconds": [seconds[k] for k in sorted(seconds)]})
        trained.run_round = answer["number"]
        return [trained]

    def _waits(self, cohort: Cohort) -> list[float]:
        """(clients,) seconds until each client arrives; 0 if time is only simulated."""
        if self.arrivals is None:
            return [0.0] * len(cohort.clients)
        clock, seed = self.arrivals
        return [float(seconds) for seconds in clock.latency.arrivals(seed, cohort.round, cohort.clients)]


class ServerLoop(NodeLoop):
    """The loop of a server's process; one advance() is one round of this server."""

    round_class = ServerRound

    def create_protocol(self) -> NodeProtocol:
        """A protocol with this server only."""
        self.link, cloud = Link(self.wire), self.options.cloud
        server = super().create_protocol().servers[self.part.server]
        return NodeProtocol(server, 1 if cloud is None else cloud.iterations, self.link)

    def assemble(self) -> RoundParts:
        """As in the base, but client processes train."""
        parts, clock = super().assemble(), self.options.clock if self.plan.pace == "real" else None
        arrivals = None if clock is None else (clock, self.options.seed)
        workers = self.plan.workers_of(self.part.server)
        return replace(parts, training=ClientsTraining.of(parts.training, workers, self.link, arrivals))

    def on_run_start(self) -> None:
        """Receive the initial state from the coordinator; for a resumed run it is that of the checkpoint."""
        begin = self.wire.receive(COORDINATOR)
        self.server.restore(Snapshot(begin["model"], begin["clock"], begin["optimizer"], begin["callbacks"]))
        self.server.initial = clone(begin["initial"])
        self.states.load_state_dict({"clients": begin["clients"], "rows": begin["rows"]})
        super().on_run_start()

    def advance(self) -> None:
        """One round, repeated until it is not undone."""
        while True:
            try:
                return super().advance()
            except UndoneError:
                continue


def positions_of(worker: NodeProcess, cohort: Cohort) -> list[int]:
    """Positions of a process's clients in a cohort."""
    members = set(worker.clients)
    return [k for k, client in enumerate(cohort.clients) if client in members]


def report_of(cohort: TrainedCohort) -> Message:
    """The fields of a trained cohort that the coordinator needs; states follow after the server's hooks."""
    return {name: getattr(cohort, name) for name in ("steps_taken", "losses", "params", "buffers", "sent")}
