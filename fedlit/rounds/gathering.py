"""The beginning of a round: which clients take part, what they receive, and what they kept."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, Selection
from fedlit.client.cohort_stack import CohortStack
from fedlit.client.local_optimizers import initial_optimizer_state
from fedlit.client.specs import FirstValues, first_values, row_names
from fedlit.client.states_location import StatesPlace
from fedlit.clock import Clock
from fedlit.clock.clock import split_by_counts
from fedlit.data.base import FederatedDataModule
from fedlit.data.pooled import Pooled
from fedlit.engines.choose import Request
from fedlit.keys import Purpose, Stream, generator
from fedlit.params import Params, concat_rows, stack, under_prefix, with_prefix
from fedlit.ranks import Profile
from fedlit.server.buffer import Buffer
from fedlit.server.cloud import Cloud
from fedlit.server.sampling import Arrivals, Sampler, check_selection
from fedlit.server.server import Server

_DRAWS_FOR_ESTIMATE = 100


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
    buffer: Buffer | None = None
    states: StatesPlace = "auto"


class Gatherer:
    """Makes the cohorts of a round; it only reads servers and clients.

    Args:
        client: the algorithm.
        population: the clients and their samples.
        options: who is drawn, and how many.
        profile: measures the time of a block, under a name.
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
        self._changes_selection = is_overridden("select", client, Client)
        """Whether the algorithm changes who takes part; if not, no generator is made for it."""
        self._changes_work = is_overridden("local_work", client, Client)
        """Whether the algorithm changes how many steps clients take."""

    def cohorts(self, servers: Sequence[Server], models: Params | None = None) -> list[Cohort]:
        """The next round of each server: who trains, what they received and kept, and how long they take.

        Args:
            servers: the servers.
            models: the servers' models, stacked, if they are stacked already; else they are stacked here.
        """
        if not servers:
            return []
        cohorts, arrivals = self._select_all(servers, models or stack([server.model for server in servers]))
        self.set_durations(cohorts, arrivals)
        return cohorts

    def untimed(self, servers: Sequence[Server]) -> list[Cohort]:
        """`cohorts` without durations, for estimates: a recorded trace may lack seconds that the run never needs."""
        return self._select_all(servers, stack([server.model for server in servers]))[0]

    def _select_all(self, servers: Sequence[Server], models: Params) -> "tuple[list[Cohort], DrawnArrivals]":
        with self.profile("sample"):
            arrivals = self.arrivals(servers, [server.clients for server in servers])
            selected = [self.select(server, times) for server, times in zip(servers, arrivals.each, strict=True)]
        return self.build_cohorts(servers, selected, models), arrivals

    def sending(self, server: Server, among: np.ndarray, count: int, draw: int, model: Params) -> Cohort:
        """Draw `count` of these clients as a cohort that receives this model, with its durations.

        Args:
            server: the server.
            among: ids of the clients that can be chosen.
            count: how many are chosen.
            draw: number that keys this draw, in place of the server's round.
            model: the server's model, stacked; several cohorts share it.
        """
        with self.profile("sample"):
            arrivals = self.arrivals([server], [among])
            selection = self.select(server, arrivals.each[0], among, count, draw)
        [cohort] = self.build_cohorts([server], [selection], model)
        self.set_durations([cohort], arrivals)
        return cohort

    def build_cohorts(self, servers: Sequence[Server], selected: Sequence[Selection], models: Params) -> list[Cohort]:
        """Each server's cohort: the chosen clients, what they received and what they kept.

        Args:
            servers: the servers.
            selected: which clients train, and which of them report.
            models: stacked: the model that each server sends.
        """
        client, counts = self.client, [len(selection.train) for selection in selected]
        chosen = [client_id for selection in selected for client_id in selection.train]
        # One set is enough: no two servers share a client.
        reporting = {client_id for selection in selected for client_id in selection.report}
        sizes = self.population.sizes.numpy()[chosen]
        planned = client.planned_steps(sizes)
        sent = {
            "received": {name: models[name] for name in servers[0].params},
            "received_buffers": {name: models[name] for name in servers[0].buffers},
        }
        stack = CohortStack(counts, {"reports": torch.tensor([client_id in reporting for client_id in chosen])}, sent)
        stack.fields |= {"sizes": torch.from_numpy(sizes), "steps": torch.from_numpy(planned)}
        self.add_rows(stack, servers[0], chosen)
        rates = {round: client.rate(round) for round in {server.rounds for server in servers}}
        cohorts = [
            Cohort(
                stack=stack,
                server_index=index,
                round=server.rounds,
                run_round=server.rounds + 1,
                population=len(server.clients),
                clients=selection.train,
                draw_rounds=[server.rounds] * len(selection.train),
                lrs=[rates[server.rounds]] * len(selection.train),
                local_tensors=client.local_tensors,
            )
            for index, (server, selection) in enumerate(zip(servers, selected, strict=True))
        ]
        for server, cohort, steps in zip(servers, cohorts, split_by_counts(planned, counts), strict=True):
            if self._changes_work or client.most_steps is not None:  # a callback may change most_steps between rounds
                cohort.steps = self.steps(cohort, "local_work", steps)
            if client.keep_optimizer:
                cohort.optimizer_state = self.kept_optimizer_state(cohort, server)
        return cohorts

    def add_rows(self, stack: CohortStack, server: Server, chosen: list[int]) -> None:
        """Add the rows of these clients' states (initial values if new), and what is sent besides the model."""
        client, initial = self.client, server.initial
        if client.local_tensors:
            models = self.received(server, chosen, stack.all("received"), stack.all("received_buffers"))
            stack.fields |= dict(zip(("received", "received_buffers"), models, strict=True))
        kept, sent = self.first_values(), first_values(client.sent_spec())
        if kept or sent:
            stack.fields["received"] = stack.all("received")
        received = stack.fields.get("received", {})
        names = row_names(kept, received)
        stack.fields["state"] = server.states.rows(chosen, names, lambda: client.initial_rows(kept, received, initial))
        stack.fields["sent"] = client.initial_rows(sent, received, initial)

    def first_values(self) -> FirstValues:
        """The first values of the states that are kept here: all of them, where the clients are simulated."""
        return self.client.first_values()

    def arrivals(self, servers: Sequence[Server], ids: Sequence[np.ndarray]) -> "DrawnArrivals":
        """When these clients of each server arrive in its next round; None if the sampler does not need it."""
        options = self.options
        if options.clock is None or not options.sampler.needs_clock:
            return DrawnArrivals([None] * len(servers))
        counts, everyone = [len(clients) for clients in ids], np.concatenate(ids)
        rounds = np.repeat([server.rounds for server in servers], counts)
        seconds = options.clock.latency.arrivals(options.seed, rounds, everyone)
        return DrawnArrivals([*split_by_counts(seconds, counts)], everyone, seconds)

    def select(
        self,
        server: Server,
        arrivals: Arrivals,
        among: np.ndarray | None = None,
        count: int | None = None,
        draw: int | None = None,
    ) -> Selection:
        """Which clients train and report in a server's round: the sampler's selection, which the algorithm may change.

        Args:
            server: the server.
            arrivals: when the clients that can be chosen arrive.
            among: their ids; by default all clients of the server.
            count: how many are chosen; by default clients_per_round.
            draw: key of the draw; by default the server's round.
        """
        options, ids = self.options, server.clients if among is None else among
        draw = server.rounds if draw is None else draw
        sizes = server.sizes.numpy() if among is None else self.population.sizes.numpy()[ids]
        if count is None:
            count = 1 if self.client.pools_data else options.clients_per_round
        optional: dict[str, Any] = {"server": server.id} if server.id else {}
        if arrivals is not None:
            optional["arrivals"] = arrivals
        drawn = options.sampler.select(options.seed, draw, sizes, count, **optional)
        check_selection(drawn, len(sizes), f"trainer.sampler ({type(options.sampler).__name__})")
        chosen = drawn
        if self._changes_selection:
            generator = self._stream.at(options.seed, Purpose.COHORT, round=draw, client=server.id, index=1)
            chosen = self.client.select(drawn, len(sizes), generator)
            check_selection(chosen, len(sizes), f"{type(self.client).__name__}.select")
        train = ids.take(chosen.train).tolist()
        return Selection(train, train if chosen.report is chosen.train else ids.take(chosen.report).tolist())

    def set_durations(self, cohorts: Sequence[Cohort], arrivals: "DrawnArrivals") -> None:
        """Set each cohort's duration, by the longest phase of each client; late and lost clients do not report."""
        clock = self.options.clock
        if clock is None:
            return
        reporting = Cohort.reports.of(cohorts).numpy()
        starts = np.cumsum([0, *(len(cohort.clients) for cohort in cohorts[:-1])])
        counts = np.add.reduceat(reporting, starts, dtype=np.int64).tolist()
        sizes = Cohort.sizes.of(cohorts).numpy()[reporting]
        steps = self.longest_solves(cohorts).numpy()[reporting]
        ids = np.array([client for cohort in cohorts for client in cohort.clients])[reporting]
        rounds = np.repeat([cohort.round for cohort in cohorts], counts)
        work = clock.latency.work(steps, self.client.batches_per_epoch(sizes))
        seconds, reports, durations = clock.reports_of(self.options.seed, rounds, ids, work, counts, arrivals.of(ids))
        each = torch.split(torch.from_numpy(seconds), counts)
        for cohort, duration, times in zip(cohorts, durations, each, strict=True):
            cohort.duration_s, cohort.seconds = duration, times
        if not reports.all():
            for cohort, in_time in zip(cohorts, split_by_counts(reports, counts), strict=True):
                cohort.reports[cohort.reports.clone()] = torch.from_numpy(in_time)

    def longest_solves(self, cohorts: Sequence[Cohort]) -> Tensor:
        """(clients,) local steps of each client's longest phase, for all cohorts."""
        solves = [self.all_steps(cohorts, name) for name in self.work_methods]
        return torch.stack(solves).amax(0) if len(solves) > 1 else solves[0]

    def all_steps(self, cohorts: Sequence[Cohort], work_method: str) -> Tensor:
        """(clients,) local steps of the phases with this `work_method`, for all cohorts."""
        if work_method == "local_work":
            return Cohort.steps.of(cohorts)
        return concat_rows([self.steps(cohort, work_method) for cohort in cohorts])

    @property
    def work_methods(self) -> list[str]:
        """Methods of the client that give the number of steps of its phases."""
        return [*dict.fromkeys(phase.work_method for phase in self.client.phases())]

    def received(self, server: Server, chosen: list[int], params: Params, buffers: Params) -> tuple[Params, Params]:
        """Stacked: the parameters and buffers that each client receives, with its own values of the kept tensors."""
        if not self.client.local_tensors:
            return params, buffers
        sent = {name: value for name, value in (params | buffers).items() if name in self.client.local_tensors}
        first = with_prefix("own", sent)
        rows = params | buffers | under_prefix("own", server.states.rows(chosen, list(first), lambda: first))
        return {name: rows[name] for name in params}, {name: rows[name] for name in buffers}

    def steps(self, cohort: Cohort, work_method: str, planned: np.ndarray | None = None) -> Tensor:
        """(clients,) local steps of a phase, from the planned ones; all phases of a round use the same random draws."""

        def generator_of(k: int) -> np.random.Generator:
            return generator(self.options.seed, Purpose.WORK, round=cohort.draw_rounds[k], client=cohort.clients[k])

        planned = self.client.planned_steps(cohort.sizes.numpy()) if planned is None else planned
        return torch.from_numpy(getattr(self.client, work_method)(cohort, planned, generator_of))

    def work_shares(self, cohorts: Sequence[Cohort]) -> dict[str, float]:
        """By `work_method`: drawn local steps / planned local steps, for estimates.

        It is a mean over about a hundred draws; a small cohort is drawn for several rounds.
        """
        planned = sum(int(self.client.planned_steps(cohort.sizes.numpy()).sum()) for cohort in cohorts)
        rounds = -(-_DRAWS_FOR_ESTIMATE // max(1, sum(len(cohort.clients) for cohort in cohorts)))
        methods = self.work_methods
        totals = dict.fromkeys(methods, 0)
        for cohort in cohorts:
            for later in range(rounds):
                drawn = cohort.round + later
                of_round = replace(cohort, round=drawn, draw_rounds=[drawn] * len(cohort.clients))
                for name in methods:
                    totals[name] += int(self.steps(of_round, name).sum())
        return {name: steps / max(rounds * planned, 1) for name, steps in totals.items()}

    def kept_optimizer_state(self, cohort: Cohort, server: Server) -> Params:
        """Stacked: the state of each client's local optimiser after its last round; a fresh state for a new client."""
        start, _ = cohort.start_of(self.client.phases()[0].start)
        fresh = with_prefix("memory", initial_optimizer_state(self.client.local_optimizer(), start))
        return under_prefix("memory", server.states.rows(cohort.clients, list(fresh), lambda: fresh))


@dataclass(frozen=True)
class DrawnArrivals:
    """Arrivals that were drawn for the sampler, so that the clock does not draw them again."""

    each: list[Arrivals]
    """By server: (clients,) arrivals; None if the sampler does not need them."""
    clients: np.ndarray | None = None
    """(clients,) ids of the clients of all servers."""
    seconds: np.ndarray | None = None
    """(clients,) seconds until each of them arrives."""

    def of(self, ids: np.ndarray) -> np.ndarray | None:
        """(clients,) seconds until these clients arrive; None if no arrivals were drawn."""
        if self.clients is None:
            return None
        table: np.ndarray = np.zeros(self.clients.max() + 1)
        table[self.clients] = self.seconds
        return np.asarray(table[ids])
