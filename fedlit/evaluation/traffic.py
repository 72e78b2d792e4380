"""What an evaluation sends, in megabytes: models to the users with tests of their own, and sums over these tests back.

In a simulation nothing is sent: it counts what a federation of nodes would send, as `remote/evaluation.py` does.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedlit.evaluation.user_models import UserModels
from fedlit.metrics.user_scores import UserScores
from fedlit.params import Params

_SUM_BYTES = 8
"""Sums are in float64."""


def megabytes(tensors: Mapping[str, Tensor]) -> float:
    """Of these tensors."""
    return sum(value.numel() * value.element_size() for value in tensors.values()) / 1e6


class SentToUsers:
    """What each user is sent besides the measured model.

    Args:
        models: the users' models.
        model: that is measured as the global one.
    """

    def __init__(self, models: UserModels, model: Mapping[str, Tensor]) -> None:
        self.models, self.model = models, model
        self._same: dict[tuple[int, ...], bool] = {}
        """Tensors of a server's model -> whether it is the measured one."""

    def z(self, user: int) -> Mapping[str, Tensor]:
        """The model of the user's server, if that is another one than the measured model."""
        z = self.models.z(user)
        key = tuple(value.data_ptr() for value in z.values())  # of a server, which keeps them
        if key not in self._same:
            self._same[key] = all(
                value is self.model[name] or torch.equal(value, self.model[name]) for name, value in z.items()
            )
        return {} if self._same[key] else z

    def initial(self, user: int) -> Params:
        """z^0, if the user's personal model is z^0 because it never trained."""
        return {} if self.models.states.has(user) else self.models.untouched or {}

    def megabytes(self, users: Sequence[int]) -> float:
        """All that these users are sent, with the measured model."""
        own = sum(megabytes(self.z(user)) + megabytes(self.initial(user)) for user in users)
        return len(users) * megabytes(self.model) + own


def returned_megabytes(users: UserScores, groups: int) -> float:
    """The sums that come back.

    Args:
        users: scores on the users' own tests; who sent none counts as without tests.
        groups: of models, each with sums of all measures and of the loss.
    """
    numbers = 1 + sum(sums[0].numel() for sums in users.sums.values())
    return int((users.counts > 0).sum()) * groups * numbers * _SUM_BYTES / 1e6
