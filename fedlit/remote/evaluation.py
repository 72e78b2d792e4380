"""What is measured of a federation: nodes send sums over their own tests, and the metrics are made of these here."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import WeighedCohort
from fedlit.client.messages import Message
from fedlit.client.tasks import LOSSES
from fedlit.data.base import FederatedDataModule
from fedlit.evaluation.evaluator import Evaluator, user_metrics
from fedlit.evaluation.round_evaluator import EvaluationOptions, RoundEvaluator
from fedlit.evaluation.traffic import SentToUsers
from fedlit.evaluation.user_models import UserModels
from fedlit.metrics.measures import Measure
from fedlit.metrics.user_scores import UserScores
from fedlit.params import Params
from fedlit.remote.gathering import trained_in
from fedlit.remote.nodes import Nodes

Sums = dict[str, Params]
"""Group of models -> stacked by client: sums over its own tests, zeros for clients that did not answer."""


class NodeEvaluator(Evaluator):
    """Makes the metrics of the global model of sums that nodes have sent."""

    told: Sums
    """Of the round that is measured."""
    answered: Tensor
    """(clients,) who has sent them: 1, or 0."""

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Nothing is evaluated here."""
        yield

    def global_model(self, model: Mapping[str, Tensor]) -> tuple[dict[str, float], UserScores]:
        """The metrics of the global model, and its scores on every user's own test."""
        users = self.users("shared")
        measures = self.client.measures
        metrics = pooled_metrics("global", self.told["shared"], users.counts, measures)
        if self.has_own_tests:
            metrics |= user_metrics(users, measures)
        if "val" in self.told:
            sizes = torch.from_numpy(self.data.everyone.val.sizes).double()
            metrics |= pooled_metrics("val", self.told["val"], sizes * self.answered, measures)
        return metrics, users

    def users(self, group: str) -> UserScores:
        """Scores of one model for each user; users who did not answer count as if they had no tests."""
        sums = dict(self.told[group])
        for measure in self.client.measures:
            if measure.of_outputs is not None:  # a value, where others have sums: who did not answer has none
                known = self.answered.bool().unsqueeze(1)
                sums[measure.name] = sums[measure.name].masked_fill(~known, torch.nan)
        return UserScores(sums, sums.pop(LOSSES), self.counts * self.answered)


def pooled_metrics(
    group: str, sums: Mapping[str, Tensor], counts: Tensor, measures: Sequence[Measure]
) -> dict[str, float]:
    """Measures and mean loss over all users' samples, each of which counts once, from each user's sums.

    A measure that is not a sum is left out: it would need everybody's predictions.
    """
    count, of_sums = counts.sum(), [measure for measure in measures if measure.of_outputs is None]
    values = {f"{group}/{one.name}": float(one.value(sums[one.name].sum(0), count)) for one in of_sums}
    return values | {f"{group}/loss": float(sums[LOSSES].sum() / count)}


class NodeRoundEvaluator(RoundEvaluator):
    """An evaluated round whose models are measured by nodes.

    Args:
        client: as for RoundEvaluator, and so are `data`, `models` and `options`.
        nodes: they measure.
    """

    evaluator: NodeEvaluator

    def __init__(
        self,
        client: Client,
        data: FederatedDataModule,
        models: UserModels,
        options: EvaluationOptions,
        nodes: Nodes,
    ) -> None:
        super().__init__(client, data, models, options)
        self.evaluator = NodeEvaluator(client, data)
        self.nodes = nodes

    def _evaluate(
        self, cohort: WeighedCohort | None, model: Mapping[str, Tensor], number: int
    ) -> tuple[dict[str, float], dict[str, Any]]:
        sent = SentToUsers(self.models, model)
        requests = {user: self.request(user, sent, number) for user in self.tested}
        answers = self.nodes.ask("evaluate", requests)
        self.nodes.require_some([*answers], f"its scores after round {number}")
        self.collect(answers)
        return super()._evaluate(cohort, model, number)

    def pooled_scores(self, models: Sequence[Mapping[str, Tensor]]) -> list[float]:
        """The task's first measure of each of these models, on the tests of all users."""
        request, first = {"models": [dict(model) for model in models]}, self.client.task.first
        answers = self.nodes.ask("score", dict.fromkeys(self.tested, request))
        self.nodes.require_some([*answers], "the servers' scores")
        sums = torch.stack([answer["sums"] for answer in answers.values()]).sum(0)
        count = self.evaluator.counts[list(answers)].sum().expand(len(models))
        values: list[float] = first.value(sums, count).tolist()
        return values

    def request(self, user: int, sent: SentToUsers, number: int) -> Message:
        """What a node is sent to measure: the global model; z of the user's server if that is another model; z^0 if
        it has not trained, and its personal model is then z^0."""
        z, initial, base = sent.z(user), sent.initial(user), trained_in(self.models.states, user)
        return {
            "model": dict(sent.model),
            **({"z": dict(z)} if z else {}),
            **({"initial": initial} if initial else {}),
            "rows_of": base,
            "number": number,
            "groups": self.groups,
            "validates": self.parts.validated,
        }

    def collect(self, answers: Mapping[int, Message]) -> None:
        """Stack the sums of all who answered."""
        count, evaluator = self.data.num_clients, self.evaluator
        evaluator.answered = torch.zeros(count, dtype=torch.float64)
        evaluator.told = {}
        for user, answer in answers.items():
            evaluator.answered[user] = 1
            for group, sums in answer["sums"].items():
                stacked = evaluator.told.setdefault(group, {})
                for name, value in sums.items():
                    stacked.setdefault(name, torch.zeros(count, *value.shape, dtype=value.dtype))[user] = value

    def local_models(self, shared: UserScores) -> UserScores:
        """Scores of x_i, measured by the nodes."""
        return self.evaluator.users("local")

    def personal_models(self, shared: UserScores) -> UserScores:
        """Scores of the personal models, measured by the nodes."""
        return self.evaluator.users("personal")

    def finetuned_models(self, shared: UserScores, round: int) -> UserScores:
        """Scores after fine-tuning, measured by the nodes."""
        return self.evaluator.users("finetuned")
