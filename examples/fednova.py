"""FedNova: Tackling the Objective Inconsistency Problem in Heterogeneous FL (Wang et al., 2020).

Clients take different numbers of local steps. Plain averaging then favours those who take many; FedNova averages the
mean gradient of each client instead, and steps as far as the average client went.

    local    x_i by K_i SGD steps from z;  |a_i|_1 = K_i, or with momentum the sum of what each gradient counts
    server   z <- z - τ_eff sum_i p_i (z - x_i) / |a_i|_1,   p_i = n_i / n,   τ_eff = sum_i p_i |a_i|_1
"""

from torch import Tensor

from fedlit import Client, Samples, TrainedCohort, Weighting
from fedlit.algorithms.scaffold import path_lengths
from fedlit.errors import require
from fedlit.server.weights import Weighed, normalise


class FedNova(Client):
    """Normalised averaging; its local step is FedAvg's."""

    newcomers_get_z = True

    def weighting(self) -> Weighting:
        """The server's step."""
        require(
            self.optimizer == "sgd", f"model.optimizer is '{self.optimizer}'; FedNova counts steps of sgd. Set it so."
        )
        return Normalised(momentum=self.momentum)


class Normalised(Weighting):
    """Weights p_i / |a_i|_1, as shares, and the length of the step that makes up for it.

    Args:
        momentum: ρ: of the local steps.
    """

    def __init__(self, *, momentum: float = 0.0) -> None:
        self.momentum = momentum

    def weigh(self, cohort: TrainedCohort) -> Weighed:
        """τ_eff sum_i p_i (z - x_i) / |a_i|_1 = (τ_eff s) sum_i w_i (z - x_i), where w_i = p_i / |a_i|_1 / s."""
        trained: Tensor = cohort.reports & (cohort.steps > 0)
        shares = normalise(Samples().weigh(cohort).weights, trained)
        lengths = path_lengths(cohort.steps.clamp(min=1), self.momentum)
        parts = shares / lengths
        return Weighed(normalise(parts, trained), float((shares * lengths).sum() * parts.sum()))
