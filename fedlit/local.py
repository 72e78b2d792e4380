"""Local optimisers as pure functions: tensors in, tensors out, so that every engine can run them.

`init` makes the state before the first step, `point` is where the gradient is taken, `step` applies it. All three see
ONE client: parameters have the shapes that they have in the net, whatever the engine. The state is a dict of tensors
with fixed shapes, of any names; the engine stacks it over the clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from fedlit.errors import require
from fedlit.params import Params, row, scale, sq_norm, stack


class LocalOptimizer(Protocol):
    """What an engine asks of a local optimiser, for one client; it must be hashable (a frozen dataclass is)."""

    def init(self, params: Params) -> Params:
        """The state before the first step of a client that starts from these parameters."""

    def point(self, params: Params, state: Params) -> Params:
        """Where the gradient is taken."""

    def step(self, params: Params, grads: Params, state: Params, lr: float | torch.Tensor) -> tuple[Params, Params]:
        """One step; returns (parameters, state)."""


def initial_memory(optimizer: LocalOptimizer, start: Params) -> Params:
    """Stacked: the state of every client before its first step, for the stacked models from which they start."""
    clients = len(next(iter(start.values())))
    return stack([optimizer.init(row(start, k)) for k in range(clients)])


@dataclass(frozen=True)
class LocalSGD:
    """SGD with heavy-ball momentum, as torch.optim.SGD: v <- m v + g, x <- x - lr v, with v = 0 at the start.

    The gradient is clipped first and the weight decay added afterwards, as `clip_grad_norm_` followed by
    `torch.optim.SGD(weight_decay=…)` does.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None

    def init(self, params: Params) -> Params:
        """The state before the first step."""
        return {name: torch.zeros_like(value) for name, value in params.items()} if self.momentum else {}

    def point(self, params: Params, state: Params) -> Params:
        """Where the gradient is taken: at the parameters themselves."""
        return params

    def step(self, params: Params, grads: Params, state: Params, lr: float | torch.Tensor) -> tuple[Params, Params]:
        """One step; returns (parameters, state)."""
        if self.clip is not None:
            grads = clip_by_norm(grads, self.clip)
        if self.weight_decay:
            grads = {name: grads[name] + self.weight_decay * params[name] for name in params}
        if self.momentum:
            state = grads = {name: self.momentum * state[name] + grads[name] for name in params}
        return {name: params[name] - lr * grads[name] for name in params}, state


def clip_by_norm(grads: Params, limit: float) -> Params:
    """Scale so that the norm over all tensors is at most `limit`; the 1e-6 is torch's own."""
    return scale(grads, (limit / (sq_norm(grads).sqrt() + 1e-6)).clamp(max=1.0))


@dataclass(frozen=True)
class ExtrapolatedSGD:
    """Accelerated stochastic projected gradient (FedBCD's ASPG): e = x + ζ (x - x_prev), x <- P[e - lr g(e)].

    The state is x_prev, the iterate before the last; it starts at x.
    """

    extrapolation: float = 0.0
    box: float | None = None
    """P clips every number to [-box, box]; None projects on nothing."""

    def init(self, params: Params) -> Params:
        """x_prev = x."""
        return {name: value.clone() for name, value in params.items()}

    def point(self, params: Params, state: Params) -> Params:
        """e, the extrapolated point."""
        return {name: params[name] + self.extrapolation * (params[name] - state[name]) for name in params}

    def step(self, params: Params, grads: Params, state: Params, lr: float | torch.Tensor) -> tuple[Params, Params]:
        """From e, not from x; the projection comes last."""
        moved = {name: value - lr * grads[name] for name, value in self.point(params, state).items()}
        if self.box is not None:
            moved = {name: value.clamp(-self.box, self.box) for name, value in moved.items()}
        return moved, params


def make_optimizer(
    kind: Literal["sgd", "aspg"],
    momentum: float,
    weight_decay: float,
    clip: float | None,
    extrapolation: float,
    box: float | None,
) -> LocalOptimizer:
    """The local optimiser that a client's options ask for; options of the other kind are refused."""
    require(kind in ("sgd", "aspg"), f"model.optimizer is '{kind}'; give sgd or aspg.")
    of_sgd = {"momentum": momentum, "weight_decay": weight_decay, "clip": clip}
    of_aspg = {"extrapolation": extrapolation, "box": box}
    if kind == "sgd":
        require(
            not any(of_aspg.values()),
            f"{_named(of_aspg)}, but model.optimizer is 'sgd', whose steps neither extrapolate nor project. Set "
            "optimizer to aspg, or extrapolation to 0 and box to null.",
        )
        return LocalSGD(momentum, weight_decay, clip)
    require(
        not any(of_sgd.values()),
        f"{_named(of_sgd)}, but model.optimizer is 'aspg', whose steps extrapolate and project; momentum, weight_decay "
        "and clip are not part of them. Leave them out and give extrapolation and box, or set optimizer to sgd.",
    )
    return ExtrapolatedSGD(extrapolation, box)


def _named(options: Mapping[str, float | None]) -> str:
    """`model.box is 2.0`, for the first option that is set."""
    return next((f"model.{name} is {value}" for name, value in options.items() if value), "")
