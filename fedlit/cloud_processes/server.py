"""A server's process: the ordinary round of one server, whose clients train elsewhere and whom the coordinator mixes.

round     gather, send, clients train, report to the coordinator
step      receive, weigh; K_z times: its model goes to the coordinator and comes back mixed, and it steps
end       what it has become goes to the coordinator, which lets the round count, or be undone where another
          server was lost within it; then its clients train again
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedlit.clock import Clock
from fedlit.cloud_processes.base import PartLoop
from fedlit.cloud_processes.client import request_of
from fedlit.cloud_processes.plan import COORDINATOR, Part
from fedlit.cloud_processes.wire import Message, Wire
from fedlit.cohort import Cohort
from fedlit.federation import Event, Federation
from fedlit.params import clone
from fedlit.server.cloud import Cloud
from fedlit.server.server import Server, Snapshot
from fedlit.training import Training


class UndoneError(Exception):
    """The coordinator takes the round back."""


class Link:
    """The way to the coordinator: a server tells something, and waits for the answer."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def ask(self, message: Message) -> Message:
        """The coordinator's answer; UndoneError where that is to take the round back."""
        self.wire.send(COORDINATOR, message)
        answer = self.wire.receive(COORDINATOR)
        if "undo" in answer:
            raise UndoneError
        return answer


class ServerFederation(Federation):
    """A federation as one of its servers sees it: itself, and a coordinator that mixes."""

    def __init__(self, server: Server, cloud: Cloud | None, seed: int, link: Link) -> None:
        super().__init__([server], cloud, seed)
        self.link = link

    def earliest(self) -> Event:
        """Its own next step; when that is, is for the coordinator to say."""
        return Event(0.0, list(self.servers))

    def mix(self, event: Event) -> None:
        """The coordinator does."""
        [server] = event.servers
        server.load_model(self.link.ask({"model": server.model})["model"])

    def count(self, event: Event, number: int) -> None:
        """The round counts once the coordinator says so."""
        [server] = event.servers
        cohort, now = self._waiting[server.id], server.snapshot()
        kept = {name: getattr(cohort, name) for name in ("state", "memory", "weights", "sent_bytes")}
        became = {"model": now.model, "optimizer": now.optimizer, "callbacks": now.callbacks}
        self.link.ask({"stepped": became, "cohort": kept})
        super().count(event, number)


class ClientsTraining(Training):
    """Lets client processes train.

    Args:
        training: what measures risks here, and would train here.
        workers: the client processes of this server.
        link: the way to the coordinator.
        arrivals: the clock and the seed by which clients show up, where that is waited for.
    """

    def __init__(
        self, training: Training, workers: Sequence[Part], link: Link, arrivals: tuple[Clock, int] | None
    ) -> None:
        vars(self).update(vars(training))
        self.workers = workers
        self.link = link
        self.arrivals = arrivals

    def train(self, cohorts: Sequence[Cohort]) -> Cohort:
        """The clients of this server; returns when the coordinator lets it step."""
        [cohort] = cohorts
        asked = {worker.rank: positions for worker in self.workers if (positions := positions_of(worker, cohort))}
        waits = self._waits(cohort)
        for rank, positions in asked.items():
            self.link.wire.send(rank, request_of(cohort, positions, max(waits[k] for k in positions)))
        replies = [self.link.wire.receive(rank) for rank in asked]
        put_together(cohort, list(asked.values()), replies)
        seconds = {k: reply["seconds"] for own, reply in zip(asked.values(), replies, strict=True) for k in own}
        answer = self.link.ask({"report": report_of(cohort), "seconds": [seconds[k] for k in sorted(seconds)]})
        cohort.number = answer["number"]
        return cohort

    def _waits(self, cohort: Cohort) -> list[float]:
        """(clients,) seconds until each client shows up; 0 where time is only simulated."""
        if self.arrivals is None:
            return [0.0] * len(cohort.clients)
        clock, seed = self.arrivals
        return [float(seconds) for seconds in clock.latency.arrivals(seed, cohort.round, cohort.clients)]


class ServerLoop(PartLoop):
    """One advance() is one round of this server."""

    def open_servers(self) -> list[torch.optim.Optimizer]:
        """This one alone takes part."""
        optimizers = super().open_servers()
        everyone, self.link = self.federation, Link(self.wire)
        own = everyone.servers[self.part.server]
        self.federation = ServerFederation(own, everyone.cloud, everyone.seed, self.link)
        return optimizers

    def setup_data(self) -> None:
        """Client processes train."""
        super().setup_data()
        clock = self.options.clock if self.plan.pace == "real" else None
        arrivals = None if clock is None else (clock, self.options.seed)
        self.training = ClientsTraining(self.training, self.plan.workers_of(self.part.server), self.link, arrivals)

    def on_run_start(self) -> None:
        """The coordinator says where the run begins: a resumed one in the middle."""
        begin = self.wire.receive(COORDINATOR)
        self.server.restore(Snapshot(begin["model"], begin["clock"], begin["optimizer"], begin["callbacks"]))
        self.server.initial = clone(begin["initial"])
        self.states.load_state_dict({"clients": begin["clients"], "rows": begin["rows"]})
        super().on_run_start()

    def advance(self) -> None:
        """One round, again and again until it counts."""
        while True:
            try:
                return super().advance()
            except UndoneError:
                continue


def positions_of(worker: Part, cohort: Cohort) -> list[int]:
    """Where a process's clients stand in a cohort."""
    own = set(worker.clients)
    return [k for k, client in enumerate(cohort.clients) if client in own]


def put_together(cohort: Cohort, positions: Sequence[Sequence[int]], replies: Sequence[Message]) -> None:
    """Fill the cohort with what its parts bring back."""
    order = torch.tensor([k for own in positions for k in own]).argsort()
    for name in ("taken", "losses"):
        setattr(cohort, name, torch.cat([reply[name] for reply in replies])[order])
    for name in ("params", "buffers", "state", "memory"):
        stacked: dict[str, Tensor] = {
            key: torch.cat([reply[name][key] for reply in replies])[order] for key in replies[0][name]
        }
        setattr(cohort, name, stacked)


def report_of(cohort: Cohort) -> Message:
    """What the coordinator is told of a trained cohort; what clients keep follows after the server's hooks."""
    return {name: getattr(cohort, name) for name in ("taken", "losses", "params", "buffers", "sent")}
