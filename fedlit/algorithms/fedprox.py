"""FedProx: Federated Optimization in Heterogeneous Networks (Li et al., 2020), Algorithm 2.

FedAvg with a proximal term that holds each client near the model it received.

    local    x_i <- x_i - lr (grad f_i(x_i) + mu (x_i - z)), from x_i = z     eq. 2: z is the received model
    server   z <- sum_i n_i x_i / sum_i n_i over the cohort

Kept per client: nothing that training reads. Reading: clients are drawn uniformly and averaged by size, as in the
authors' code; the paper draws by size and averages equally (`trainer.sampler: size`, `trainer.weights: uniform`).
"""

from typing import Any

import numpy as np
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort
from fedlit.client.step import Batch
from fedlit.errors import require
from fedlit.keys import GeneratorOf


class FedProx(Client):
    """Federated averaging with a proximal term.

    Args:
        net: the network that is trained.
        mu: μ: strength of the proximal term μ/2 |x - z|² (eq. 2).
        stragglers: share of every cohort that does only a part of the local epochs; it is averaged like the others.
        local: the local options of fedlit.client.base.Client.
    """

    newcomers_get_z = True

    def __init__(self, net: nn.Module | None = None, *, mu: float = 0.1, stragglers: float = 0.0, **local: Any) -> None:
        super().__init__(net, **local)
        require(0 <= stragglers <= 1, f"model.stragglers is {stragglers}; give a share from 0 to 1.")
        require(
            stragglers == 0 or self.most_steps is None,
            f"model.stragglers is {stragglers} and model.most_steps is {self.most_steps}; both draw how much each "
            "client works. Leave one out.",
        )
        require(mu >= 0, f"model.mu is {mu}; the proximal term needs 0 or more (0 is FedAvg).")
        self.mu = mu
        self.stragglers = stragglers

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """f_i(x) + μ/2 |x - z|² (eq. 2)."""
        task = self.task_loss(batch)
        return {"loss": task + self.mu / 2 * self.distance_to_global(), "task": task}

    def local_work(self, cohort: Cohort, planned: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        """Stragglers run 1 to E - 1 of the E epochs, drawn uniformly (or 1 to K - 1 of K local steps)."""
        full = self.local_steps or self.local_epochs
        if self.stragglers == 0 or full == 1:
            return super().local_work(cohort, planned, generator_of)
        generators = [generator_of(k) for k in range(len(planned))]
        rank = np.argsort(np.argsort([generator.random() for generator in generators]))
        late = rank < round(self.stragglers * len(planned))
        share = np.array([generator.integers(1, full) for generator in generators])
        return np.where(late, planned // full * share, planned)
