"""FedRep: Exploiting Shared Representations for Personalized FL (Collins et al., 2021), Algorithm 1.

The clients share a body and keep a head each. In a round a client first fits its head to the body that it received,
then the body to that head. Only bodies are sent and averaged.

    head     h_i by SGD on f_i(φ, h) over h, from the client's last head; φ is the received body
    body     φ_i by SGD on f_i(φ, h_i) over φ, from the received body
    server   φ <- sum_i n_i φ_i / sum_i n_i over the cohort
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedlit import Client, Cohort, LocalOptimizer, Newcomer, Phase
from fedlit.keys import GeneratorOf
from fedlit.params import Params


class FedRep(Client):
    """A shared body with a head for each client.

    Args:
        net: the network that is trained.
        keep_local: the head: the layer, or tensor, that stays with each client.
        head_epochs: passes over the client's data for the head; local_epochs are for the body.
        local: the local options of fedlit.Client.
    """

    def __init__(self, net: nn.Module, *, keep_local: str = "linear.bias", head_epochs: int = 10, **local: Any) -> None:
        super().__init__(net, keep_local=keep_local, **local)
        self.head_epochs = head_epochs

    def phases(self) -> list[Phase]:
        """The head, then the body from where that ended; each on batches of its own."""
        head, body = (Part(self.local_optimizer(), names) for names in self.parts())
        return [
            Phase("head", work_method="head_work", optimizer=head, stream=1),
            Phase("body", start="trained", optimizer=body),
        ]

    def newcomer(self) -> Newcomer:
        """A head for the shared body, which stays as it is."""
        return Newcomer(self.personal_model(), tuple(self.phases()[:1]))

    def parts(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the parameters of the head, and of the body."""
        return self.local_tensors, frozenset(self.local_params) - self.local_tensors

    def head_work(self, cohort: Cohort, planned: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        """`head_epochs` passes."""
        return self.batches_per_epoch(cohort.sizes.numpy()) * self.head_epochs


@dataclass(frozen=True)
class Part:
    """A local optimiser that moves some of the parameters and leaves the others as they are."""

    optimizer: LocalOptimizer
    names: frozenset[str]

    def init(self, params: Params) -> Params:
        """The state before the first step."""
        return self.optimizer.init(self.own(params))

    def point(self, params: Params, state: Params) -> Params:
        """Where the gradient is taken."""
        return params | self.optimizer.point(self.own(params), state)

    def step(self, params: Params, grads: Params, state: Params, lr: float | torch.Tensor) -> tuple[Params, Params]:
        """One step of these; returns (parameters, state)."""
        moved, state = self.optimizer.step(self.own(params), self.own(grads), state, lr)
        return params | moved, state

    def own(self, params: Params) -> Params:
        """Those that move."""
        return {name: value for name, value in params.items() if name in self.names}
