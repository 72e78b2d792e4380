"""FedPAC: Personalized FL with Feature Alignment and Classifier Collaboration (Xu, Tong, Huang, 2023), Algorithm 1.

The clients share a body and align its features, as in FedProto. Each client's head is mixed from the heads of those
whose features are distributed alike.

    statistics  h_i,k = P_i(k) mean of h(ξ | k),  V_i = (mean |h(ξ)|² - sum_k |h_i,k|²) / n_i, with the received body
    head        φ_i by SGD on f_i over the head, from the mixed head; the body is the received one
    body        θ_i by SGD on f_i + λ mean_l |h(ξ_l) - c_y(l)|² / d over the body, with the new head          eq. 4
    server      θ <- sum_i n_i θ_i / sum_i n_i,   c_k as in FedProto, with the new θ_i
                φ_i <- sum_j α_ij φ_j,  α_i >= 0 with sum 1 minimises                                         eq. 11
                sum_j α_ij² V_j + sum_k |h_i,k - sum_j α_ij h_j,k|², over those of the cohort

Kept per client: φ_i, from the initial model on. h are the d numbers that enter the head, an nn.Linear.
Readings: V_i is at least 1e-9; eq. 11 is solved to the last digits, as non-negative least squares.
"""

from typing import Any

import torch
from torch import Tensor, nn

from examples.fedproto import FedProto
from examples.fedrep import FedRep
from fedlit import Batch, Client, Phase, ServerCallback, StateSpec, TrainedCohort
from fedlit.client.net_parts import input_of
from fedlit.params import Params


class FedPAC(FedProto, FedRep):
    """A shared body with aligned features, and a mixed head for each client: FedRep's phases with FedProto's loss.

    Args:
        net: the network that is trained.
        head: its last layer, an nn.Linear.
        head_epochs: passes over the client's data for the head; 1 in the paper. local_epochs are for the body.
        options: pull (λ, 1 in the paper), and the local options of fedlit.Client.
    """

    def __init__(self, net: nn.Module, *, head: str = "linear", head_epochs: int = 1, **options: Any) -> None:
        super().__init__(net, head=head, keep_local=head, head_epochs=head_epochs, **options)

    def report_spec(self) -> StateSpec:
        """n_i,k c_i,k; h_i,k and V_i."""
        return super().report_spec() | {"means": torch.zeros(self.classes, self.width), "variance": 0.0}

    def summarize(self, batch: Batch) -> Params:
        """Also the sum of |h|²."""
        return super().summarize(batch) | {"squares": input_of(self.net, self.head, batch.x).square().sum()}

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        """Report h_i,k and V_i of the received body after the first phase, and n_i,k c_i,k after the second."""
        super().on_phase_end(cohort, phase)
        if phase.name == "head":
            means = cohort.summary["sums"][..., :-1] / cohort.sizes.view(-1, 1, 1)
            variance = (cohort.summary["squares"] / cohort.sizes - means.square().sum((1, 2))) / cohort.sizes
            cohort.reported_rows |= {"means": means, "variance": variance.clamp(min=1e-9)}

    def server_callbacks(self) -> list[ServerCallback]:
        """c_k, and the heads."""
        return [*super().server_callbacks(), MixedHeads()]


class MixedHeads(ServerCallback):
    """Gives every client the combination of the cohort's heads that fits it (eq. 11)."""

    def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
        """φ_i of those that have trained and report."""
        who = (cohort.reports & cohort.trained).nonzero().squeeze(1)
        alpha = best_shares(cohort.reported_rows["means"][who], cohort.reported_rows["variance"][who])
        for name in cohort.local_tensors:
            mixed = torch.tensordot(alpha, cohort.params[name][who], 1)
            cohort.params |= {name: cohort.params[name].index_copy(0, who, mixed)}


def best_shares(means: Tensor, variance: Tensor) -> Tensor:
    """(clients, clients) α: the direction of min_a a'Pa/2 - sum a over a >= 0; descent finds which a are above 0."""
    gaps = (means.unsqueeze(0) - means.unsqueeze(1)).flatten(2).double()
    products = gaps @ gaps.mT + torch.diag(variance.double())
    alpha = torch.zeros_like(products[0])
    for j in [*range(len(alpha))] * 200:
        alpha[:, j] = (alpha[:, j] + (1 - (products[:, j] * alpha).sum(1)) / products[:, j, j]).clamp(min=0)
    some = (alpha > 0).double()
    exact: Tensor = torch.linalg.solve(some[:, None] * products * some[..., None] + torch.diag_embed(1 - some), some)
    return (exact / exact.sum(1, keepdim=True)).to(means)
