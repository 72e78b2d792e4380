"""ReplayLoop: what happened in a federation of nodes once more, as a simulation with the same bits.

Clients that were missing are left out of the round's cohort, as they were then. Users who did not send their scores
count as if they had no tests. Who is asked needs no record: it is drawn anew.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from pytorch_lightning import Trainer
from torch import Tensor

from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.tasks import LOSSES
from fedlit.errors import DataError, ResumeError, require
from fedlit.evaluation.adaptation import Adapter
from fedlit.evaluation.evaluator import Evaluator, user_metrics
from fedlit.evaluation.round_evaluator import EvaluationOptions, RoundEvaluator
from fedlit.metrics.user_scores import UserScores
from fedlit.params import Params
from fedlit.remote.evaluation import pooled_metrics
from fedlit.remote.loop import ONE_BY_ONE
from fedlit.remote.replay_checks import check_clients
from fedlit.results.events import Asked, Events
from fedlit.rounds.assembly import RoundParts
from fedlit.rounds.federation import Federation
from fedlit.rounds.gathering import Gatherer, RoundOptions
from fedlit.rounds.local_training import LocalTraining
from fedlit.rounds.loop import FederatedLoop
from fedlit.rounds.paced import PacedCloud
from fedlit.rounds.protocol import Event, ServerProtocol
from fedlit.server.cloud import Cloud


@dataclass(frozen=True)
class ReplayedTraining(LocalTraining):
    """Trains those who have trained in the federation."""

    events: Events

    @classmethod
    def of(cls, training: LocalTraining, events: Events) -> Self:
        """The same training, without those who were missing."""
        return cls(**{item.name: getattr(training, item.name) for item in fields(training)}, events=events)

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainedCohort]:
        """Train the clients of all these cohorts that answered; DataError if others were asked."""
        happened = self.events.of(cohorts[0].run_round)
        asked = sorted(client for one in happened.trained.values() for client in one.clients)
        drawn = sorted(client for cohort in cohorts for client in cohort.clients)
        if asked != drawn:
            raise DataError(
                f"The events {self.events.path} do not fit this run: in round {happened.round} they have the clients "
                f"{asked}, but here {drawn} are drawn. Give the config, the data and the versions of that run."
            )
        return super().train([present(cohort, happened.missing) for cohort in cohorts])


def present(cohort: Cohort, missing: Collection[int]) -> Cohort:
    """The cohort without these clients."""
    kept = [k for k, client in enumerate(cohort.clients) if client not in missing]
    if len(kept) == len(cohort.clients):
        return cohort
    # Seconds have entries for those who report alone, so that `take` cannot cut them.
    return replace(cohort, parts=cohort.parts | {"seconds": torch.zeros(0)}).take(kept)


class ReplayedEvaluator(Evaluator):
    """Leaves users out who did not send their scores."""

    missing: Collection[int] = ()
    """In the round that is measured."""

    @property
    def answered(self) -> Tensor:
        """(users,) who has sent them: 1, or 0."""
        return torch.tensor([float(user not in self.missing) for user in range(len(self.counts))], dtype=torch.float64)

    def global_model(self, model: Mapping[str, Tensor]) -> tuple[dict[str, float], UserScores]:
        """As in the base, but made of each user's sums, as in the federation: their order decides the last bits."""
        measures, val = self.client.measures, self.data.everyone.val
        users = self.without_missing(super().global_model(model)[1])
        metrics = pooled_metrics("global", {**users.sums, LOSSES: users.losses}, users.counts, measures)
        if self.has_own_tests:
            metrics |= user_metrics(users, measures)
        if len(self.data.global_val):
            sums = self.sums_of_each((model, rows) for rows in val)
            counts = torch.from_numpy(val.sizes).double() * self.answered
            metrics |= pooled_metrics("val", self.of_answered(sums), counts, measures)
        return metrics, users

    def without_missing(self, users: UserScores) -> UserScores:
        """The scores, as if missing users had no tests."""
        if not self.missing:
            return replace(users, predicted={})  # nobody has all predictions
        sums = self.of_answered({**users.sums, LOSSES: users.losses})
        return UserScores(sums, sums.pop(LOSSES), self.counts * self.answered)

    def of_answered(self, sums: Mapping[str, Tensor]) -> Params:
        """The sums, with zeros for missing users; NaN for a measure that is not a sum."""
        values = {measure.name for measure in self.client.measures if measure.of_outputs is not None}
        none = {name: torch.nan if name in values else 0.0 for name in sums}
        known = self.answered.bool()
        return {
            name: value.masked_fill(~known.reshape(-1, *[1] * (value.dim() - 1)), none[name])
            for name, value in sums.items()
        }


