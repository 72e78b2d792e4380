"""MOON: Model-Contrastive Federated Learning (Li, He, Song, 2021).

A client's representation of a sample is drawn to that of the received model, and away from that of the model with which
the client ended its last round.

    local    x_i by SGD from z on  f_i(x) + μ mean over rows of -log(e^(a/τ) / (e^(a/τ) + e^(b/τ))),
             a = sim(r, r_z),  b = sim(r, r_prev)
             r, r_z, r_prev: the body's output under x_i, under z and under the client's last x_i; sim: cosine
    server   z <- sum_i n_i x_i / sum_i n_i over the cohort

Kept per client: x_i, from the initial model on.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedlit import INITIAL, Batch, Client, StateSpec
from fedlit.params import Params


class MOON(Client):
    """Federated averaging with a contrast between models.

    Args:
        net: the network that is trained.
        mu: μ: strength of the contrast; 0.1 to 10 in the paper.
        temperature: τ: 0.5 in the paper.
        body: the submodule of the net whose output is the representation; the whole net unless given.
        local: the local options of fedlit.Client.
    """

    newcomers_get_z = True

    def __init__(
        self, net: nn.Module, *, mu: float = 1.0, temperature: float = 0.5, body: str = "", **local: Any
    ) -> None:
        super().__init__(net, **local)
        self.mu, self.temperature, self.body = mu, temperature, body

    def state_spec(self) -> StateSpec:
        """`local` is x_i: what a step reads of it is the client's last round."""
        return {"local": INITIAL}

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """f_i(x) and the contrast."""
        task = self.task_loss(batch)
        own = self.represent(self.local_params, batch.x)
        near = F.cosine_similarity(own, self.represent(self.global_params, batch.x))
        far = F.cosine_similarity(own, self.represent(self.kept("local"), batch.x))
        contrast = F.softplus((far - near) / self.temperature)  # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a))
        return {"loss": task + self.mu * (contrast * batch.row_weights).sum(), "task": task}

    def represent(self, params: Params, x: Tensor) -> Tensor:
        """(rows, features) of the body with these parameters."""
        prefix = f"{self.body}." if self.body else ""
        own = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
        output: Tensor = functional_call(self.net.get_submodule(self.body), own, (x,))
        return output.flatten(1)
