"""FedProto: Federated Prototype Learning across Heterogeneous Clients (Tan et al., 2022), Algorithm 1.

Clients send no models. They send the mean features of each class, and pull their own features towards those of all.

    local    x_i by SGD on f_i(x_i) + λ mean_l |h(ξ_l) - c_y(l)|² / d, from the client's last model     eq. 7
    client   c_i,k = mean of h(ξ) over the client's n_i,k rows of class k, with the new x_i             eq. 3
    server   c_k <- sum_i n_i,k c_i,k / sum_i n_i,k over the cohort                                     eq. 6

h are the d numbers that enter the net's last layer. Kept per client: x_i, from the initial model on.
Readings, as in the authors' code: every row has a distance of its own, and a class without a prototype has none. A
class that nobody in the cohort has keeps its prototype. A client reports n_i,k c_i,k. The last layer predicts.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedlit import Batch, Client, Cohort, Phase, ServerCallback, StateSpec, TrainedCohort
from fedlit.client.net_parts import input_of
from fedlit.params import Params


class FedProto(Client):
    """Own models with common prototypes of the classes.

    Args:
        net: the network that is trained.
        head: its last layer, an nn.Linear; what enters it are the features.
        pull: λ: strength of the prototypes; 1 in the paper.
        local: the local options of fedlit.Client.
    """

    prototypes: Tensor

    def __init__(self, net: nn.Module, *, head: str = "linear", pull: float = 1.0, **local: Any) -> None:
        super().__init__(net, **({"keep_local": "all"} | local))
        self.head, self.pull = head, pull
        self.classes, self.width = net.get_parameter(f"{head}.weight").shape

    def sent_spec(self) -> StateSpec:
        """c_k with a 1 at its end; zeros for a class that has none."""
        return {"prototypes": torch.zeros(self.classes, self.width + 1)}

    def report_spec(self) -> StateSpec:
        """n_i,k c_i,k with n_i,k at its end."""
        return {"sums": torch.zeros(self.classes, self.width + 1)}

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        """f_i and the distances to the prototypes."""
        task, near = self.task_loss(batch), self.prototypes[batch.y]
        gaps = (input_of(self.net, self.head, batch.x) - near[:, :-1]).square().mean(1) * near[:, -1]
        return {"loss": task + self.pull * (gaps * batch.row_weights).sum(), "task": task}

    def summarize(self, batch: Batch) -> Params:
        """Sums of features over the rows of each class, and the numbers of these rows."""
        features = nn.functional.pad(input_of(self.net, self.head, batch.x), (0, 1), value=1.0)
        return {"sums": nn.functional.one_hot(batch.y, self.classes).to(features).T @ features}

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        """Report them."""
        cohort.reported_rows["sums"] = cohort.summary["sums"]

    def server_callbacks(self) -> list[ServerCallback]:
        """Eq. 6."""
        return [Prototypes()]


class Prototypes(ServerCallback):
    """Keeps c_k and sends them."""

    kept: Params = {}

    def on_cohort_start(self, trainer: Any, client: Client, cohort: Cohort) -> None:
        """c_k goes out."""
        cohort.sent |= {name: value.expand_as(cohort.sent[name]) for name, value in self.kept.items()}

    def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
        """The mean over the rows of those that report."""
        sums = (cohort.reported_rows["sums"] * cohort.reports.view(-1, 1, 1)).sum(0)
        before = self.kept.get("prototypes", torch.zeros_like(sums))
        self.kept = {"prototypes": torch.where(sums[:, -1:] > 0, sums / sums[:, -1:].clamp(min=1), before)}

    def state_dict(self) -> dict[str, Any]:
        """c_k."""
        return self.kept

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.kept = state_dict
