"""Dynamic regularisation: how FedDyn's linear terms and its server state follow a round."""

from typing import Any, Literal

from pytorch_lightning import Trainer

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.params import Params, subtract, weighted_mean, with_prefix
from fedlit.server.base import ServerCallback, latest_models


class DynamicRegularization(ServerCallback):
    """Moves d_i of the cohort and h, and takes h / α off the average.

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
        """Each client's own α."""
        if self.scale_alpha:
            average = trainer.loop.data.sizes.double().mean()  # type: ignore[attr-defined]  # FederatedTrainer's
            scale = average / cohort.sizes
            cohort.sent["prox"] = self.alpha * scale.to(cohort.sent["prox"].dtype)

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """d_i <- d_i - α (θ_i - z)."""
        moves = subtract(cohort.params, cohort.received)
        prox = cohort.sent["prox"]
        cohort.state |= with_prefix(
            "gradient",
            {
                name: value - prox.view(-1, *[1] * (value.dim() - 1)) * moves[name]
                for name, value in cohort.model("gradient").items()
            },
        )

    def on_pseudo_gradient(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """h <- h - α/N sum (θ_j - z); z - mean θ_j + h / α."""
        moves = subtract(cohort.params, cohort.received)
        for name, value in moves.items():
            step = -self.alpha / cohort.population * value[cohort.reports].sum(0)
            self._moved_h[name] = self.h[name] + step if self.h else step
            cohort.pseudo_gradient[name] = cohort.pseudo_gradient[name] + self._moved_h[name] / self.alpha

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """h moves when the round is complete."""
        self.h, self._moved_h = self._moved_h, {}
        if self.eval_model == "cohort_mean":
            self.evaluated = weighted_mean(cohort.params, cohort.reports / cohort.reports.sum())
        elif self.eval_model == "all_mean":
            self.evaluated = latest_models(trainer, cohort)

    def evaluated_model(self) -> Params:
        """The mean that is measured instead of z, from the first round on."""
        return self.evaluated

    def state_dict(self) -> dict[str, Any]:
        """h and the mean that is measured."""
        return {"h": self.h, "evaluated": self.evaluated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse."""
        self.h, self.evaluated = state_dict["h"], state_dict["evaluated"]
