"""An evaluated round: measures the models, for the metrics of the round and the record of each user."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import WeighedCohort
from fedlit.client.specs import number_states
from fedlit.client.step import Adaptation, FinetuneFrom, Personal
from fedlit.data.base import FederatedDataModule
from fedlit.engines.device import Device
from fedlit.engines.forward import Forward
from fedlit.errors import require
from fedlit.evaluation.adaptation import Adapter
from fedlit.evaluation.evaluator import Evaluator
from fedlit.evaluation.round_metrics import (
    MetricGroups,
    extreme_user_metrics,
    local_metrics,
    personal_metrics,
    user_records,
)
from fedlit.evaluation.traffic import SentToUsers, megabytes, returned_megabytes
from fedlit.evaluation.user_models import UserModels
from fedlit.metrics.measures import Measure
from fedlit.metrics.user_scores import OwnScores, UserScores
from fedlit.params import Params, sq_norm
from fedlit.ranks import Ranks


@dataclass(frozen=True)
class EvaluationOptions:
    """What the trainer's arguments say about evaluation."""

    extra_metrics: Sequence[str] = ()
    finetune: tuple[Adaptation, ...] = ()
    """Of several, an evaluated round takes the one that is best on the users' validation samples."""
    finetune_from: FinetuneFrom = "personal"
    seed: int = 0
    """Of the run, in the keys of the batches of fine-tuning."""
    newcomers_every: int | None = None
    """Rounds between measurements of the newcomers; after the last round alone if None."""

    def describe_finetuning(self) -> str:
        """A text for the summary; what is fine-tuned stands there unless it is the personal model."""
        start = "z after " if self.finetune_from == "global" else ""
        texts = [step.describe() for step in self.finetune]
        return start + texts[0] if len(texts) == 1 else f"{start}the best on validation of: {'; '.join(texts)}"


def choice_columns(steps: Sequence[Adaptation], measure: Measure) -> tuple[str, ...]:
    """The metrics that name the chosen one of several fine-tunings; none if there is no choice."""
    epochs = ["finetuned/epochs"] if steps and steps[0].epochs is not None else []
    return ("finetuned/lr", *epochs, f"finetuned/val_{measure.name}") if len(steps) > 1 else ()


def chosen_values(step: Adaptation, validated: float) -> tuple[float, ...]:
    """Their values."""
    epochs = [] if step.epochs is None else [float(step.epochs)]
    return (step.lr, *epochs, validated)


def rows_to_measure(data: FederatedDataModule, evaluations: int, trained: int) -> int:
    """About how many rows all evaluations pass through nets, if `trained` clients train between two of them."""
    tests = data.everyone.test
    users = min(1.0, trained / max(1, data.num_clients))
    return round(evaluations * (len(data.global_test) + len(data.global_val) + users * float(tests.sizes.sum())))


