"""Models on data: losses and measures of the global model in one pooled pass, of a user's model on its own rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import grad

from fedlit.client.base import Client
from fedlit.client.step import Adaptation
from fedlit.client.tasks import LOSSES
from fedlit.data.base import FederatedDataModule
from fedlit.engines.device import Device
from fedlit.engines.forward import CHUNK, Forward, Models
from fedlit.metrics.measures import Measure
from fedlit.metrics.user_scores import UserScores, by_user, distribution, entropy, gini
from fedlit.params import Params, row, scale, stack
from fedlit.ranks import Ranks


class Evaluator:
    """Measures models on the users' own and on the pooled test data.

    Args:
        client: the algorithm.
        data: the data.
        ranks: the processes of the run. What measures one model divides its chunks, what measures many divides them.
        device: where models are measured, and in which numbers; what is measured comes back.
        forward: passes the net; eagerly unless given.
    """

    def __init__(
        self,
        client: Client,
        data: FederatedDataModule,
        ranks: Ranks | None = None,
        device: Device | None = None,
        forward: Forward | None = None,
    ) -> None:
        self.client = client
        self.device = device or Device()
        self.data = data
        self.ranks = ranks or Ranks()
        self.forward = forward or Forward(client, data.plain_rows, self.device, self.ranks)
        tests = data.everyone.test
        self.counts = torch.from_numpy(tests.sizes).double()
        self._owners = torch.from_numpy(tests.owners)
        own = tests.joined
        # Every row that any measure of z needs, once; `_own` and `_pooled` say where in it each of them stands.
        self._rows = torch.unique(torch.cat([own, data.global_test]))
        self._own = torch.searchsorted(self._rows, own)
        self._pooled = torch.searchsorted(self._rows, data.global_test)

    @property
    def has_own_tests(self) -> bool:
        """Whether any user has test data of its own; fresh ones have none."""
        return len(self._own) > 0

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The net in evaluation mode; whoever measures many models enters it once for all of them."""
        net = self.client.net
        if not net.training:
            yield
            return
        net.eval()
        try:
            yield
        finally:
            net.train()

    def global_model(self, model: Mapping[str, Tensor]) -> tuple[dict[str, float], UserScores]:
        """The metrics of the global model, and its scores on every user's own test."""
        scored = self._score_together(model, self._rows)
        users = self._users(
            {name: by_user(part[self._own], self._owners, len(self.counts)) for name, part in scored.items()}
        )
        metrics = self._pooled_metrics("global", {name: part[self._pooled] for name, part in scored.items()})
        if self.has_own_tests:
            metrics |= user_metrics(users, self.client.task.measures)
        if len(self.data.global_val):
            metrics |= self._pooled_metrics("val", self._score_together(model, self.data.global_val))
        return metrics, users

    def _users(self, sums: Params) -> UserScores:
        return UserScores({name: part for name, part in sums.items() if name != LOSSES}, sums[LOSSES], self.counts)

    def _pooled_metrics(self, group: str, scored: Params) -> dict[str, float]:
        """Of these rows together, each once."""
        count = torch.tensor(float(len(scored[LOSSES])), dtype=torch.float64)
        measured = {
            f"{group}/{measure.name}": float(measure.value(scored[measure.name].double().sum(0), count))
            for measure in self.client.task.measures
        }
        return measured | {f"{group}/loss": float(scored[LOSSES].double().mean())}

    def sums(self, model: Mapping[str, Tensor], rows: Tensor) -> Params:
        """Losses and what measures add up of a model, summed over the rows; by this rank alone."""
        return row(self.sums_of_each([(model, rows)]), 0)

    def sums_of_each(self, models: Models) -> Params:
        """Stacked: the same of every model on its own rows; by this rank alone."""
        sizes: list[int] = []

        def counted() -> Iterator[tuple[Mapping[str, Tensor], Tensor]]:
            for model, rows in models:
                sizes.append(len(rows))
                yield model, rows

        scored = self._score(counted())
        owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        return {name: by_user(part, owners, len(sizes)) for name, part in scored.items()}

    def loss(self, model: Mapping[str, Tensor], rows: Tensor) -> float:
        """f of training rows: their mean loss, and the l2 term where there is one."""
        return float(self._score_together(model, rows)[LOSSES].double().mean() + self._l2_term(model))

    def adapted(self, model: Mapping[str, Tensor], user: int, step: Adaptation) -> Mapping[str, Tensor]:
        """The model after one SGD step on the first batch of the user's data."""
        rows = getattr(self.data.everyone, step.on)[user][: self.client.batch_size]
        if len(rows) == 0:
            return model
        slope = self.gradient(model, rows)
        return dict(model) | {name: model[name] - step.lr * value for name, value in slope.items()}

    def risks(self, models: Params, train: Sequence[Tensor]) -> Tensor:
        """(clients,) f_i of each client's model on its training rows; NaN for who has none."""
        counts = torch.tensor([len(rows) for rows in train], dtype=torch.float64)
        if all(value.stride(0) == 0 for value in models.values()):  # all received the same: one pass
            losses = self._score_together(row(models, 0), torch.cat(list(train)))[LOSSES]
            owners = torch.repeat_interleave(torch.arange(len(train)), counts.long())
            return by_user(losses, owners, len(train)) / counts + self._l2_term(row(models, 0))

        def risks_of(clients: list[int]) -> Params:
            sums = self.sums_of_each((row(models, k), train[k]) for k in clients)[LOSSES]
            terms = [self._l2_term(row(models, k)) for k in clients]
            return {"sums": sums, "terms": torch.tensor(terms, dtype=torch.float64)}

        found = self.ranks.split_work(counts.tolist(), risks_of)
        return found["sums"] / counts + found["terms"]

    def gradients(self, models: Params, train: Sequence[Tensor]) -> Params:
        """Stacked: the gradient of f_i; zeros for who has no rows."""

        def gradients_of(clients: list[int]) -> Params:
            return stack([self.gradient(row(models, k), train[k]) for k in clients])

        return self.ranks.split_work([len(rows) for rows in train], gradients_of)

    def mean_gradient(self, model: Mapping[str, Tensor], parts: Sequence[Tensor]) -> Params:
        """The plain mean of the gradients on each of the parts."""
        total: Params = {}
        for rows in parts:
            total = {name: value + total.get(name, 0) for name, value in self.gradient(model, rows).items()}
        return scale(total, 1 / len(parts))

    def gradient(self, model: Mapping[str, Tensor], rows: Tensor) -> Params:
        """Of f on these rows, the l2 term included, in evaluation mode; zeros where there are none."""
        model, store = self.device.sent(model), self.device.store(self.data.store)
        trainable = {name: model[name].detach() for name, _ in self.client.net.named_parameters()}
        held = {name: value for name, value in model.items() if name not in trainable}
        total = {name: torch.zeros_like(value) for name, value in trainable.items()}
        with self.evaluating(), self.device.computing():
            for chunk in torch.split(rows, CHUNK) if len(rows) else ():
                x, y = self.data.plain_rows(store, self.device.put(chunk))
                slope = grad(lambda at, x=x, y=y: self.client.score(at | held, x, y)[LOSSES].sum())(trainable)
                total = {name: value + slope[name] / len(rows) for name, value in total.items()}
                self.ranks.heartbeat()
        if self.client.l2 and len(rows):
            total = {name: value + self.client.l2 * trainable[name] for name, value in total.items()}
        return self.device.home_one(total)

    def _l2_term(self, model: Mapping[str, Tensor]) -> float:
        """Of the model's parameters, without its buffers."""
        if not self.client.l2:
            return 0.0
        return float(self.client.l2_term({name: model[name] for name, _ in self.client.net.named_parameters()}))

    def _score_together(self, model: Mapping[str, Tensor], rows: Tensor) -> Params:
        """(rows,) losses and (rows, k) what measures add up, by all ranks, in chunks that a pass may depend on."""
        chunks = torch.split(rows, CHUNK)
        if self.ranks.size == 1 or len(chunks) == 1:
            return self._score([(model, rows)])
        lengths = [len(chunk) for chunk in chunks]

        def scores_of(numbers: list[int]) -> Params:
            return self._score([(model, torch.cat([chunks[number] for number in numbers]))])

        return self.ranks.split_work(lengths, scores_of, lengths)

    def _score(self, models: Models) -> Params:
        """The same of several models, by this rank alone, in evaluation mode, without gradients."""
        with self.evaluating():
            return self.forward(self.data.store, models)


def user_metrics(users: UserScores, measures: Sequence[Measure]) -> dict[str, float]:
    """How z fares from user to user."""
    found = {f"global/user_{measure.name}": users.mean(measure) for measure in measures}
    for measure in measures:
        spread = distribution(users.values(measure), measure)
        found |= {f"users/{measure.name}_{name}": value for name, value in spread.items()}
    first = users.values(measures[0])
    return found | {"users/gini": gini(first), "users/entropy": entropy(first)}
