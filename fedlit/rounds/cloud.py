"""Several servers: the first to have their reports step together and mix their models (`server/cloud.py`)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from fedlit.client.cohort import Cohort
from fedlit.errors import ResumeError
from fedlit.params import clone
from fedlit.rounds.federation import Federation
from fedlit.rounds.gathering import Gatherer
from fedlit.rounds.protocol import Event, Moment, ServerProtocol, ServerRecords
from fedlit.server.cloud import Cloud, check_doubly_stochastic
from fedlit.server.server import Server


class CloudProtocol(ServerProtocol):
    """Decides which servers of a `Cloud` step next.

    Args:
        federation: the servers.
        cloud: how many step together, what the others do, and how models are mixed.
        seed: seed of the run.
    """

    clock_fields: ClassVar[tuple[str, ...]] = (*ServerProtocol.clock_fields, "rigorous_round")

    def __init__(self, federation: Federation, cloud: Cloud, seed: int) -> None:
        super().__init__(federation)
        self.cloud = cloud
        self.servers_per_step, self.iterations = cloud.servers_per_step, cloud.iterations
        self.seed = seed
        self.rigorous_round = 0
        """Rounds of the rigorous protocol whose first B servers have stepped."""
        self.waiting: dict[int, Cohort] = {}
        """The cohorts that servers have gathered and not stepped with yet, by the server's id."""

    # ---- who steps ---------------------------------------------------------------------------------------------------

    def next_event(self, gatherer: Gatherer) -> Event:
        """The servers that step next. All others keep their model, their cohort and their clock."""
        self.gather(gatherer)
        return self.earliest()

    def gather(self, gatherer: Gatherer) -> None:
        """Gather the cohort of every server that begins a round."""
        idle = [server for server in self.servers if server.id not in self.waiting]
        cohorts = gatherer.cohorts(idle, clone(self.federation.models(idle)))
        self.waiting |= dict(zip([server.id for server in idle], cohorts, strict=True))

    def earliest(self) -> Event:
        """The next event in time."""
        return self._first_to_finish(self.servers) if self.cloud.protocol == "async" else self._next_rigorous()

    def finish_s(self, server: Server) -> float:
        """Simulated seconds at which a server has its reports."""
        return server.started + self.waiting[server.id].duration_s

    def _first_to_finish(self, servers: Sequence[Server]) -> Event:
        """The first B of these to have their reports; ties go to the lowest id."""
        order = sorted(servers, key=lambda server: (self.finish_s(server), server.id))[: self.servers_per_step]
        return self._event(sorted(order, key=lambda server: server.id), self.finish_s(order[-1]))

    def _event(self, servers: list[Server], time_s: float) -> Event:
        """These servers step, with the cohorts that they have gathered."""
        return Event(servers, time_s, [self.waiting[server.id] for server in servers])

    def _next_rigorous(self) -> Event:
        """The next event: the first B of round t step together, or a server of an earlier round steps alone."""
        current = [server for server in self.servers if server.rounds == self.rigorous_round]
        late = [server for server in self.servers if server.rounds < self.rigorous_round]
        alone = [self._event([server], self.finish_s(server)) for server in late]
        together = [self._first_to_finish(current)] if len(current) >= self.servers_per_step else []
        return min([*together, *alone], key=lambda event: (event.time_s, event not in together, event.servers[0].id))

    # ---- a step ------------------------------------------------------------------------------------------------------

    def mix(self, servers: Sequence[Server]) -> None:
        """w_n = sum_m a_nm z_m, by the matrix of this event in every iteration; a single server keeps its own."""
        if len(servers) == 1:
            return
        matrix = self.cloud.mixing.matrix([server.id for server in servers], self.seed, self.events)
        check_doubly_stochastic(matrix)
        self.federation.mix(servers, matrix)

    def finish(self, event: Event, number: int) -> None:
        """As in the base; also count how long each server of the event has waited for the others."""
        servers = event.servers
        self.staleness = sum(number - server.stepped for server in servers) / len(servers)
        if len(servers) == self.servers_per_step:
            self.rigorous_round += servers[0].rounds == self.rigorous_round
        for server in servers:
            server.waited += event.time_s - self.finish_s(server)
            del self.waiting[server.id]
        super().finish(event, number)

    # ---- all servers -------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Distance of the servers from their mean, staleness of their reports, and the share of time that they wait."""
        waited = float(np.mean([server.waited for server in self.servers]))
        return {
            "cloud/consensus": float(np.mean(self.federation.distances(self.servers))),
            "cloud/staleness": self.staleness,
            "cloud/waiting": waited / self.time if self.time else 0.0,
        }

    def records(self, event: Event) -> ServerRecords:
        """One row for each server: the round that it is in, or that ends with this event."""
        now, due, servers = event.time_s, {server.id for server in event.servers}, self.servers
        finish = [self.finish_s(server) for server in servers]
        return {
            "server": [server.id for server in servers],
            "time_s": [now] * len(servers),
            "rounds": [server.rounds + (server.id in due) for server in servers],
            "start_s": [server.started for server in servers],
            "finish_s": finish,
            "waited_s": [max(0.0, now - end) for end in finish],
            "distance": self.federation.distances(servers),
            "clients": [int(np.count_nonzero(self.waiting[server.id].reports.numpy())) for server in servers],
            "stepped": [server.id in due for server in servers],
        }

    # ---- what is saved -----------------------------------------------------------------------------------------------

    def restore(self, before: Moment) -> None:
        """Return to the end of the last finished round; cohorts are gathered again."""
        self.waiting.clear()
        super().restore(before)

    def state_dict(self) -> dict[str, Any]:
        """Every server with its clients, the time, and the round of the rigorous protocol."""
        clients = [torch.from_numpy(server.clients) for server in self.servers]
        owned = {"clients": clients} if len(clients) > 1 else {}
        return super().state_dict() | {"formed": self.rigorous_round, **owned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if not self.cloud.mixing.is_fixed:
            check_matrix_numbering(state)
        self.rigorous_round = state["formed"]
        self.waiting.clear()
        super().load_state_dict(state)


def check_matrix_numbering(state: dict[str, Any]) -> None:
    """Refuse to resume a run that numbered its matrices as an earlier fedlit did: later rounds would not match."""
    if "events" not in state:
        raise ResumeError(
            "This run was begun with a fedlit that took the matrices of trainer.cloud.mixing from the second one on, "
            "and another one in each of trainer.cloud.iterations. Now event t takes matrix t, from 0 on, so the rest "
            "of the run would not fit what is there. Start it anew with --overwrite (in Python: overwrite=True), or "
            "resume it with the fedlit that began it."
        )
