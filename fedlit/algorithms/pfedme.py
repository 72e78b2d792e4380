"""pFedMe: Personalized Federated Learning with Moreau Envelopes (Dinh, Tran, Nguyen, 2020), Algorithm 1.

Every client's loss is replaced by its Moreau envelope; the minimiser of the envelope's problem is the personal model.

    inner    theta <- theta - personal_lr (grad f_i(theta; D) + prox (theta - w)), K times on ONE batch D      eq. 8
             or from y = theta + inner_momentum (theta - last theta), Nesterov's accelerated descent
    local    w <- w - lr prox (w - theta), from w = z; R times, each with a batch of its own
    server   z <- (1 - beta) z + beta mean_i w_i over those who report                                       Alg. 1

Kept per client: theta_i, for evaluation. w_i is sent, never theta.
Readings: theta starts at w in the first local round and where the last one ended in the others (`inner_start: w` always
starts at w); K steps, or until |grad| <= inner_nu, at most 100; the paper trains ALL clients every round and averages
those that were drawn (`train_all`); personal is theta (`theta_eval: w_R` measures w_i, as the authors' code does).
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedlit.client.base import Client
from fedlit.client.cohort import Selection
from fedlit.client.specs import RECEIVED, StateSpec
from fedlit.client.step import Batch, Newcomer, Personal, Phase
from fedlit.errors import require
from fedlit.params import Params, sq_norm, subtract

MOST_INNER_STEPS = 100


class PFedMe(Client):
    """Personalisation by Moreau envelopes.

    Args:
        net: the network that is trained.
        prox: λ: how firmly the personal model is held near w; 15 to 30 in the paper's tables.
        personal_lr: η_p: rate of the inner steps.
        inner_steps: K: inner steps on each batch.
        inner_momentum: how far the inner gradients are taken ahead; above 0 it is Nesterov's descent.
        inner_nu: ν: stop the inner steps at a gradient of this norm instead, after at most 100.
        inner_start: where the inner steps start: at the last θ (warm), or at w.
        beta: β: the server's step; above 1 it extrapolates.
        train_all: all clients train in every round, and those that were drawn report.
        theta_eval: what is measured as personal/*: θ, or w after the last local round.
        local: the local options of fedlit.client.base.Client; local_steps is R.
    """

    weights = "uniform"

    def __init__(
        self,
        net: nn.Module | None = None,
        *,
        prox: float = 15.0,
        personal_lr: float = 0.05,
        inner_steps: int = 5,
        inner_momentum: float = 0.0,
        inner_nu: float | None = None,
        inner_start: Literal["warm", "w"] = "warm",
        beta: float = 1.0,
        train_all: bool = False,
        theta_eval: Literal["theta", "w_R"] = "theta",
        **local: Any,
    ) -> None:
        super().__init__(net, **local)
        require(prox > 0, f"model.prox is {prox}; give a number above 0.")
        require(personal_lr > 0, f"model.personal_lr is {personal_lr}; give a rate above 0.")
        require(inner_steps >= 1, f"model.inner_steps is {inner_steps}; give 1 or more.")
        require(0 <= inner_momentum < 1, f"model.inner_momentum is {inner_momentum}; give 0 or more, and less than 1.")
        require(
            inner_nu is None or inner_nu > 0, f"model.inner_nu is {inner_nu}; give a norm above 0, or leave it out."
        )
        require(beta > 0, f"model.beta is {beta}; give a number above 0.")
        self.prox = prox
        self.personal_lr = personal_lr
        self.inner_steps = inner_steps
        self.inner_momentum = inner_momentum
        self.inner_nu = inner_nu
        self.inner_start = inner_start
        self.beta = self.server_lr = beta
        self.train_all = train_all
        self.theta_eval = theta_eval

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Any]:
        """λ/2 |w - θ|², with θ the inner solution on this batch."""
        w = {name: value.detach() for name, value in self.local_params.items()}
        theta, task = self.solve(w, self.first_theta(w, batch_idx), batch)
        return {"loss": self.prox / 2 * sq_norm(subtract(self.local_params, theta)), "task": task, "personal": theta}

    def first_theta(self, w: Params, batch_idx: int | Tensor) -> Params:
        """w in the first local round, else the last θ."""
        if self.inner_start == "w":
            return w
        last = self.kept("personal")
        if isinstance(batch_idx, int):  # a number on the host: decide here
            return w if batch_idx == 0 else last
        return {name: torch.where(batch_idx == 0, w[name], value) for name, value in last.items()}

    def solve(self, w: Params, theta: Params, batch: Batch) -> tuple[Params, Tensor]:
        """Gradient steps on f_i(θ; D) + λ/2 |θ - w|²; also the task loss where the last gradient was taken."""
        previous = theta
        for _ in range(self.inner_steps if self.inner_nu is None else MOST_INNER_STEPS):
            point = self.ahead(theta, previous)
            slope, task = self.task_grad_and_loss(point, batch)
            slope = {name: slope[name] + self.prox * (point[name] - w[name]) for name in point}
            moved = {name: value - self.personal_lr * slope[name] for name, value in point.items()}
            if (nu := self.inner_nu) is not None:  # once the slope is small, the point and the slope stay as they are
                moved, theta = unless_small(slope, nu, moved, theta), unless_small(slope, nu, theta, previous)
            previous, theta = theta, moved
        return {name: value.detach() for name, value in theta.items()}, task

    def ahead(self, theta: Params, previous: Params) -> Params:
        """The point at which Nesterov's descent takes its gradient; θ itself without momentum."""
        if self.inner_momentum == 0:
            return theta
        return {name: value + self.inner_momentum * (value - previous[name]) for name, value in theta.items()}

    def select(self, selection: Selection, population: int, generator: np.random.Generator) -> Selection:
        """With `train_all`, all clients train and the drawn ones report."""
        return Selection(list(range(population)), selection.report) if self.train_all else selection

    def not_compilable(self) -> str | None:
        """A hundred steps inside a step would take minutes to compile."""
        return None if self.inner_nu is None else "model.inner_nu asks for up to 100 inner steps, too many to compile"

    def state_spec(self) -> StateSpec:
        """θ_i."""
        return {"personal": RECEIVED}

    def carried_states(self) -> tuple[str, ...]:
        """θ, from which the next local round starts."""
        return ("personal",)

    def personal_model(self) -> Personal:
        """θ_i, or w_i."""
        return Personal("personal" if self.theta_eval == "theta" else "local")

    def newcomer(self) -> Newcomer:
        """θ(z): the inner solves alone, while w stays at z."""
        stays = Phase("inner", lr=0.0)
        return Newcomer(self.personal_model(), (stays,) if self.theta_eval == "theta" else tuple(self.phases()))


def unless_small(slope: Params, limit: float, moved: Params, theta: Params) -> Params:
    """`moved`, or `theta` where the slope is already small enough."""
    large = sq_norm(slope) > limit**2
    return {name: torch.where(large, moved[name], theta[name]) for name in theta}
