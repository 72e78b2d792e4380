"""The beginning of a round: who takes part, what they receive, what they kept."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedlit.client import Client
from fedlit.clock import Clock
from fedlit.cohort import Cohort, Selection
from fedlit.data.base import FederatedDataModule
from fedlit.data.pooled import Pooled
from fedlit.engines.choose import Request
from fedlit.keys import Purpose, Stream, generator
from fedlit.local import initial_memory
from fedlit.params import Params, clone, expand, under_prefix, with_prefix
from fedlit.ranks import Profile
from fedlit.server.cloud import Cloud
from fedlit.server.sampling import Sampler
from fedlit.server.server import Server


@dataclass(frozen=True)
class RoundOptions:
    """What the trainer's arguments say about a round."""

    clients_per_round: int
    sampler: Sampler
    eval_every: int
    divergence_factor: float
    store_local_models: Literal["auto"] | bool
    seed: int
    request: Request = field(default_factory=Request)
    clock: Clock | None = None
    cloud: Cloud | None = None


class Gathering:
    """Makes the cohort of a round; it changes nothing.

    Args:
        client: the algorithm.
        population: the clients and their samples.
        options: who is drawn, and how many.
        profile: times what is done under a name.
    """

    def __init__(
        self,
        client: Client,
        population: FederatedDataModule | Pooled,
        options: RoundOptions,
        profile: Profile = nullcontext,
    ) -> None:
        self.client = client
        self.population = population
        self.options = options
        self.profile = profile
        self._stream = Stream()

    def cohort(self, server: Server) -> Cohort:
        """Who trains for a server in its next round, what they received, what they kept, and how long they take."""
        client, round = self.client, server.rounds
        with self.profile("sample"):
            selection = self.select(server)
        chosen, reporting = selection.train, set(selection.report)
        received, buffers = self.received(server, chosen)
        sizes = self.population.sizes[chosen]
        cohort = Cohort(
            round=round,
            clients=chosen,
            reports=torch.tensor([client in reporting for client in chosen]),
            population=len(server.clients),
            sizes=sizes,
            steps=torch.zeros_like(sizes),
            lr=client.rate(round),
            received=received,
            received_buffers=buffers,
            state=server.states.rows(chosen, client.initial_rows(client.state_spec(), received, server.initial)),
            sent=client.initial_rows(client.sent_spec(), received, server.initial),
            own=client.own_tensors,
            number=round + 1,
        )
        cohort.steps = self.steps(cohort, "local_work")
        if client.keep_optimizer:
            cohort.memory = self.kept_memory(cohort, server)
        if self.options.clock is not None:
            self.time(cohort, self.options.clock)
        return cohort

    def select(self, server: Server) -> Selection:
        """Who trains and who reports in a server's round: the sampler's answer, which the algorithm may widen."""
        options, ids, round = self.options, server.clients, server.rounds
        sizes = self.population.sizes.numpy()[ids]
        count = 1 if self.client.pools_data else options.clients_per_round
        known: dict[str, Any] = {"server": server.id} if server.id else {}
        if options.clock is not None:
            known["arrivals"] = options.clock.latency.arrivals(options.seed, round, ids)
        drawn = options.sampler.select(options.seed, round, sizes, count, **known)
        generator = self._stream.at(options.seed, Purpose.COHORT, round=round, client=server.id, index=1)
        chosen = self.client.select(drawn, len(sizes), generator)
        return Selection(ids[chosen.train].tolist(), ids[chosen.report].tolist())

    def time(self, cohort: Cohort, clock: Clock) -> None:
        """How long the cohort's reports take; who is late or lost does not report. Solves of a round count once."""
        solves = [self.steps(cohort, phase.work_method) for phase in self.client.phases()]
        steps, reports = torch.stack(solves).amax(0).numpy(), cohort.reports.numpy()
        work = clock.latency.work(steps, self.client.batches_per_epoch(cohort.sizes.numpy()))
        ids = np.array(cohort.clients)[reports]
        known = clock.report_times(self.options.seed, cohort.round, ids, work[reports])
        cohort.lasts = known.lasts
        cohort.reports[torch.from_numpy(reports)] = torch.from_numpy(known.reports)

    def received(self, server: Server, chosen: list[int]) -> tuple[Params, Params]:
        """Stacked: the parameters and buffers with which each client starts; what stays with it is its own."""
        params, buffers = expand(server.z, len(chosen)), expand(clone(server.buffers), len(chosen))
        if not self.client.own_tensors:
            return params, buffers
        own = {name: value for name, value in (params | buffers).items() if name in self.client.own_tensors}
        rows = params | buffers | under_prefix("own", server.states.rows(chosen, with_prefix("own", own)))
        return {name: rows[name] for name in params}, {name: rows[name] for name in buffers}

    def steps(self, cohort: Cohort, work_method: str) -> Tensor:
        """(clients,) local steps of a phase; phases of one round draw the same numbers."""

        def generator_of(k: int) -> np.random.Generator:
            return generator(self.options.seed, Purpose.WORK, round=cohort.key(k), client=cohort.clients[k])

        planned = self.client.planned_steps(cohort.sizes.numpy())
        return torch.from_numpy(getattr(self.client, work_method)(cohort, planned, generator_of))

    def kept_memory(self, cohort: Cohort, server: Server) -> Params:
        """Stacked: the local optimiser's state of each client as its last round left it; new for new clients."""
        start, _ = cohort.start_of(self.client.phases()[0].start)
        fresh = with_prefix("memory", initial_memory(self.client.local_optimizer(), start))
        return under_prefix("memory", server.states.rows(cohort.clients, fresh))
