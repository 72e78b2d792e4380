"""Evaluation of all users: the server's model in one pooled pass, kept local models only when they changed."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import grad

from fedlit.client import Client, Personal
from fedlit.data.base import FederatedDataModule
from fedlit.metrics import UserScores, by_user, distribution, entropy, gini
from fedlit.params import Params, row

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
        self._kept: dict[int, tuple[float, float]] = {}
        self._changed: set[int] = set()

    @property
    def has_own_tests(self) -> bool:
        """Whether any user has test data of its own; fresh ones have none."""
        return len(self._own) > 0

    def changed(self, clients: Iterable[int]) -> None:
        """These clients' kept models changed: evaluate them again when next asked."""
        self._changed.update(clients)

    def global_model(self, model: Mapping[str, Tensor] | None = None) -> tuple[dict[str, float], UserScores]:
        """The metrics of the global model, z unless given, and its scores on every user's own test."""
        model = self.client.net.state_dict() if model is None else model
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

    def local_models(self, model_of: Callable[[int], Mapping[str, Tensor]], shared: UserScores) -> UserScores:
        """Scores of each user's kept model, and of z (`shared`) for users that have none yet."""
        for user in sorted(self._changed):
            rows = self.data.everyone.test[user]
            if len(rows):
                losses, hits = self._score(model_of(user), rows)
                self._kept[user] = (float(hits.sum()), float(losses.double().sum()))
        self._changed.clear()
        hits, losses = shared.hits.clone(), shared.losses.clone()
        users = list(self._kept)
        if users:
            kept = torch.tensor([self._kept[user] for user in users], dtype=torch.float64)
            hits[users], losses[users] = kept[:, 0], kept[:, 1]
        return UserScores(hits, losses, self.counts)

    def personal_models(self, model_of: Callable[[int], Mapping[str, Tensor]], personal: Personal) -> UserScores:
        """Scores of every user's personal model, adapted where the algorithm says so."""
        hits, losses = torch.zeros_like(self.counts), torch.zeros_like(self.counts)
        for user, rows in enumerate(self.data.everyone.test):
            if len(rows):
                own_losses, own_hits = self._score(self.adapted(model_of(user), user, personal), rows)
                hits[user], losses[user] = own_hits.double().sum(), own_losses.double().sum()
        return UserScores(hits, losses, self.counts)

    def adapted(self, model: Mapping[str, Tensor], user: int, personal: Personal) -> Mapping[str, Tensor]:
        """The model after one SGD step on the first batch of the user's data."""
        rows = getattr(self.data.everyone, personal.adapt_on)[user][: self.client.batch_size]
        if personal.adapt_lr is None or len(rows) == 0:
            return model
        slope = self._gradient(model, rows)
        return dict(model) | {name: model[name] - personal.adapt_lr * value for name, value in slope.items()}

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
        slopes = [self._gradient(row(models, k), rows) for k, rows in enumerate(train)]
        return {name: torch.stack([slope[name] for slope in slopes]) for name in slopes[0]}

    def _gradient(self, model: Mapping[str, Tensor], rows: Tensor) -> Params:
        """Of the mean loss over the rows, in evaluation mode."""
        training = self.client.net.training
        self.client.net.eval()
        trainable = {name: model[name].detach() for name, _ in self.client.net.named_parameters()}
        held = {name: value for name, value in model.items() if name not in trainable}
        total = {name: torch.zeros_like(value) for name, value in trainable.items()}
        for chunk in torch.split(rows, CHUNK) if len(rows) else ():
            x, y = self.data.rows(self.data.store, chunk)
            slope = grad(lambda at, x=x, y=y: self.client.score(at | held, x, y)[0].sum())(trainable)
            total = {name: value + slope[name] / len(rows) for name, value in total.items()}
        self.client.net.train(training)
        return total

    def _score(self, model: Mapping[str, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        """(rows,) losses and hits, in evaluation mode, without gradients."""
        training = self.client.net.training
        self.client.net.eval()
        with torch.inference_mode():
            chunks = (self.data.rows(self.data.store, chunk) for chunk in torch.split(rows, CHUNK))
            parts = [self.client.score(model, x, y) for x, y in chunks]
        self.client.net.train(training)
        return torch.cat([losses for losses, _ in parts]), torch.cat([hits for _, hits in parts])


def user_metrics(users: UserScores) -> dict[str, float]:
    """How z fares from user to user."""
    return {
        "global/user_acc": users.mean,
        **{f"users/acc_{name}": value for name, value in distribution(users.accuracy).items()},
        "users/gini": gini(users.accuracy),
        "users/entropy": entropy(users.accuracy),
    }
