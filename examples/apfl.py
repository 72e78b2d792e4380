"""APFL: Adaptive Personalized Federated Learning (Deng, Kamani, Mahdavi, 2020), Algorithm 1.

Every client keeps a model of its own beside its copy of the shared one. The personal model is a mixture of the two, and
each client learns how much of its own it takes.

    local    w_i <- w_i - η g_i(w_i)                                         as in FedAvg; only this is sent
    own      v_i <- v_i - η α_i g_i(v̄_i),      v̄_i = α_i v_i + (1 - α_i) w_i   the same batch, the old α_i
    mixture  α_i <- P[α_i - η <v_i - w_i, g_i(v̄_i)>],  P onto [0, 1]           in every step
    server   z <- mean_i w_i over the cohort

Kept per client: v_i and v̄_i, from the initial model on, and α_i.
"""

from typing import Any

from pytorch_lightning import Trainer
from torch import Tensor, nn

from fedlit import INITIAL, Batch, Client, Cohort, Personal, Phase, ServerCallback, StateSpec, TrainedCohort
from fedlit.params import Params, dot, per_client, subtract, with_prefix


class APFL(Client):
    """A mixture of a shared model and an own one.

    Args:
        net: the network that is trained.
        mix: α: share of the own model, at the start.
        adaptive: whether every client moves its α.
        local: the local options of fedlit.Client.
    """

    alpha: Tensor
    rate_now: Tensor
    weights = "uniform"

    def __init__(self, net: nn.Module, *, mix: float = 0.5, adaptive: bool = True, **local: Any) -> None:
        super().__init__(net, **local)
        self.mix, self.adaptive = mix, adaptive

    def state_spec(self) -> StateSpec:
        """v_i, v̄_i and α_i."""
        return {"own_model": INITIAL, "mixed": INITIAL, "alpha": self.mix}

    def sent_spec(self) -> StateSpec:
        """η of the round, which a step of v_i needs."""
        return {"rate_now": self.lr}

    def carried_states(self) -> tuple[str, ...]:
        """v_i and α_i move with every step."""
        return ("own_model", "alpha")

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Any]:
        """f_i(w); v_i and α_i take their steps on the same batch."""
        v, rate, w = self.kept("own_model"), self.rate_now, {k: x.detach() for k, x in self.local_params.items()}
        slope = self.task_grad({name: self.alpha * v[name] + (1 - self.alpha) * w[name] for name in v}, batch)
        own = {name: v[name] - rate * self.alpha * slope[name] for name in v}
        alpha = (self.alpha - rate * dot(subtract(v, w), slope)).clamp(0, 1) if self.adaptive else self.alpha * 1
        return {"loss": self.task_loss(batch), "own_model": own, "alpha": alpha}

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        """v̄_i = α_i v_i + (1 - α_i) w_i."""
        cohort.state |= with_prefix("mixed", mixed(cohort.state["alpha"], cohort.model("own_model"), cohort.params))

    def server_callbacks(self) -> list[ServerCallback]:
        """η goes out."""
        return [RateOfRound()]

    def personal_model(self) -> Personal:
        """v̄_i."""
        return Personal("mixed")


class RateOfRound(ServerCallback):
    """Tells the clients the learning rate of the round."""

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """η, after any decay."""
        cohort.sent["rate_now"] = cohort.sent["rate_now"] * 0 + cohort.lr


def mixed(alpha: Tensor, own: Params, shared: Params) -> Params:
    """Stacked: α of the one, 1 - α of the other."""
    return {name: shared[name] + per_client(alpha, v) * (v - shared[name]) for name, v in own.items()}
