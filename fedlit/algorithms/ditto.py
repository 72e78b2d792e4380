"""Ditto: Fair and Robust Federated Learning Through Personalization (Li et al., 2021), Algorithm 1.

Federated averaging, and on every client a personal model that is held near the server's model.

    personal  v_i <- v_i - personal_lr (g_i(v_i) + prox (v_i - z)), from its last value; z is the RECEIVED model
    local     x_i by SGD from z, as in FedAvg; only this is sent
    server    z <- sum_i n_i x_i / sum_i n_i over the cohort

Kept per client: v_i, which starts at the initial model. z does not depend on v_i at all.
Readings: the personal solve comes first, on batches of its own and with plain SGD (with `order: interleaved` each local
step is paired with a personal step on the same batch, as in the authors' code); only the cohort trains its v_i.
"""

from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort
from fedlit.client.local_optimizers import LocalSGD
from fedlit.client.specs import INITIAL, StateSpec
from fedlit.client.step import Batch, Newcomer, Personal, Phase
from fedlit.errors import require
from fedlit.keys import GeneratorOf
from fedlit.params import subtract


class Ditto(Client):
    """Federated averaging with an additional personal model on every client.

    Args:
        net: the network that is trained.
        prox: λ: how firmly the personal model is held near the received one; 0.1, 1 and 2 in the paper.
        personal_lr: η_p: rate of the personal steps, which are plain SGD; lr unless given.
        personal_steps: steps of the personal solve in a round; as many as the local ones unless given.
        order: the personal solve before the local one, or a step of each in turn on the same batch.
        local: the local options of fedlit.client.base.Client.
    """

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        prox: float = 1.0,
        personal_lr: float | None = None,
        personal_steps: int | None = None,
        order: Literal["personal_first", "interleaved"] = "personal_first",
        **local: Any,
    ) -> None:
        super().__init__(net, **local)
        require(prox >= 0, f"model.prox is {prox}; give 0 (local training only) or more.")
        require(personal_lr is None or personal_lr > 0, f"model.personal_lr is {personal_lr}; give a rate above 0.")
        require(
            personal_steps is None or personal_steps >= 1, f"model.personal_steps is {personal_steps}; give 1 or more."
        )
        require(
            personal_lr is not None or self.optimizer == "sgd",
            f"model.optimizer is {self.optimizer}, but personal steps are plain SGD's, and model.lr ({self.lr:g}) is "
            "not a rate for them. Give model.personal_lr.",
        )
        self.prox = prox
        self.personal_lr = self.lr if personal_lr is None else personal_lr
        self.personal_steps = personal_steps
        self.order = order

    def phases(self) -> list[Phase]:
        """v_i, then x_i; interleaved, one phase trains both."""
        personal = Phase(
            "personal",
            start="personal",
            step_method="personal_step",
            work_method="personal_work",
            writes="personal",
            optimizer=LocalSGD(),
            lr=self.personal_lr,
            stream=1,
        )
        return [Phase()] if self.order == "interleaved" else [personal, Phase()]

    def personal_step(self, batch: Batch, batch_idx: int | Tensor) -> Tensor:
        """f_i(v) + λ/2 |v - z|²."""
        return self.task_loss(batch) + self.prox / 2 * self.distance_to_global()

    def personal_work(self, cohort: Cohort, planned: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        """`personal_steps` if given, else the steps of local work."""
        if self.personal_steps is None:
            return self.local_work(cohort, planned, generator_of)
        return np.where(planned > 0, self.personal_steps, 0)

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Any]:
        """f_i(x); interleaved, v_i also takes its step on the same batch."""
        step: dict[str, Any] = {"loss": self.task_loss(batch)}
        if self.order == "interleaved":
            v, z = self.kept("personal"), self.global_params
            pull = self.shared(subtract(v, z))
            slope = {k: g + self.prox * pull[k] if k in pull else g for k, g in self.task_grad(v, batch).items()}
            step["personal"] = {k: v[k] - self.personal_lr * slope[k] for k in v}
        return step

    def state_spec(self) -> StateSpec:
        """v_i."""
        return {"personal": INITIAL}

    def carried_states(self) -> tuple[str, ...]:
        """v_i, if interleaved steps move it."""
        return ("personal",) if self.order == "interleaved" else ()

    def personal_model(self) -> Personal:
        """v_i."""
        return Personal("personal")

    def newcomer(self) -> Newcomer:
        """v_i from z, by the personal solve alone."""
        return Newcomer(self.personal_model(), tuple(self.phases()[:1]))
