"""Scores of models: the global model on all rows in one pass, a user's model on this user's rows."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from fedlit.client.base import Client
from fedlit.client.tasks import LOSSES, OUTPUTS, TARGETS
from fedlit.data.base import FederatedDataModule
from fedlit.engines.device import Device
from fedlit.engines.forward import CHUNK, Forward, Models
from fedlit.metrics.measures import Measure, Valued
from fedlit.metrics.user_scores import OwnScores, Predicted, UserScores, by_user, distribution, entropy, gini
from fedlit.params import Params, row, scale, stack
from fedlit.ranks import Ranks

log = logging.getLogger("fedlit")


class Evaluator:
    """Measures models on the users' own and on the pooled test data.

    Args:
        client: the algorithm.
        data: the data.
        ranks: the processes of the run. They share the chunks of rows for one model, or the models if there are many.
        device: where models are measured, and in which type; results are copied back to the host.
        forward: computes the net's outputs; eagerly by default.
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
        self._remarked: set[str] = set()
        user_rows = tests.joined
        # All rows on which z is measured, each once; `_own` and `_pooled` are positions in it.
        self._rows = torch.unique(torch.cat([user_rows, data.global_test]))
        self._own = torch.searchsorted(self._rows, user_rows)
        self._pooled = torch.searchsorted(self._rows, data.global_test)

    @property
    def has_own_tests(self) -> bool:
        """Whether any user has test data of its own; fresh clients have none."""
        return len(self._own) > 0

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside the block, the net is in evaluation mode; enter it once around many measurements."""
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
        users = self._users({name: part[self._own] for name, part in scored.items()})
        metrics = self._pooled_metrics("global", {name: part[self._pooled] for name, part in scored.items()})
        if self.has_own_tests:
            metrics |= user_metrics(users, self.client.measures)
        if len(self.data.global_val):
            metrics |= self._pooled_metrics("val", self._score_together(model, self.data.global_val))
        return metrics, users

    def _users(self, scored: Params) -> UserScores:
        """Scores of all users, from the rows of all own tests."""
        own = self._own_tests(scored, self.counts.long().tolist())
        return UserScores(own.sums, own.losses, self.counts, dict(enumerate(own.predicted)))

    def _pooled_metrics(self, group: str, scored: Params) -> dict[str, float]:
        """Measures and mean loss over these rows, each of which counts once."""
        measured = {f"{group}/{measure.name}": pooled_value(measure, scored) for measure in self.client.measures}
        return measured | {f"{group}/loss": float(scored[LOSSES].double().mean())}

    def user_sums(self, model: Mapping[str, Tensor], users: Sequence[int]) -> dict[int, OwnScores]:
        """User -> the scores of one model on the user's own test; all ranks share the rows."""
        rows = self.data.everyone.test.of_clients(users).joined
        return self.own_scores(users, self._score_together(model, rows)) if len(rows) else {}

    def own_scores(self, users: Sequence[int], scored: Params) -> dict[int, OwnScores]:
        """User -> its scores, from the rows of these users' tests, one user after the other."""
        own = self._own_tests(scored, self.data.everyone.test.sizes[list(users)].tolist())
        predicted: Sequence[Predicted | None] = own.predicted or [None for _ in users]
        return {
            user: OwnScores(row(own.sums, place), own.losses[place], predicted[place])
            for place, user in enumerate(users)
        }

    def _own_tests(self, scored: Params, sizes: list[int]) -> "OwnTests":
        """The rows of users with so many rows each, reduced for each user."""
        sums = sums_of(scored, sizes)
        losses = sums.pop(LOSSES)
        if OUTPUTS not in scored:
            return OwnTests(sums, losses, [])
        parts = [torch.split(scored[name], sizes) for name in (OUTPUTS, TARGETS)]
        predicted = list(zip(*parts, strict=True))
        for measure in self.client.measures:
            if measure.of_outputs is not None:
                sums[measure.name] = self._value_of_each(measure, predicted).unsqueeze(1)
        return OwnTests(sums, losses, predicted)

    def _value_of_each(self, measure: Measure, predicted: Sequence[Predicted]) -> Tensor:
        """(users,) a measure that is not a sum over rows; processes share the users."""
        compute, remarks = measure.of_outputs, []
        assert compute is not None

        def values_of(numbers: list[int]) -> Params:
            values = []
            for number in numbers:
                output, y = predicted[number]
                valued = compute(output, y) if len(y) else Valued(torch.nan)
                values.append(valued.value)
                remarks.extend([valued.remark] if valued.remark else [])
                self.ranks.heartbeat()
            return {"values": torch.tensor(values, dtype=torch.float64)}

        sizes = [len(y) for _, y in predicted]
        values = self.ranks.split_work(sizes, values_of)["values"]
        if remarks and measure.name not in self._remarked:
            self._remarked.add(measure.name)
            without = int((values.isnan() & (torch.tensor(sizes) > 0)).sum())
            log.info(remark(measure, remarks, without, sum(size > 0 for size in sizes)))
        return values

    def value(self, measure: Measure, model: Mapping[str, Tensor], rows: Tensor) -> float:
        """A measure of a model on these rows; computed by this rank alone."""
        return pooled_value(measure, self._score([(model, rows)]))

    def sums(self, model: Mapping[str, Tensor], rows: Tensor) -> Params:
        """Losses and summands of the measures, summed over the rows; computed by this rank alone."""
        return row(self.sums_of_each([(model, rows)]), 0)

    def sums_of_each(self, models: Models) -> Params:
        """Stacked: the same sums for every model on its own rows; computed by this rank alone."""
        sizes: list[int] = []

        def counted() -> Iterator[tuple[Mapping[str, Tensor], Tensor]]:
            for model, rows in models:
                sizes.append(len(rows))
                yield model, rows

        return sums_of(self.rows_of_each(counted()), sizes)

    def rows_of_each(self, models: Models) -> Params:
        """Losses and summands of every model on its own rows, one model after the other; by this rank alone."""
        return self._score(models)

    def loss(self, model: Mapping[str, Tensor], rows: Tensor) -> float:
        """f on training rows: their mean loss, plus the l2 term if there is one."""
        return float(self._score_together(model, rows)[LOSSES].double().mean() + self._l2_term(model))

    def risks(self, models: Params, train: Sequence[Tensor]) -> Tensor:
        """(clients,) f_i of each client's model on its training rows; NaN for a client without rows."""
        counts = torch.tensor([len(rows) for rows in train], dtype=torch.float64)
        if all(value.stride(0) == 0 for value in models.values()):  # all received the same model: one pass
            losses = self._score_together(row(models, 0), torch.cat(list(train)))[LOSSES]
            owners = torch.repeat_interleave(torch.arange(len(train)), counts.long())
            return by_user(losses, owners, len(train)) / counts + self._l2_term(row(models, 0))

        def risks_of(clients: list[int]) -> Params:
            sums = self.sums_of_each((row(models, k), train[k]) for k in clients)[LOSSES]
            terms = [self._l2_term(row(models, k)) for k in clients]
            return {"sums": sums, "terms": torch.tensor(terms, dtype=torch.float64)}

        risks = self.ranks.split_work(counts.tolist(), risks_of)
        return risks["sums"] / counts + risks["terms"]

    def gradients(self, models: Params, train: Sequence[Tensor]) -> Params:
        """Stacked: the gradient of f_i at each client's model; zeros for a client without rows."""

        def gradients_of(clients: list[int]) -> Params:
            return stack([self.gradient(row(models, k), train[k]) for k in clients])

        return self.ranks.split_work([len(rows) for rows in train], gradients_of)

    def mean_gradient(self, model: Mapping[str, Tensor], parts: Sequence[Tensor]) -> Params:
        """The unweighted mean of the gradients on these parts of the rows."""
        total: Params = {}
        for rows in parts:
            total = {name: value + total.get(name, 0) for name, value in self.gradient(model, rows).items()}
        return scale(total, 1 / len(parts))

    def gradient(self, model: Mapping[str, Tensor], rows: Tensor) -> Params:
        """The gradient of f on these rows, with the l2 term, in evaluation mode; zeros if there are no rows."""
        model, store = self.device.sent(model), self.device.store(self.data.store)
        trainable = {name: model[name].detach() for name in self.client.local_params}
        buffers = {name: value for name, value in model.items() if name not in trainable}
        total = {name: torch.zeros_like(value) for name, value in trainable.items()}
        with self.evaluating(), self.device.computing():
            for chunk in torch.split(rows, CHUNK) if len(rows) else ():
                x, y = self.data.plain_rows(store, self.device.put(chunk))
                slope = grad(lambda at, x=x, y=y: self.client.score(at | buffers, x, y)[LOSSES].sum())(trainable)
                total = {name: value + slope[name] / len(rows) for name, value in total.items()}
                self.ranks.heartbeat()
        if self.client.l2 and len(rows):
            total = {name: value + self.client.l2 * trainable[name] for name, value in total.items()}
        return self.device.home_one(total)

    def _l2_term(self, model: Mapping[str, Tensor]) -> float:
        """l2/2 |x|² over the model's trained parameters."""
        if not self.client.l2:
            return 0.0
        return float(self.client.l2_term({name: model[name] for name in self.client.local_params}))

    def _score_together(self, model: Mapping[str, Tensor], rows: Tensor) -> Params:
        """(rows,) losses and (rows, k) summands of the measures, by all ranks; each rank scores whole chunks."""
        chunks = torch.split(rows, CHUNK)
        if self.ranks.size == 1 or len(chunks) == 1:
            return self._score([(model, rows)])
        lengths = [len(chunk) for chunk in chunks]

        def scores_of(numbers: list[int]) -> Params:
            return self._score([(model, torch.cat([chunks[number] for number in numbers]))])

        return self.ranks.split_work(lengths, scores_of, lengths)

    def _score(self, models: Models) -> Params:
        """The same for several models, by this rank alone, in evaluation mode, without gradients."""
        with self.evaluating():
            return self.forward(self.data.store, models)


