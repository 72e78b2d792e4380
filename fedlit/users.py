"""The models that belong to users, put together from what the server and `ClientStates` hold."""

from torch import Tensor

from fedlit.client import Client
from fedlit.params import Params
from fedlit.states import INITIAL, ClientStates


class UserModels:
    """Each user's models as whole state dicts, buffers included.

    Args:
        client: the algorithm; its net holds z.
        states: what clients keep between rounds.
        initial: z^0.
        keeps_local: whether every client's last model is kept.
    """

    def __init__(self, client: Client, states: ClientStates, initial: Params, *, keeps_local: bool) -> None:
        self.client = client
        self.states = states
        self.initial = initial
        self.keeps_local = keeps_local

    def local(self, user: int) -> dict[str, Tensor]:
        """x_i: the kept model of a client that has trained."""
        return {name: self.states.row(f"local.{name}", user) for name in self.client.net.state_dict()}

    def personal(self, user: int) -> dict[str, Tensor]:
        """A user's personal model before any adaptation."""
        name, model = self.client.personal_model().model, dict(self.client.net.state_dict())
        if not self.states.has(user):
            return model | (self.initial if self.starts_at_initial else {})
        if name == "global":
            return model | {own: self.states.row(f"own.{own}", user) for own in self.client.own_tensors}
        if self.keeps_local:
            model = self.local(user)
        return model | {
            key: self.states.row(f"{name}.{key}", user) for key in model if self.states.keeps(f"{name}.{key}")
        }

    @property
    def starts_at_initial(self) -> bool:
        """Whether the personal model of a user who never trained is z^0; else it is z."""
        return self.client.state_spec().get(self.client.personal_model().model) is INITIAL

    def is_global(self, user: int) -> bool:
        """Whether the personal model, before any adaptation, is z itself."""
        if not self.states.has(user):
            return not self.starts_at_initial
        return self.client.personal_model().model == "global" and not self.client.own_tensors

    def rests(self, user: int) -> bool:
        """Whether the personal model changes only when its user trains; else it moves with z."""
        if not self.states.has(user):
            return self.starts_at_initial
        return self.client.personal_model().model != "global"