class ReplayedRoundEvaluator(RoundEvaluator):
    """An evaluated round, of those who sent their scores.

    Args:
        measured: the evaluator of the simulation.
        events: of the federation.
    """

    evaluator: ReplayedEvaluator

    def __init__(self, measured: RoundEvaluator, events: Events) -> None:
        client, data, ranks = measured.client, measured.data, measured.ranks
        device, forward = measured.evaluator.device, measured.evaluator.forward
        super().__init__(client, data, measured.models, measured.options, ranks, device, forward)
        self.evaluator = ReplayedEvaluator(client, data, ranks, device, forward)
        self.adapter = Adapter(self.evaluator, measured.options.seed)
        self.events = events
        self.number = 0
        """Of the round that is measured."""

    def _evaluate(
        self, cohort: WeighedCohort | None, model: Mapping[str, Tensor], number: int
    ) -> tuple[dict[str, float], dict[str, Any]]:
        self.number = number
        self.evaluator.missing = self.happened("evaluate").missing.keys()
        return super()._evaluate(cohort, model, number)

    def _scores(self, *args: Any, **options: Any) -> UserScores:
        return self.evaluator.without_missing(super()._scores(*args, **options))

    def pooled_scores(self, models: Sequence[Mapping[str, Tensor]]) -> list[float]:
        """As in the base; with users missing, made of the sums of the others."""
        missing = self.happened("score").missing
        if not missing:
            return super().pooled_scores(models)
        first, evaluator = self.client.task.first, self.evaluator
        users = [user for user in evaluator.counts.nonzero().flatten().tolist() if user not in missing]
        tests = [self.data.everyone.test[user] for user in users]
        sums = [evaluator.sums_of_each((model, rows) for model in models)[first.name] for rows in tests]
        count = evaluator.counts[users].sum().expand(len(models))
        values: list[float] = first.value(torch.stack(sums).sum(0), count).tolist()
        return values

    def happened(self, kind: str) -> Asked:
        """Who was asked in the round that is measured."""
        return self.events.of(self.number).measured.get(kind, Asked())


class ReplayedCloud(PacedCloud):
    """Servers step as they did at a real pace.

    Args:
        federation: the servers.
        cloud: as for CloudProtocol, and so is `seed`.
        recorded: the events.
    """

    def __init__(self, federation: Federation, cloud: Cloud, seed: int, recorded: Events) -> None:
        super().__init__(federation, cloud, seed)
        self.recorded = recorded

    def next_event(self, gatherer: Gatherer) -> Event:
        """The servers that stepped next; DataError if they cannot have."""
        self.gather(gatherer)
        event, happened = self.paced_event(), self.recorded.of(self.events + 1)
        if [server.id for server in event.servers] != [*happened.trained] or event.time_s != happened.time_s:
            raise DataError(
                f"The events {self.recorded.path} do not fit this run: in round {happened.round} the servers "
                f"{[*happened.trained]} stepped. Give the config and the versions of that run."
            )
        return event

    def reported_s(self, server: int) -> float | None:
        """When it had its reports, as it was recorded with the next event."""
        return self.recorded.of(self.events + 1).finish_s.get(server)


class ReplayLoop(FederatedLoop):
    """The rounds of a federation, in the sequential engine of a simulation.

    Args:
        trainer: as for FederatedLoop, and so are `rounds`, `options` and `measures`.
        events: of the federation.
    """

    begun_by = "replay"

    def __init__(
        self,
        trainer: Trainer,
        rounds: int,
        options: RoundOptions,
        measures: EvaluationOptions | None = None,
        *,
        events: Events,
    ) -> None:
        engine = options.request.engine
        require(
            engine != "vectorized",
            f"trainer.engine is {engine}, but --replay has the bits of nodes, which train in the sequential engine. "
            "Leave it out.",
        )
        request = replace(ONE_BY_ONE, threads=options.request.threads)
        super().__init__(trainer, rounds, replace(options, request=request), measures)
        self.events = events

    def create_protocol(self) -> ServerProtocol:
        """As in the base; servers that stepped at a real pace do so again."""
        protocol, options = super().create_protocol(), self.options
        if self.events.recorded.pace == "clock":
            return protocol
        assert options.cloud is not None, "a run of the same settings had one"
        return ReplayedCloud(protocol.federation, options.cloud, options.seed, self.events)

    def assemble(self) -> RoundParts:
        """As in the base, without those who were missing."""
        check_clients(self.events, self.data)
        parts = super().assemble()
        return replace(
            parts,
            training=ReplayedTraining.of(parts.training, self.events),
            round_evaluator=ReplayedRoundEvaluator(parts.round_evaluator, self.events),
        )

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]  # as in the base
        """Also the name of the run that is repeated."""
        return super().state_dict() | {"replay": self.events.recorded.run}

    def _restore(self, state_dict: dict[str, Any]) -> None:
        if state_dict.get("replay", self.events.recorded.run) != self.events.recorded.run:
            raise ResumeError(
                f"This run was begun with other events than {self.events.path}. Resume it with those it began with."
            )
        super()._restore(state_dict)
