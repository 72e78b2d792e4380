"""Per-FedAvg: Personalized Federated Learning with Theoretical Guarantees (Fallah et al., 2020), Algorithm 1.

The server's model is trained to be a good start: the objective is the loss after one step of each user.

    local    w~ = w - adapt_lr grad f_i(w; D),   u = grad f_i(w~; D')
             w <- w - lr (u - adapt_lr Hess f_i(w; D'') u), from w = z            eq. 8 and 9: the step starts from w
    server   z <- mean_i w_i over the cohort

D, D', D'' are independent batches, drawn anew for every step. Kept per client: nothing.
Readings: `form: exact` differentiates twice, at w; `hf` takes the difference of two gradients at w +- hessian_delta u;
`fo` leaves the Hessian out. Personal is z after one step of rate adapt_lr on a batch of training data (`adapt_on: test`
is the protocol of the FedBC paper).
"""

from typing import Any, Literal

from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.step import AdaptOn, Batch, Personal
from fedlit.errors import require
from fedlit.params import Params, dot


class PerFedAvg(Client):
    """Personalised federated averaging by a meta-gradient.

    Args:
        net: the network that is trained.
        adapt_lr: α: rate of the user's one step; 0 is FedAvg with uniform weights.
        form: the Hessian term: exact, by differences of gradients (hf), or left out (fo).
        hessian_delta: δ of the differences.
        adapt_on: which data the users adapt on when personal/* is measured.
        local: the local options of fedlit.client.base.Client; lr is the outer rate β.
    """

    weights = "uniform"

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        adapt_lr: float = 0.01,
        form: Literal["exact", "hf", "fo"] = "exact",
        hessian_delta: float = 1e-3,
        adapt_on: AdaptOn = "train",
        **local: Any,
    ) -> None:
        super().__init__(net, **local)
        require(adapt_lr >= 0, f"model.adapt_lr is {adapt_lr}; give 0 or more.")
        require(hessian_delta > 0, f"model.hessian_delta is {hessian_delta}; give a number above 0.")
        self.adapt_lr = adapt_lr
        self.form = form
        self.hessian_delta = hessian_delta
        self.adapt_on = adapt_on
        self.batches_per_step = 2 if form == "fo" else 3

    def training_step(self, batch: tuple[Batch, ...], batch_idx: int | Tensor) -> dict[str, Tensor]:
        """A scalar whose gradient is (I - α Hess f_i(w; D'')) u."""
        w = {name: value.detach() for name, value in self.local_params.items()}
        slope, task = self.task_grad_and_loss(w, batch[0])
        u = self.task_grad(stepped(w, slope, -self.adapt_lr), batch[1])
        if self.form == "fo":
            return {"loss": self.along(u), "task": task}
        if self.form == "exact":
            u = {name: value.detach() for name, value in u.items()}
            curved = dot(u, self.task_grad(self.local_params, batch[2]))  # its gradient is Hess u
            return {"loss": self.along(u) - self.adapt_lr * curved, "task": task}
        ahead, behind = (self.task_grad(stepped(w, u, sign * self.hessian_delta), batch[2]) for sign in (1, -1))
        curved_u = {name: (ahead[name] - behind[name]) / (2 * self.hessian_delta) for name in u}
        return {"loss": self.along(stepped(u, curved_u, -self.adapt_lr)), "task": task}

    def personal_model(self) -> Personal:
        """z after one step."""
        return Personal("global", self.adapt_lr, self.adapt_on)


def stepped(point: Params, direction: Params, length: float) -> Params:
    """point + length * direction."""
    return {name: value + length * direction[name] for name, value in point.items()}
