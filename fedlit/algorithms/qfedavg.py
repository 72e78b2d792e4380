"""q-FedAvg: Fair Resource Allocation in Federated Learning (Li et al., 2019), Algorithm 2.

Clients take FedAvg's local steps. Those with a larger loss count more, and the losses set the length of the server's
step.

    local    x_k by SGD from z; F_k = f_k(z) over all training data of the client, before training
    server   z <- z - sum_k F_k^q L (z - x_k) / sum_k h_k,   h_k = q F_k^(q-1) |L (z - x_k)|^2 + L F_k^q

Kept per client: nothing that training reads. Readings: L = 1 / lr, with the rate of this round (`lipschitz` gives a
number); clients are drawn uniformly and enter without their sizes (`sample_weighted` multiplies both sums by n_k, as
the FedBC authors' code does); 1e-10 is added to F_k. With q = 0 it is FedAvg with uniform weights.
"""

from typing import Any

from torch import nn

from fedlit.client.base import Client
from fedlit.errors import require
from fedlit.server.weights import QFFL


class QFedAvg(Client):
    """Federated averaging that favours clients with a large loss.

    Args:
        net: the network that is trained.
        q: q: how much a large loss counts; 0 is plain averaging.
        lipschitz: L: bound on the curvature; 1 / lr unless given.
        sample_weighted: multiply every client's part by its number of samples.
        local: the local options of fedlit.client.base.Client.
    """

    newcomers_get_z = True

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        q: float = 1.0,
        lipschitz: float | None = None,
        sample_weighted: bool = False,
        **local: Any,
    ) -> None:
        super().__init__(net, **local)
        require(q >= 0, f"model.q is {q}; give 0 (plain averaging) or more.")
        require(lipschitz is None or lipschitz > 0, f"model.lipschitz is {lipschitz}; give a number above 0.")
        require(
            lipschitz is not None or self.optimizer not in ("adam", "adamw"),
            f"model.optimizer is '{self.optimizer}', but q-FedAvg takes 1 / lr for the bound L on the curvature, which "
            f"holds for steps along the gradient; {self.optimizer} rescales it. Give lipschitz, or take sgd.",
        )
        self.q = q
        self.lipschitz = lipschitz
        self.sample_weighted = sample_weighted

    def weighting(self) -> QFFL:
        """The weighting with Algorithm 2's server step."""
        return QFFL(q=self.q, lipschitz=self.lipschitz, sample_weighted=self.sample_weighted)
