"""Evaluation of all users: the server's model in one pooled pass, kept local models only when they changed."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from fedlit.client import Client
from fedlit.data.base import FederatedDataModule
from fedlit.metrics import UserScores, by_user, distribution, entropy, gini

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

    def global_model(self) -> tuple[dict[str, float], UserScores]:
        """The metrics of z and its scores on every user's own test."""
        model = self.client.net.state_dict()
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
