"""FedALA: Adaptive Local Aggregation for Personalized Federated Learning (Zhang et al., 2023), Algorithm 1.

A client does not start from z. For every number of the model it learns how much of z it takes and how much of its own.

    mixing   x̂_i = x_i + (z - x_i) ⊙ W_i,   W_i <- P[W_i - η_w g_i(x̂_i) ⊙ (z - x_i)],  P onto [0, 1]
    local    x_i by SGD on f_i from x̂_i
    server   z <- sum_i n_i x_i / sum_i n_i over the cohort

Kept per client: x_i, from the initial model on, and 1 - W_i, which starts at 0.
Readings: W_i moves in one pass over a share of the data in every round; the paper's first pass goes on until W_i has
converged, ours does not. What `layers` does not name is taken from z.
"""

from typing import Any

import numpy as np
from torch import Tensor, nn

from fedlit import INITIAL, ZEROS, Batch, Client, Cohort, LocalSGD, Phase, StateSpec
from fedlit.keys import GeneratorOf
from fedlit.params import Params, subtract


class FedALA(Client):
    """Federated averaging in which every client mixes its own start.

    Args:
        net: the network that is trained.
        mix_lr: η_w: rate of the mixing weights; 1 in the paper.
        share: s: part of the client's mini-batches that the mixing weights see in a round; 0.8 in the paper.
        layers: the names of the parameters that are mixed begin with this; all are unless given.
        local: the local options of fedlit.Client.
    """

    def __init__(
        self, net: nn.Module, *, mix_lr: float = 1.0, share: float = 0.8, layers: str = "", **local: Any
    ) -> None:
        super().__init__(net, **local)
        self.mix_lr, self.share, self.layers = mix_lr, share, layers

    def state_spec(self) -> StateSpec:
        """x_i, and how much of it is kept: 1 - W_i."""
        return {"local": INITIAL, "own_share": ZEROS}

    def carried_states(self) -> tuple[str, ...]:
        """1 - W_i moves with every step of the mixing."""
        return ("own_share",)

    def phases(self) -> list[Phase]:
        """x̂_i takes the place of x_i, from which local training starts."""
        mixing = Phase("mixing", "received", "mixing_step", "mixing_work", "local", LocalSGD(), lr=1.0, stream=1)
        return [mixing, Phase(start="local")]

    def mixing_work(self, cohort: Cohort, planned: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        """A share of one pass."""
        return np.ceil(self.share * self.batches_per_epoch(cohort.sizes.numpy())).astype(np.int64)

    def mixing_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Any]:
        """W_i moves; a step of rate 1 along x - x̂_i brings the parameters to x̂_i."""
        pull, own_share = subtract(self.global_params, self.kept("local")), self.kept("own_share")
        slope = self.task_grad(self.mixture(pull, own_share), batch)
        moved = {
            name: (kept + self.mix_lr * slope[name] * pull[name]).clamp(0, 1) if name.startswith(self.layers) else kept
            for name, kept in own_share.items()
        }
        return {"loss": self.along(subtract(self.local_params, self.mixture(pull, moved))), "own_share": moved}

    def mixture(self, pull: Params, own_share: Params) -> Params:
        """x̂_i = z - (z - x_i) ⊙ (1 - W_i)."""
        return {name: z - pull[name] * own_share[name] for name, z in self.global_params.items()}