class RoundEvaluator:
    """Measures the global model and the users' models; a user's model is measured again only if it has changed.

    Args:
        client: the algorithm.
        data: the data.
        models: the users' models.
        options: what is measured in addition.
        ranks: the processes of the run, which share the users.
        device: where models are measured.
        forward: computes the net's outputs; eagerly by default.
    """

    def __init__(
        self,
        client: Client,
        data: FederatedDataModule,
        models: UserModels,
        options: EvaluationOptions,
        ranks: Ranks | None = None,
        device: Device | None = None,
        forward: Forward | None = None,
    ) -> None:
        self.client = client
        self.data = data
        self.models = models
        self.options = options
        self.ranks = ranks or Ranks()
        self.evaluator = Evaluator(client, data, self.ranks, device, forward)
        self.adapter = Adapter(self.evaluator, options.seed)
        self._check_extra()
        self.sent_mb = 0.0
        """What the last evaluation sends, or would send in a federation (`comm/eval_mb`)."""
        self._kept: dict[str, dict[int, OwnScores]] = {"local": {}, "personal": {}, "finetuned": {}}
        self.tuned = options.finetune[0] if len(options.finetune) == 1 else None
        """The fine-tuning that is measured; of several, the one that the last evaluated round chose."""

    @property
    def parts(self) -> MetricGroups:
        """The groups of metrics of the run, which fix its columns."""
        tested = self.evaluator.has_own_tests
        personal = tested and (self.models.keeps_local or self.client.personal_model() != Personal())
        return MetricGroups(
            validated=len(self.data.global_val) > 0,
            tested=tested,
            local=tested and self.models.keeps_local,
            personal=personal,
            finetuned=(personal or (tested and self.options.finetune_from == "global"))
            and len(self.options.finetune) > 0,
            choice=choice_columns(self.options.finetune, self.client.task.first),
            extra=tuple(self.options.extra_metrics),
            newcomers=self.data.newcomer_data is not None,
            finetuned_newcomers=self.data.newcomer_data is not None and len(self.options.finetune) > 0,
        )

    def _check_extra(self) -> None:
        """Refuse extra metrics of users' models if the run has no such models."""
        has_personal = self.models.keeps_local or self.client.personal_model() != Personal()
        for name, has in (("personal/train_loss", has_personal), ("local/grad_norm2", self.models.keeps_local)):
            require(
                has or name not in self.options.extra_metrics,
                f"trainer.extra_metrics asks for {name}, but clients' own models are not kept in this run. Set "
                "trainer.store_local_models to true, or leave it out; centralised training has none.",
            )
        require(
            len(self.options.finetune) < 2 or self.parts.finetuned,
            "trainer.finetune_lr or trainer.finetune_epochs has several values, of which validation takes the best, "
            "but this run has no users' models to fine-tune. Set trainer.store_local_models to true, or "
            "trainer.finetune_from to global, or give one value.",
        )

    def invalidate(self, clients: Iterable[int]) -> None:
        """Drop the scores of these clients, which have trained."""
        for kept in self._kept.values():
            for client in clients:
                kept.pop(client, None)

    def forget(self) -> None:
        """Drop all scores after a failed round: they may belong to models that were undone."""
        for kept in self._kept.values():
            kept.clear()

    def evaluate(
        self, cohort: WeighedCohort | None, model: Mapping[str, Tensor], number: int = 0
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """The metrics of the round, for this global model, and the record of each client.

        Args:
            cohort: the cohort of the round; None for the initial model.
            model: the global model.
            number: of the round, in the keys of the batches of fine-tuning.
        """
        with self.evaluator.evaluating():
            return self._evaluate(cohort, model, number)

    def _evaluate(
        self, cohort: WeighedCohort | None, model: Mapping[str, Tensor], number: int
    ) -> tuple[dict[str, float], dict[str, Any]]:
        parts, local, personal = self.parts, None, None
        measures = self.client.measures
        values, users = self.evaluator.global_model(model)
        values |= self.extra(model)
        if cohort is not None and parts.tested and not self.client.pools_data:
            values |= extreme_user_metrics(cohort, users, measures)
        is_whole = not self.client.local_tensors or self.client.average_kept
        if not is_whole:
            values = {}  # z without the kept tensors is no model that anybody uses
        if parts.local:
            local = personal = self.local_models(users)
            values |= local_metrics(local, measures)
        if parts.personal and self.client.personal_model() != Personal():
            personal = self.personal_models(users)
        if personal is not None:
            values |= personal_metrics(personal, measures)
        values |= self.extra_of_users()
        if parts.finetuned:
            values |= self.choose_finetuning(number)
            values |= local_metrics(self.finetuned_models(users, number), measures, "finetuned")
        self.sent_mb = self.traffic_mb(users, model)
        numbers = number_states(self.client.first_values())
        scores = (users if is_whole else None, local, personal)
        return values, user_records(cohort, self.data, self.models.states, numbers, measures, scores)

    @property
    def tested(self) -> list[int]:
        """Users with tests of their own."""
        users: list[int] = self.evaluator.counts.nonzero().flatten().tolist()
        return users

    @property
    def groups(self) -> list[str]:
        """Groups of models that are measured besides the global model."""
        parts, is_other = self.parts, self.client.personal_model() != Personal()
        asked = {"local": parts.local, "personal": parts.personal and is_other, "finetuned": parts.finetuned}
        return [group for group, is_asked in asked.items() if is_asked]

    def traffic_mb(self, users: UserScores, model: Mapping[str, Tensor]) -> float:
        """What this evaluation sends, both ways; in a simulation, what it would send."""
        groups = 1 + len(self.groups) + self.parts.validated
        return SentToUsers(self.models, model).megabytes(self.tested) + returned_megabytes(users, groups)

    def scoring_mb(self, model: Mapping[str, Tensor], servers: int) -> float:
        """What `pooled_scores` of so many models like this one sends down; a few numbers come back."""
        return len(self.tested) * servers * megabytes(model)

    def extra(self, model: Mapping[str, Tensor]) -> dict[str, float]:
        """On request: f(z) on all training data, weighted by n_i or uniformly, and its gradient's squared norm."""
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

    def extra_of_users(self) -> dict[str, float]:
        """On request: Σ n_i f_i(personal_i) / Σ n_i, and the mean of ‖∇f_i(x_i)‖² (FedBC, corollary 4.7)."""
        asked, values, train = self.options.extra_metrics, {}, self.data.everyone.train
        users = [int(user) for user in train.sizes.nonzero()[0]]
        if "personal/train_loss" in asked:
            models = (self.personal_model(user) for user in users)
            losses = (self.evaluator.loss(model, train[user]) for user, model in zip(users, models, strict=True))
            total = sum(len(train[user]) * loss for user, loss in zip(users, losses, strict=True))
            values["personal/train_loss"] = total / int(train.sizes.sum())
        if "local/grad_norm2" in asked:
            norms = [sq_norm(self.evaluator.gradient(self.models.last(user), train[user])) for user in users]
            values["local/grad_norm2"] = float(sum(norms)) / len(norms)
        return values

    def personal_model(self, user: int) -> Mapping[str, Tensor]:
        """A user's personal model, adapted if the algorithm adapts it."""
        step = self.client.personal_model().adaptation
        return self.adapter.adapted(self.models.personal(user), user, [] if step is None else [step])

    def pooled_scores(self, models: Sequence[Mapping[str, Tensor]]) -> list[float]:
        """The task's first measure of each of these models, on the pooled test; processes share the models."""
        rows, first = self.data.global_test, self.client.task.first

        def values_of(numbers: list[int]) -> Params:
            values = [self.evaluator.value(first, models[number], rows) for number in numbers]
            return {"values": torch.tensor(values, dtype=torch.float64)}

        values: list[float] = self.ranks.split_work([1] * len(models), values_of)["values"].tolist()
        return values

    def local_models(self, shared: UserScores) -> UserScores:
        """Scores of x_i, and of z (`shared`) for users who never trained."""
        trained = self.models.states.has
        return self._scores("local", shared, self.models.local, trained, lambda user: not trained(user))

    def personal_models(self, shared: UserScores) -> UserScores:
        """Scores of every user's personal model, adapted if the algorithm adapts it."""
        return self._adapted_scores("personal", shared, self.client.personal_model().adaptation)

    def finetuned_models(self, shared: UserScores, round: int) -> UserScores:
        """Scores of the personal models, or of z, after fine-tuning."""
        step = self.tuned
        if self.options.finetune_from == "global":
            return self._adapted_scores("finetuned", shared, step, model_of=self.models.received, round=round)
        return self._adapted_scores("finetuned", shared, self.client.personal_model().adaptation, step, round=round)

    def choose_finetuning(self, round: int) -> dict[str, float]:
        """Of several fine-tunings, take the one with the best measure on validation, and then the lowest loss.

        Returns the choice, as metrics; nothing if there is none to make.
        """
        steps, first = self.options.finetune, self.client.task.first
        if len(steps) < 2:
            return {}
        from_z = self.options.finetune_from == "global"
        own = None if from_z else self.client.personal_model().adaptation
        model_of = self.models.received if from_z else self.models.personal
        tried = [
            self.adapter.validated(model_of, [one for one in (own, step) if one is not None], round, first)
            for step in steps
        ]
        sign = -1 if first.best == "max" else 1
        keys = [(sign * value, loss) if isfinite(value) and isfinite(loss) else (inf, inf) for value, loss in tried]
        best = keys.index(min(keys))
        if steps[best] != self.tuned:
            self._kept["finetuned"].clear()
        self.tuned = steps[best]
        return dict(zip(choice_columns(steps, first), chosen_values(self.tuned, tried[best][0]), strict=True))

    def _adapted_scores(
        self,
        kind: str,
        shared: UserScores,
        *steps: Adaptation | None,
        model_of: Callable[[int], Mapping[str, Tensor]] | None = None,
        round: int = 0,
    ) -> UserScores:
        models, adaptations = self.models, [step for step in steps if step is not None]
        # z moves in every round, and so do the shuffled batches: such scores are of this round alone.
        is_stable = model_of is None and all(step.epochs is None for step in adaptations)
        by_training = models.changes_only_by_training if is_stable else lambda user: False
        return self._scores(
            kind, shared, model_of or models.personal, by_training, models.is_global, adaptations, round
        )

    def _scores(
        self,
        kind: str,
        shared: UserScores,
        model_of: Callable[[int], Mapping[str, Tensor]],
        changes_only_by_training: Callable[[int], bool],
        is_global: Callable[[int], bool],
        steps: Sequence[Adaptation] = (),
        round: int = 0,
    ) -> UserScores:
        """Scores of each user's model on its own test.

        Models that have not changed keep their scores, and models that are z take theirs from `shared`.
        """
        kept, tested = self._kept[kind], self.data.everyone.test.sizes.nonzero()[0].tolist()
        users = [user for user in tested if steps or not is_global(user)]
        scores = self.adapter.measured([user for user in users if user not in kept], model_of, steps, round)
        scores |= {user: kept[user] for user in users if user in kept}
        kept |= {user: scores[user] for user in users if changes_only_by_training(user)}
        return shared.replaced({user: scores[user] for user in users})
