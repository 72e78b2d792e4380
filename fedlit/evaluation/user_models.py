"""The models of users, assembled from the server's model and `ClientStates`."""

from collections.abc import Callable, Mapping

from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.specs import INITIAL
from fedlit.client.states import ClientStates
from fedlit.params import Params


class UserModels:
    """Each user's models as whole state dicts, buffers included.

    Args:
        z: gives the model of a user's server.
        states: what clients keep between rounds.
        personal: which model is the personal one (`Personal.model`).
        local_tensors: names of the tensors that stay with each client.
        untouched: the personal model of a user who never trained; z by default.
        keeps_local: whether every client's last model is kept.
    """

    def __init__(
        self,
        z: Callable[[int], Mapping[str, Tensor]],
        states: ClientStates,
        *,
        personal: str = "local",
        local_tensors: frozenset[str] = frozenset(),
        untouched: Params | None = None,
        keeps_local: bool = True,
    ) -> None:
        self.z = z
        self.states = states
        self.name = personal
        self.local_tensors = local_tensors
        self.untouched = untouched
        self.keeps_local = keeps_local
        self._names = list(z(0))

    @classmethod
    def of(
        cls,
        client: Client,
        z: Callable[[int], Mapping[str, Tensor]],
        states: ClientStates,
        initial: Params,
        *,
        keeps_local: bool,
    ) -> "UserModels":
        """The models of a run of this algorithm, which began with the model `initial`."""
        name = client.personal_model().model
        starts_there = name != "local" and client.first_values().get(name) is INITIAL  # x_i is z until it is trained
        untouched = initial if starts_there else None
        return cls(
            z, states, personal=name, local_tensors=client.local_tensors, untouched=untouched, keeps_local=keeps_local
        )

    def local(self, user: int) -> dict[str, Tensor]:
        """x_i: the kept model of a client that has trained."""
        return {name: self.states.row(f"local.{name}", user) for name in self._names}

    def last(self, user: int) -> dict[str, Tensor]:
        """x_i, and z for a client that has never trained."""
        return self.local(user) if self.states.has(user) else dict(self.z(user))

    def received(self, user: int) -> dict[str, Tensor]:
        """z of the user's server, with the tensors that the user keeps."""
        kept = self.local_tensors if self.states.has(user) else frozenset()
        return dict(self.z(user)) | {name: self.states.row(f"own.{name}", user) for name in kept}

    def personal(self, user: int) -> dict[str, Tensor]:
        """A user's personal model before any adaptation."""
        if not self.states.has(user):
            return dict(self.z(user)) | (self.untouched or {})
        if self.name == "global":
            return self.received(user)
        model = self.local(user) if self.keeps_local else dict(self.z(user))
        rows = {name: f"{self.name}.{name}" for name in model if self.states.keeps(f"{self.name}.{name}")}
        return model | {name: self.states.row(row, user) for name, row in rows.items()}

    def is_global(self, user: int) -> bool:
        """Whether the personal model, before any adaptation, is z itself."""
        if not self.states.has(user):
            return self.untouched is None
        return self.name == "global" and not self.local_tensors

    def changes_only_by_training(self, user: int) -> bool:
        """Whether the personal model changes only when its user trains; else it moves with z."""
        return self.untouched is not None if not self.states.has(user) else self.name != "global"
