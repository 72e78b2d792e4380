"""FedDyn: Federated Learning Based on Dynamic Regularization (Acar et al., 2021), Algorithm 1.

A linear and a quadratic term change every client's objective so that the common minimum is a minimum for each client.

    local    theta_i by SGD from z on  f_i(theta) - <d_i, theta> + alpha/2 |theta - z|^2       eq. 1
    state    d_i <- d_i - alpha (theta_i - z)                                                  eq. 2
    server   h <- h - alpha/N sum_i (theta_i - z),   z <- mean_i theta_i - h / alpha

Kept per client: d_i, an estimate of grad f_i(theta_i); by the server: h, the mean of all d_i. Both start at zero.
Readings: uniform weights; no gradient clipping (the authors' code clips at 10: `clip`); one alpha for all
(`scale_alpha` divides it by n_i N / n, as that code does). z is measured as the global model (`eval_model`; that code
measures the plain mean of the cohort's theta_i, or of all).
"""

from typing import Any, Literal

from pytorch_lightning import Trainer
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.client.specs import INITIAL, ZEROS, StateSpec, at_server
from fedlit.client.step import Batch, Phase
from fedlit.errors import require
from fedlit.params import Params, per_client, subtract, weighted_mean, with_prefix
from fedlit.server.base import ServerCallback


class FedDyn(Client):
    """Dynamic regularisation.

    Args:
        net: the network that is trained.
        alpha: α: strength of the regularisation; 0.001 to 0.1 in the paper.
        scale_alpha: divide α by n_i N / n, so that small clients are held more firmly.
        eval_model: what is measured as the global model: z, or the plain mean of the cohort's or of all models.
        local: the local options of fedlit.client.base.Client.
    """

    prox: Tensor
    weights = "uniform"
    newcomers_get_z = True

    def __init__(
        self,
        net: nn.Module | None = None,
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
        """d_i; the server keeps the last θ_i if the mean of all models is measured."""
        kept: StateSpec = {"gradient": ZEROS}
        return kept | ({"local": at_server(INITIAL)} if self.eval_model == "all_mean" else {})

    def sent_spec(self) -> StateSpec:
        """α, which may differ from client to client."""
        return {"prox": self.alpha}

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        """d_i <- d_i - α (θ_i - z) (eq. 2)."""
        moves, prox = subtract(cohort.params, cohort.received), cohort.sent["prox"]
        cohort.state |= with_prefix(
            "gradient",
            {name: value - per_client(prox, value) * moves[name] for name, value in cohort.model("gradient").items()},
        )

    def server_callbacks(self) -> list[ServerCallback]:
        """The callback for h and the server's step."""
        return [DynamicRegularization(alpha=self.alpha, scale_alpha=self.scale_alpha, eval_model=self.eval_model)]


class DynamicRegularization(ServerCallback):
    """Moves h, and subtracts h / α from the average.

    Args:
        alpha: α: strength of the regularisation.
        scale_alpha: divide a client's α by n_i N / n.
        eval_model: what is measured as the global model.
    """

    role = "dynamic"
    uses_initial = True

    def __init__(
        self,
        *,
        alpha: float,
        scale_alpha: bool = False,
        eval_model: Literal["server", "cohort_mean", "all_mean"] = "server",
    ) -> None:
        self.alpha = alpha
        self.scale_alpha = scale_alpha
        self.eval_model = eval_model
        self.h: Params = {}
        self.evaluated: Params = {}
        self._moved_h: Params = {}

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """Send each client its own α, if it is scaled."""
        if self.scale_alpha:
            scale = self.server.sizes.double().mean() / cohort.sizes
            cohort.sent["prox"] = self.alpha * scale.to(cohort.sent["prox"].dtype)

    def on_pseudo_gradient(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """h <- h - α/N sum (θ_j - z); z - mean θ_j + h / α, with θ_j as it was reported."""
        shared = {name: value for name, value in cohort.reported.items() if name not in cohort.local_tensors}
        for name, value in subtract(shared, cohort.received).items():
            step = -self.alpha / cohort.population * value[cohort.reports].sum(0)
            self._moved_h[name] = self.h[name] + step if self.h else step
            cohort.pseudo_gradient[name] = cohort.pseudo_gradient[name] + self._moved_h[name] / self.alpha

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """Replace h, now that the server has stepped."""
        self.h, self._moved_h = self._moved_h, {}
        if self.eval_model == "cohort_mean":
            self.evaluated = weighted_mean(cohort.reported, cohort.reports / cohort.reports.sum())
        elif self.eval_model == "all_mean":
            self.evaluated = self.server.latest_models(cohort)

    def evaluated_model(self) -> Params:
        """The mean that is measured instead of z, from the first round on."""
        return self.evaluated

    def state_dict(self) -> dict[str, Any]:
        """h and the mean that is measured."""
        return {"h": self.h, "evaluated": self.evaluated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.h, self.evaluated = state_dict["h"], state_dict["evaluated"]
