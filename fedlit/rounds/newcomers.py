"""Newcomers: what clients that were held back get from the finished run, and how well it serves them.

A newcomer comes to a server, gets what the algorithm gives to a client that was never there (`Client.newcomer`), from
its training part, and is measured on its test part. Nothing of it is kept, and nothing of the run moves: rows are
thrown away, and what a callback changes while it sends is undone.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, Selection, TrainedCohort
from fedlit.client.states import ClientStates
from fedlit.client.step import Adaptation, Newcomer
from fedlit.data.base import FederatedDataModule
from fedlit.evaluation.adaptation import Adapter
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.evaluation.round_metrics import spread_metrics
from fedlit.evaluation.user_models import UserModels
from fedlit.metrics.catalogue import NEWCOMER
from fedlit.metrics.measures import Measure
from fedlit.metrics.user_scores import OwnScores, UserScores
from fedlit.params import stack
from fedlit.rounds.gathering import Gatherer
from fedlit.rounds.local_training import LocalTraining, kept_rows
from fedlit.server.server import Server

Call = Callable[[Server, str, Cohort], None]
"""Calls a hook of a server's callbacks."""
HELD_BYTES = 256e6
"""Most bytes of the models of newcomers who are trained at once."""


@dataclass
class Sums:
    """Newcomer -> scores on its own test, by model."""

    shared: dict[int, OwnScores] = field(default_factory=dict)
    """z of its server."""
    own: dict[int, OwnScores] = field(default_factory=dict)
    """What the algorithm gives it."""
    finetuned: dict[int, OwnScores] = field(default_factory=dict)
    """The same, or z, after fine-tuning."""


@dataclass(frozen=True)
class MeasuredNewcomers:
    """The metrics of the newcomers, and a record of each, as columns."""

    values: dict[str, float]
    records: dict[str, Any]


