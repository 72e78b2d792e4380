"""FedExP: Speeding Up Federated Averaging via Extrapolation (Jhunjhunwala, Wang, Joshi, 2023), Algorithm 1.

The server steps further than the mean update where the clients' updates point in different directions.

    local    x_i by SGD from z;  Δ_i = z - x_i
    server   z <- z - η_g mean_i Δ_i,   η_g = max(1, sum_i |Δ_i|² / (2 M (|mean_i Δ_i|² + ε)))
    measured the mean of the last two z, because z itself oscillates
"""

from typing import Any

from pytorch_lightning import Trainer
from torch import nn

from fedlit import Client, ServerCallback, TrainedCohort, Uniform, WeighedCohort, Weighting
from fedlit.params import Params, sq_norm, weighted_mean
from fedlit.server.weights import Weighed


class FedExP(Client):
    """Federated averaging with a server step that is computed in every round.

    Args:
        net: the network that is trained.
        epsilon: ε: keeps the step finite where the mean update vanishes.
        local: the local options of fedlit.Client.
    """

    newcomers_get_z = True

    def __init__(self, net: nn.Module, *, epsilon: float = 1e-3, **local: Any) -> None:
        super().__init__(net, **local)
        self.epsilon = epsilon

    def weighting(self) -> Weighting:
        """η_g."""
        return Extrapolated(epsilon=self.epsilon)

    def server_callbacks(self) -> list[ServerCallback]:
        """What is measured."""
        return [LastTwo()]


class Extrapolated(Weighting):
    """Uniform weights with a step of η_g."""

    def __init__(self, *, epsilon: float) -> None:
        self.epsilon = epsilon

    def weigh(self, cohort: TrainedCohort) -> Weighed:
        """Everyone alike; cohort.distances has |Δ_i|²."""
        weights = Uniform().weigh(cohort).weights
        mean = sq_norm(weighted_mean(cohort.moves, weights)).double()
        return Weighed(weights, max(1.0, float(weights @ cohort.distances.double() / (2 * (mean + self.epsilon)))))


class LastTwo(ServerCallback):
    """Measures the mean of the last two z as the global model."""

    mean: Params = {}
    before: Params = {}

    def on_pseudo_gradient(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """z before the server's step."""
        self.before = self.server.z

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        """And z after it."""
        self.mean = {name: (self.before[name] + value) / 2 for name, value in self.server.z.items()}

    def evaluated_model(self) -> Params:
        """Instead of z, from the first round on."""
        return self.mean

    def state_dict(self) -> dict[str, Any]:
        """So that a resumed run measures the same."""
        return {"mean": self.mean}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse."""
        self.mean = state_dict["mean"]
