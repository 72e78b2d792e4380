"""Per-FedBC: FedBC with a meta-gradient, Algorithm 3 of Federated Learning Beyond Consensus.

    inner    v <- v - adapt_lr (g_i(v) + 2 dual_i (v - z)), J times from v = w
    local    w <- w - lr g_i(v), from w = z: a first-order step from w, along the gradient of f_i only
    dual, tolerance and server as in FedBC, with x_i = w

Every inner step and every local step has a batch of its own. Kept per client: dual, tolerance.
Readings: the tolerance moves as in FedBC (Algorithm 3 does not write its step); personal is z after one step of rate
adapt_lr on training data (`adapt_on`).
"""

from typing import Any

from torch import Tensor, nn

from fedlit.algorithms.fedbc import FedBC
from fedlit.client.step import AdaptOn, Batch, Personal
from fedlit.errors import require
from fedlit.params import subtract


class PerFedBC(FedBC):
    """FedBC whose server model is a good start for one step of each user.

    Args:
        net: the network that is trained.
        adapt_lr: α: rate of the inner steps, and of a user's one step when personal/* is measured.
        adapt_steps: J: inner steps before every local step; 0 is FedBC without the pull towards z.
        adapt_on: which data the users adapt on when personal/* is measured.
        fedbc: the options of FedBC and the local options of fedlit.client.base.Client; lr is the outer rate β.
    """

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        adapt_lr: float = 0.01,
        adapt_steps: int = 1,
        adapt_on: AdaptOn = "train",
        **fedbc: Any,
    ) -> None:
        super().__init__(net, **fedbc)
        require(adapt_lr >= 0, f"model.adapt_lr is {adapt_lr}; give 0 or more.")
        require(adapt_steps >= 0, f"model.adapt_steps is {adapt_steps}; give 0 or more.")
        require(
            self.start_from == "global",
            "model.start_from is 'local', but Algorithm 3 starts every round from the received model. Leave it out.",
        )
        self.adapt_lr = adapt_lr
        self.adapt_steps = adapt_steps
        self.adapt_on = adapt_on
        self.batches_per_step = adapt_steps + 1

    def training_step(self, batch: Any, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """<g_i(v), w>, with v from J steps on the penalised loss."""
        batches: tuple[Batch, ...] = (batch,) if self.batches_per_step == 1 else batch
        v = {name: value.detach() for name, value in self.local_params.items()}
        z = self.global_params
        for inner_batch in batches[:-1]:
            pull = self.shared(subtract(v, z))
            slope = {
                k: g + 2 * self.dual * pull[k] if k in pull else g for k, g in self.task_grad(v, inner_batch).items()
            }
            v = {name: value - self.adapt_lr * slope[name] for name, value in v.items()}
        slope, task = self.task_grad_and_loss(v, batches[-1])
        return {"loss": self.along(slope), "task": task}

    def personal_model(self) -> Personal:
        """z after one step."""
        return Personal("global", self.adapt_lr, self.adapt_on)
