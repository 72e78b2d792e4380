"""The beginning of a round: who takes part, what they receive, what they kept."""

from collections.abc import Sequence
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
from fedlit.server.cloud import Cloud
from fedlit.server.sampling import Arrivals, Sampler
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
    """

    def __init__(
        self,
        client: Client,
        population: FederatedDataModule | Pooled,
        options: RoundOptions,
    ) -> None:
        self.client = client
        self.population = population
        self.options = options
        self._stream = Stream()

    def cohorts(self, servers: Sequence[Server]) -> list[Cohort]:
        """The next round of each server: who trains, what they received and kept, and how long they take."""
        selected = zip(servers, self.arrivals(servers), strict=True)
        cohorts = [self.cohort(server, self.select(server, arrivals)) for server, arrivals in selected]
        if cohorts and self.options.clock is not None:
            self.time(cohorts, self.options.clock)
        return cohorts

    def cohort(self, server: Server, selection: Selection) -> Cohort:
        """Those who were chosen, what they received and what they kept."""
        client, round = self.client, server.rounds
        chosen, reporting = selection.train, set(selection.report)
        received, buffers = self.received(server, chosen)
        sizes = torch.from_numpy(self.population.sizes.numpy()[chosen])  # torch is slow with lists
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
        return cohort

    def arrivals(self, servers: Sequence[Server]) -> list[Arrivals]:
        """When the clients of each server show up in its next round; None where the sampler does not ask."""
        options = self.options
        if options.clock is None or not options.sampler.needs_clock or not servers:
            return [None] * len(servers)
        ids = np.concatenate([server.clients for server in servers])
        rounds = np.concatenate([np.full(len(server.clients), server.rounds) for server in servers])
        seconds = options.clock.latency.arrivals(options.seed, rounds, ids)
        return [*np.split(seconds, np.cumsum([len(server.clients) for server in servers])[:-1])]

    def select(self, server: Server, arrivals: Arrivals) -> Selection:
        """Who trains and who reports in a server's round: the sampler's answer, which the algorithm may widen."""
        options, ids, round = self.options, server.clients, server.rounds
        sizes = self.population.sizes.numpy()[ids]
        count = 1 if self.client.pools_data else options.clients_per_round
        known: dict[str, Any] = {"server": server.id} if server.id else {}
        if arrivals is not None:
            known["arrivals"] = arrivals
        drawn = options.sampler.select(options.seed, round, sizes, count, **known)
        generator = self._stream.at(options.seed, Purpose.COHORT, round=round, client=server.id, index=1)
        chosen = self.client.select(drawn, len(sizes), generator)
        return Selection(ids[chosen.train].tolist(), ids[chosen.report].tolist())

    def time(self, cohorts: Sequence[Cohort], clock: Clock) -> None:
        """How long each cohort's reports take; who is late or lost does not report. Solves of a round count once."""
        asked = [cohort.reports.numpy() for cohort in cohorts]
        each = [(cohort.sizes.numpy(), self.longest_solves(cohort), np.array(cohort.clients)) for cohort in cohorts]
        sizes, steps, ids = (
            np.concatenate([values[reports] for values, reports in zip(column, asked, strict=True)])
            for column in zip(*each, strict=True)
        )
        counts = [int(reports.sum()) for reports in asked]
        rounds = np.repeat([cohort.round for cohort in cohorts], counts)
        work = clock.latency.work(steps, self.client.batches_per_epoch(sizes))
        known = clock.reports_of(self.options.seed, rounds, ids, work, counts)
        for cohort, reports, own in zip(cohorts, asked, known, strict=True):
            cohort.lasts = own.lasts
            reports[reports] = own.reports  # a view of cohort.reports

    def longest_solves(self, cohort: Cohort) -> np.ndarray:
        """(clients,) local steps of the phase that has most of them."""
        methods = dict.fromkeys(phase.work_method for phase in self.client.phases())
        solves = [cohort.steps if name == "local_work" else self.steps(cohort, name) for name in methods]
        return torch.stack(solves).amax(0).numpy() if len(solves) > 1 else solves[0].numpy()

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
