"""Models on data: losses and hits of the global model in one pooled pass, of a user's model on its own rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import grad

from fedlit.client import Client
from fedlit.data.base import FederatedDataModule
from fedlit.metrics import UserScores, by_user, distribution, entropy, gini
from fedlit.params import Params, row
from fedlit.step import Adaptation

CHUNK = 1024
"""Rows of a pass: 40,000 rows of LeNet took 3.1 s at 256 and 5.5 s at 4,096; dense nets do not mind."""


class Evaluator:
    """Measures models on the users' own and on the pooled test data."""

    def __init__(self, client: Client, data: FederatedDataModule) -> None:
        self.client = client
        self.data = data
        tests = data.everyone.test
        self.counts = torch.tensor([len(rows) for rows in tests], dtype=torch.float64)
        self._owners = torch.repeat_interleave(torch.arange(len(tests)), self.counts.long())
        own = torch.cat(tests)
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
        losses, hits = self._score(model, self._rows)
        own_hits, own_losses = (by_user(part[self._own], self._owners, len(self.counts)) for part in (hits, losses))
        users = UserScores(own_hits, own_losses, self.counts)
        metrics = {
            "global/acc": float(hits[self._pooled].double().mean()),
            "global/loss": float(losses[self._pooled].double().mean()),
        }
        if self.has_own_tests:
            metrics |= user_metrics(users)
        if len(self.data.global_val):
            losses, hits = self._score(model, self.data.global_val)
            metrics |= {"val/acc": float(hits.double().mean()), "val/loss": float(losses.double().mean())}
        return metrics, users

    def sums(self, model: Mapping[str, Tensor], rows: Tensor) -> tuple[float, float]:
        """Right predictions and losses of a model, summed over the rows."""
        losses, hits = self._score(model, rows)
        return float(hits.sum()), float(losses.double().sum())

    def loss(self, model: Mapping[str, Tensor], rows: Tensor) -> float:
        """Mean loss over the rows."""
        return float(self._score(model, rows)[0].double().mean())

    def adapted(self, model: Mapping[str, Tensor], user: int, step: Adaptation) -> Mapping[str, Tensor]:
        """The model after one SGD step on the first batch of the user's data."""
        rows = getattr(self.data.everyone, step.on)[user][: self.client.batch_size]
        if len(rows) == 0:
            return model
        slope = self.gradient(model, rows)
        return dict(model) | {name: model[name] - step.lr * value for name, value in slope.items()}

    def risks(self, models: Params, train: Sequence[Tensor]) -> Tensor:
        """(clients,) mean loss of each client's model on its training rows; NaN for who has none."""
        counts = torch.tensor([len(rows) for rows in train], dtype=torch.float64)
        if all(value.stride(0) == 0 for value in models.values()):  # all received the same: one pass
            losses, _ = self._score(row(models, 0), torch.cat(list(train)))
            owners = torch.repeat_interleave(torch.arange(len(train)), counts.long())
            return by_user(losses, owners, len(train)) / counts
        scored = [self._score(row(models, k), rows)[0].double() for k, rows in enumerate(train)]
        return torch.stack([losses.sum() for losses in scored]) / counts

    def gradients(self, models: Params, train: Sequence[Tensor]) -> Params:
        """Stacked: the gradient of that mean loss; zeros for who has no rows."""
        slopes = [self.gradient(row(models, k), rows) for k, rows in enumerate(train)]
        return {name: torch.stack([slope[name] for slope in slopes]) for name in slopes[0]}

    def gradient(self, model: Mapping[str, Tensor], rows: Tensor) -> Params:
        """Of the mean loss over the rows, in evaluation mode."""
        trainable = {name: model[name].detach() for name, _ in self.client.net.named_parameters()}
        held = {name: value for name, value in model.items() if name not in trainable}
        total = {name: torch.zeros_like(value) for name, value in trainable.items()}
        with self.evaluating():
            for chunk in torch.split(rows, CHUNK) if len(rows) else ():
                x, y = self.data.rows(self.data.store, chunk)
                slope = grad(lambda at, x=x, y=y: self.client.score(at | held, x, y)[0].sum())(trainable)
                total = {name: value + slope[name] / len(rows) for name, value in total.items()}
        return total

    def _score(self, model: Mapping[str, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        """(rows,) losses and hits, in evaluation mode, without gradients."""
        with self.evaluating(), torch.inference_mode():
            chunks = (self.data.rows(self.data.store, chunk) for chunk in torch.split(rows, CHUNK))
            parts = [self.client.score(model, x, y) for x, y in chunks]
        return torch.cat([losses for losses, _ in parts]), torch.cat([hits for _, hits in parts])


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads inside an operation, while this lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def user_metrics(users: UserScores) -> dict[str, float]:
    """How z fares from user to user."""
    return {
        "global/user_acc": users.mean,
        **{f"users/acc_{name}": value for name, value in distribution(users.accuracy).items()},
        "users/gini": gini(users.accuracy),
        "users/entropy": entropy(users.accuracy),
    }