@dataclass(frozen=True)
class OwnTests:
    """Some users, each with a model on its own test."""

    sums: Params
    """(users, k) sums, and values, as in `OwnScores`."""
    losses: Tensor
    """(users,) sums."""
    predicted: list[Predicted]
    """Outputs and targets of each; empty if no measure needs them."""


def sums_of(scored: Params, sizes: Sequence[int]) -> Params:
    """(models, k) the sums over each model's rows, of which there are so many."""
    owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64))
    summed = {name: part for name, part in scored.items() if name not in (OUTPUTS, TARGETS)}
    return {name: by_user(part, owners, len(sizes)) for name, part in summed.items()}


def pooled_value(measure: Measure, scored: Params) -> float:
    """A measure of all these rows together."""
    if measure.of_outputs is not None:
        return measure.of_outputs(scored[OUTPUTS], scored[TARGETS]).value if len(scored[TARGETS]) else torch.nan
    count = torch.tensor(float(len(scored[LOSSES])), dtype=torch.float64)
    return float(measure.value(scored[measure.name].double().sum(0), count))


def remark(measure: Measure, remarks: Sequence[str], without: int, users: int) -> str:
    """A sentence about users for whom a measure has no value, and those for whom it has a doubtful one."""
    parts = [f"has no value for {without} of {users} users, who count in no mean"] if without else []
    if len(remarks) > without:
        parts.append(f"has a doubtful value, which counts, for {len(remarks) - without} of {users} users")
    return f"{measure.label} {', and '.join(parts)}: {max(remarks, key=len)}"


def user_metrics(users: UserScores, measures: Sequence[Measure]) -> dict[str, float]:
    """Metrics of z over users: means, spreads, Gini coefficient and entropy."""
    metrics = {f"global/user_{measure.name}": users.mean(measure) for measure in measures}
    for measure in measures:
        spread = distribution(users.values(measure), measure)
        metrics |= {f"users/{measure.name}_{name}": value for name, value in spread.items()}
    first = users.values(measures[0])
    return metrics | {"users/gini": gini(first), "users/entropy": entropy(first)}