@dataclass(frozen=True)
class Newcomers:
    """Measures the newcomers of a run.

    Args:
        client: the algorithm.
        data: the newcomers as a population (`FederatedDataModule.newcomer_data`).
        users: the users' data, whose servers newcomers come to.
        gatherer: makes their cohorts.
        training: trains them.
        adapter: measures their models.
        options: what is measured in addition.
    """

    client: Client
    data: FederatedDataModule
    users: FederatedDataModule
    gatherer: Gatherer
    training: LocalTraining
    adapter: Adapter
    options: EvaluationOptions

    def is_asked_after(self, number: int) -> bool:
        """Whether `trainer.newcomers_every` asks for a measurement after so many rounds."""
        every = self.options.newcomers_every
        return every is not None and number % every == 0

    def measure(
        self, servers: Sequence[Server], number: int, call: Call, finetune: Adaptation | None
    ) -> MeasuredNewcomers:
        """What these servers' models are worth to newcomers, after so many rounds, and after this fine-tuning."""
        sums = Sums()
        for server, clients in self.arriving(servers):
            self.measure_cohort(server, clients, number, call, finetune, sums)
        shared, own, finetuned = (self.scores(one) for one in (sums.shared, sums.own, sums.finetuned))
        measures = self.client.measures
        values = spread_metrics(own, measures, "newcomers")
        if self.z_is_whole:
            values |= {f"newcomers/global_{measure.name}": shared.mean(measure) for measure in measures}
        if sums.finetuned:
            values |= {f"newcomers/finetuned_{measure.name}": finetuned.mean(measure) for measure in measures}
        return MeasuredNewcomers(values, self.records(measures, shared, own))

    @property
    def z_is_whole(self) -> bool:
        """Whether z alone is a model: with tensors that stay with the clients it is not."""
        return not self.client.local_tensors or self.client.average_kept

    def arriving(self, servers: Sequence[Server]) -> Iterator[tuple[Server, list[int]]]:
        """Each server with the tested newcomers that come to it, in cohorts that fit into memory."""
        tested = self.data.everyone.test.sizes.nonzero()[0].tolist()
        homes = homes_of([server.clients for server in servers], self.users.groups, tested, self.data.groups)
        model = sum(value.nbytes for value in servers[0].model.values())
        width = max(self.gatherer.options.clients_per_round, int(HELD_BYTES / max(1, model)))
        for position, server in enumerate(servers):
            clients = [client for client in tested if homes[client] == position]
            yield from ((server, clients[first : first + width]) for first in range(0, len(clients), width))

    def measure_cohort(
        self, server: Server, clients: list[int], number: int, call: Call, finetune: Adaptation | None, sums: Sums
    ) -> None:
        """Add the sums of some newcomers of a server."""
        newcomer, z = self.client.newcomer(), server.global_model
        sums.shared |= self.adapter.evaluator.user_sums(z, clients)
        models = self.models(server, clients, newcomer, call)
        steps = [step for step in [newcomer.personal.adaptation] if step is not None]
        is_z = not newcomer.phases and not steps and newcomer.personal.model == "global"
        sums.own |= (
            {client: sums.shared[client] for client in clients}
            if is_z
            else self.adapter.measured(clients, models.personal, steps, number)
        )
        if finetune is not None:
            sums.finetuned |= self.finetuned(models, clients, steps, finetune, number)

    def finetuned(
        self, models: UserModels, clients: list[int], steps: list[Adaptation], last: Adaptation, number: int
    ) -> dict[int, OwnScores]:
        """The scores after fine-tuning: of what newcomers get, or of z."""
        if self.options.finetune_from == "global":
            return self.adapter.measured(clients, models.received, [last], number)
        return self.adapter.measured(clients, models.personal, [*steps, last], number)

    def models(self, server: Server, clients: list[int], newcomer: Newcomer, call: Call) -> UserModels:
        """The models of some newcomers, after the local solves that the algorithm asks for."""
        states = ClientStates()
        if newcomer.phases:
            trained = self.trained(server, clients, newcomer, call)
            states.update(*trained.trained_rows(kept_rows(self.client, trained, keeps_local=True)))
        return UserModels(
            lambda client: server.global_model,
            states,
            personal=newcomer.personal.model,
            local_tensors=self.client.local_tensors,
        )

    def trained(self, server: Server, clients: list[int], newcomer: Newcomer, call: Call) -> TrainedCohort:
        """Some newcomers after their local solves."""
        newcomers_server = server.for_newcomers()
        [cohort] = self.gatherer.build_cohorts(
            [newcomers_server], [Selection(clients, clients)], stack([newcomers_server.model])
        )
        self.training.measure_received(cohort)
        with server.callbacks_restored():
            call(newcomers_server, "on_cohort_start", cohort)
        return self.training.solve(cohort, newcomer.phases)

    def scores(self, own: dict[int, OwnScores]) -> UserScores:
        """Their scores as those of the whole population, in which users count nothing."""
        counts = torch.from_numpy(self.data.everyone.test.sizes).double()
        if not own:
            return UserScores({}, torch.zeros(0), counts)
        first = next(iter(own.values()))
        zeros = {name: value.new_zeros(len(counts), *value.shape) for name, value in first.sums.items()}
        return UserScores(zeros, first.loss.new_zeros(len(counts)), counts).replaced(own)

    def records(self, measures: Sequence[Measure], shared: UserScores, own: UserScores) -> dict[str, Any]:
        """One row for each newcomer, as columns of clients.parquet."""
        clients = np.arange(self.users.num_clients, self.data.num_clients)

        def column(values: Tensor, is_whole: bool = True) -> np.ndarray:
            return values.numpy()[clients] if is_whole else np.full(len(clients), np.nan)

        return {
            "client": clients,
            "group": [self.data.groups[client] for client in clients],
            "size": self.data.sizes.numpy()[clients],
            **{f"{measure.name}_global": column(shared.values(measure), self.z_is_whole) for measure in measures},
            **{f"{measure.name}_personal": column(own.values(measure)) for measure in measures},
            "loss": column(shared.loss, self.z_is_whole),
            NEWCOMER: np.ones(len(clients), dtype=np.int64),
        }


def homes_of(
    members: Sequence[Sequence[int] | np.ndarray],
    groups: Sequence[str],
    newcomers: Sequence[int],
    groups_of_newcomers: Sequence[str],
) -> dict[int, int]:
    """Newcomer -> the place of its server: where all users of its group are, or each server in turn.

    Args:
        members: ids of each server's users.
        groups: of the users.
        newcomers: their ids.
        groups_of_newcomers: by id.
    """
    counters = [Counter(groups[client] for client in clients) for clients in members]
    homes = {}
    for turn, client in enumerate(newcomers):
        group = groups_of_newcomers[client]
        places = [place for place, counts in enumerate(counters) if group and counts[group]]
        homes[client] = places[0] if len(places) == 1 else turn % len(members)
    return homes


def with_newcomers(users: dict[str, Any], newcomers: dict[str, Any] | None) -> dict[str, Any]:
    """The records of users and of newcomers below each other; what newcomers do not have is NaN."""
    count = len(users["client"])
    marked = users | {NEWCOMER: np.zeros(count, dtype=np.int64)}
    if newcomers is None:
        return marked
    missing = np.full(len(newcomers["client"]), np.nan)
    return {name: [*column, *newcomers.get(name, missing)] for name, column in marked.items()}
