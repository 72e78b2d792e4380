"""FedDyn: Federated Learning Based on Dynamic Regularization (Acar et al., 2021), Algorithm 1.

A linear and a quadratic term bend every client's objective so that, at the common minimum, no client wants to move.

    local    theta_i by SGD from z on  f_i(theta) - <d_i, theta> + alpha/2 |theta - z|^2       eq. 1
    state    d_i <- d_i - alpha (theta_i - z)                                                  eq. 2
    server   h <- h - alpha/N sum_i (theta_i - z),   z <- mean_i theta_i - h / alpha

Kept per client: d_i, an estimate of grad f_i(theta_i); by the server: h, the mean of all d_i. Both start at zero.
Readings: uniform weights; no gradient clipping (the authors' code clips at 10: `clip`); one alpha for all
(`scale_alpha` divides it by the client's share of an average client, n_i N / n, as that code does). What is measured as
global is z (`eval_model`; that code reports the plain mean of the cohort's, or of all, theta_i).
"""

from typing import Any, Literal

from torch import Tensor, nn

from fedlit.client import Client
from fedlit.errors import require
from fedlit.server.dynamic import DynamicRegularization
from fedlit.states import INITIAL, ZEROS, StateSpec
from fedlit.step import Batch


class FedDyn(Client):
    """Dynamic regularisation.

    Args:
        net: the network that is trained.
        alpha: α: strength of the regularisation; 0.001 to 0.1 in the paper.
        scale_alpha: divide α by n_i N / n, so that small clients are held more firmly.
        eval_model: what is measured as the global model: z, or the plain mean of the cohort's or of all models.
        local: the local options of fedlit.client.Client.
    """

    prox: Tensor
    weights = "uniform"

    def __init__(
        self,
        net: nn.Module,
        *,
        alpha: float = 0.01,
        scale_alpha: bool = False,
        eval_model: Literal["server", "cohort_mean", "all_mean"] = "server",
        **local: Any,
    ) -> None:
        super().__init__(net, **local)
        require(alpha > 0, f"model.alpha is {alpha}; the server divides by it, so it must be above 0.")
        self.alpha = alpha
        self.scale_alpha = scale_alpha
        self.eval_model = eval_model

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """f_i(θ) - <d_i, θ> + α/2 |θ - z|² (eq. 1)."""
        task = self.task_loss(batch)
        linear = self.along(self.shared(self.kept("gradient")))
        return {"loss": task - linear + self.prox / 2 * self.distance_to_global(), "task": task}

    def state_spec(self) -> StateSpec:
        """d_i and, where the mean of all models is measured, θ_i."""
        kept: StateSpec = {"gradient": ZEROS}
        return kept | ({"local": INITIAL} if self.eval_model == "all_mean" else {})

    def sent_spec(self) -> StateSpec:
        """α, which may differ from client to client."""
        return {"prox": self.alpha}

    def server_callbacks(self) -> list[DynamicRegularization]:
        """Eq. 2 and the server's step."""
        return [DynamicRegularization(alpha=self.alpha, scale_alpha=self.scale_alpha, eval_model=self.eval_model)]
