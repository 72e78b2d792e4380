"""An evaluated round: which models are measured on which data, for the round's metrics and the record of each user."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.data.base import FederatedDataModule
from fedlit.evaluate import Evaluator
from fedlit.history import MeasuredParts, extreme_user_metrics, local_metrics, personal_metrics, user_records
from fedlit.metrics import UserScores
from fedlit.params import Params, sq_norm
from fedlit.ranks import Ranks
from fedlit.states import number_states
from fedlit.step import Adaptation, Personal
from fedlit.users import UserModels


@dataclass(frozen=True)
class MeasureOptions:
    """What the trainer's arguments say about evaluation."""

    extra_metrics: Sequence[str] = ()
    finetune: Adaptation | None = None


class Measuring:
    """Measures the global model and the users' own; a user's model is measured again only when it changed.

    Args:
        client: the algorithm.
        data: the data.
        models: the users' models.
        options: what is measured beside what always is.
        ranks: the processes of the run, among which users are divided.
    """

    def __init__(
        self,
        client: Client,
        data: FederatedDataModule,
        models: UserModels,
        options: MeasureOptions,
        ranks: Ranks | None = None,
    ) -> None:
        self.client = client
        self.data = data
        self.models = models
        self.options = options
        self.ranks = ranks or Ranks()
        self.evaluator = Evaluator(client, data, self.ranks)
        self._kept: dict[str, dict[int, tuple[float, float]]] = {"local": {}, "personal": {}, "finetuned": {}}

    @property
    def parts(self) -> MeasuredParts:
        """What there is to measure, which fixes the columns of the run."""
        tested = self.evaluator.has_own_tests
        personal = tested and (self.models.keeps_local or self.client.personal_model() != Personal())
        return MeasuredParts(
            validated=len(self.data.global_val) > 0,
            tested=tested,
            local=tested and self.models.keeps_local,
            personal=personal,
            finetuned=personal and self.options.finetune is not None,
            extra=tuple(self.options.extra_metrics),
        )

    def changed(self, clients: Iterable[int]) -> None:
        """These clients trained: what they keep is measured again when next asked."""
        for kept in self._kept.values():
            for client in clients:
                kept.pop(client, None)

    def forget(self) -> None:
        """Measure every user again: scores of a round that failed are not those of the models that are kept."""
        for kept in self._kept.values():
            kept.clear()

    def evaluate(self, cohort: Cohort | None, model: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, Any]]:
        """The metrics of the round, for this global model, and the record of each client."""
        with self.evaluator.evaluating():
            return self._evaluate(cohort, model)

    def _evaluate(self, cohort: Cohort | None, model: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, Any]]:
        parts, local, personal = self.parts, None, None
        values, users = self.evaluator.global_model(model)
        values |= self.extra(model)
        if cohort is not None and parts.tested and not self.client.pools_data:
            values |= extreme_user_metrics(cohort, users)
        if self.client.own_tensors and not self.client.average_kept:
            values = {}  # z is no whole model
        if parts.local:
            local = personal = self.local_models(users)
            values |= local_metrics(local)
        if parts.personal and self.client.personal_model() != Personal():
            personal = self.personal_models(users)
        if personal is not None:
            values |= personal_metrics(personal)
        if parts.finetuned:
            values |= local_metrics(self.finetuned_models(users), "finetuned")
        numbers = number_states(self.client.state_spec())
        return values, user_records(cohort, self.data, self.models.states, numbers, users, local, personal)

    def extra(self, model: Mapping[str, Tensor]) -> dict[str, float]:
        """f(z) on all training data, by n_i and with equal weights, and its gradient's squared norm; on request."""
        asked, values = self.options.extra_metrics, {}
        if not asked:
            return {}
        train = self.data.everyone.train
        for weighted, parts in (("", [train.joined]), ("_uniform", [rows for rows in train if len(rows)])):
            loss, norm = f"global/train_loss{weighted}", f"global/grad_norm2{weighted}"
            if loss in asked:
                values[loss] = sum(self.evaluator.loss(model, rows) for rows in parts) / len(parts)
            if norm in asked:
                values[norm] = float(sq_norm(self.evaluator.mean_gradient(model, parts)))
        return values

    def local_models(self, shared: UserScores) -> UserScores:
        """Scores of x_i, and of z (`shared`) for users who never trained."""
        trained = self.models.states.has
        return self._scores("local", shared, self.models.local, trained, lambda user: not trained(user))

    def personal_models(self, shared: UserScores) -> UserScores:
        """Scores of every user's personal model, adapted where the algorithm says so."""
        return self._adapted_scores("personal", shared, self.client.personal_model().adaptation)

    def finetuned_models(self, shared: UserScores) -> UserScores:
        """Scores of the personal models after one further step."""
        return self._adapted_scores("finetuned", shared, self.client.personal_model().adaptation, self.options.finetune)

    def _adapted_scores(self, kind: str, shared: UserScores, *steps: Adaptation | None) -> UserScores:
        models, taken = self.models, [step for step in steps if step is not None]
        return self._scores(kind, shared, models.personal, models.rests, models.is_global, taken)

    def _scores(
        self,
        kind: str,
        shared: UserScores,
        model_of: Callable[[int], Mapping[str, Tensor]],
        rests: Callable[[int], bool],
        is_global: Callable[[int], bool],
        steps: Sequence[Adaptation] = (),
    ) -> UserScores:
        """Each user's model on its own test: kept scores for models that rest, `shared` for those that are z."""
        kept, tests = self._kept[kind], self.data.everyone.test
        hits, losses = shared.hits.tolist(), shared.losses.tolist()
        tested = tests.sizes.nonzero()[0].tolist()
        users = [user for user in tested if steps or not is_global(user)]
        asked = [user for user in users if user not in kept]

        def scores_of(numbers: list[int]) -> Params:
            scored = [self._score(model_of(user), user, steps) for user in (asked[number] for number in numbers)]
            return {"scores": torch.tensor(scored, dtype=torch.float64)}

        costs = tests.sizes[asked].tolist()
        found = self.ranks.divided(costs, scores_of)["scores"].tolist() if asked else []
        new = {user: (hit, loss) for user, (hit, loss) in zip(asked, found, strict=True)}
        for user in users:
            score = kept[user] if user in kept else new[user]
            if rests(user):
                kept[user] = score
            hits[user], losses[user] = score
        return UserScores(shared.hits.new_tensor(hits), shared.losses.new_tensor(losses), shared.counts)

    def _score(self, model: Mapping[str, Tensor], user: int, steps: Sequence[Adaptation]) -> tuple[float, float]:
        """Right predictions and losses of a user's model, adapted in these steps, on its own test."""
        for step in steps:
            model = self.evaluator.adapted(model, user, step)
        return self.evaluator.sums(model, self.data.everyone.test[user])
