"""Local optimisers as pure functions: tensors in, tensors out, so that every engine can run them.

`init` makes the state before the first step, `point` gives the point at which the gradient is taken, `step` applies it.
All three see ONE client: in every engine, parameters have the shapes that they have in the net. The state is a dict of
tensors with any names and fixed shapes; the engine stacks it over the clients.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch

from fedlit.errors import ConfigError, require
from fedlit.params import Params, at_least_float32, clone, row, scale, sq_norm, stack, under_prefix, with_prefix


class LocalOptimizer(Protocol):
    """What an engine calls of a local optimiser, for one client. It must be hashable, as a frozen dataclass is."""

    def init(self, params: Params) -> Params:
        """The state before the first step of a client that starts from these parameters."""

    def point(self, params: Params, state: Params) -> Params:
        """The point at which the gradient is taken."""

    def step(self, params: Params, grads: Params, state: Params, lr: float | torch.Tensor) -> tuple[Params, Params]:
        """One step; returns (parameters, state)."""


def initial_optimizer_state(optimizer: LocalOptimizer, start: Params) -> Params:
    """Stacked: the state of every client before its first step, for the stacked models from which they start."""
    first = optimizer.init(row(start, 0))
    if not first:
        return {}
    clients = len(next(iter(start.values())))
    return stack([first, *(optimizer.init(row(start, k)) for k in range(1, clients))])


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
        """One step from e, not from x, and then the projection; returns (parameters, state)."""
        moved = {name: value - lr * grads[name] for name, value in self.point(params, state).items()}
        if self.box is not None:
            moved = {name: value.clamp(-self.box, self.box) for name, value in moved.items()}
        return moved, params


@dataclass(frozen=True)
class LocalAdam:
    """Adam as torch.optim.Adam: m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g², x <- x - lr m̂ / (sqrt(v̂) + eps).

    m̂ = m / (1 - b1^t) and v̂ = v / (1 - b2^t) after t steps. The gradient is clipped first. The state is m, v and t.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    decoupled: bool = False
    """Whether the weight decay shortens the parameters themselves (AdamW) instead of entering the gradient (Adam)."""

    def init(self, params: Params) -> Params:
        """m, v and t."""
        zeros = {name: torch.zeros_like(value) for name, value in params.items()}
        like = next(iter(params.values()))
        count = like.new_zeros((), dtype=at_least_float32(like.dtype))
        return {**with_prefix("first", zeros), **with_prefix("second", clone(zeros)), "steps": count}

    def point(self, params: Params, state: Params) -> Params:
        """Where the gradient is taken: at the parameters themselves."""
        return params

    def step(self, params: Params, grads: Params, state: Params, lr: float | torch.Tensor) -> tuple[Params, Params]:
        """One step; returns (parameters, state)."""
        if self.clip is not None:
            grads = clip_by_norm(grads, self.clip)
        if self.weight_decay and self.decoupled:
            params = {name: value - lr * self.weight_decay * value for name, value in params.items()}
        elif self.weight_decay:
            grads = {name: grads[name] + self.weight_decay * params[name] for name in params}
        (b1, b2), steps = self.betas, state["steps"] + 1
        m = {name: b1 * value + (1 - b1) * grads[name] for name, value in under_prefix("first", state).items()}
        v = {name: b2 * value + (1 - b2) * grads[name] ** 2 for name, value in under_prefix("second", state).items()}
        like = next(iter(params.values()))
        seen1, seen2 = (bias_correction(beta, steps).to(like.dtype) for beta in self.betas)
        moved = {
            name: value - lr * (m[name] / seen1) / ((v[name] / seen2).sqrt() + self.eps)
            for name, value in params.items()
        }
        return moved, {**with_prefix("first", m), **with_prefix("second", v), "steps": steps}


def bias_correction(beta: float, steps: torch.Tensor) -> torch.Tensor:
    """1 - beta^steps, computed without cancellation: in float32 it would lose digits for beta near 1."""
    return -torch.expm1(steps * (math.log(beta) if beta else -math.inf))


LocalKind = Literal["sgd", "adam", "adamw", "aspg"]
"""Values of the option `optimizer`."""
_OF_ADAM = ("betas", "eps", "weight_decay", "clip")
_KINDS: dict[str, tuple[Callable[..., LocalOptimizer], tuple[str, ...]]] = {
    "sgd": (LocalSGD, ("momentum", "weight_decay", "clip")),
    "adam": (LocalAdam, _OF_ADAM),
    "adamw": (partial(LocalAdam, decoupled=True), _OF_ADAM),
    "aspg": (ExtrapolatedSGD, ("extrapolation", "box")),
}
"""By kind: what makes the optimiser, and the options that it takes."""
OPTION_DEFAULTS: dict[str, Any] = {
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clip": None,
    "extrapolation": 0.0,
    "box": None,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
}
"""Options of the local optimisers, each with its default, which has no effect."""


def make_optimizer(kind: str, options: Mapping[str, Any]) -> LocalOptimizer:
    """The local optimiser of a client's options (`OPTION_DEFAULTS`); those that this kind does not take are refused."""
    require(kind in _KINDS, f"model.optimizer is '{kind}'; give {_listed(_KINDS)}.")
    make, takes = _KINDS[kind]
    for name, value in options.items():
        if name in takes or value == OPTION_DEFAULTS[name]:
            continue
        others = [other for other, (_, names) in _KINDS.items() if name in names]
        unset = "null" if OPTION_DEFAULTS[name] is None else OPTION_DEFAULTS[name]
        raise ConfigError(
            f"model.{name} is {value}, but model.optimizer is '{kind}', whose steps know only {_listed(takes, 'and')}. "
            f"Set {name} to {unset}, or optimizer to {_listed(others)}.",
        )
    return make(**{name: options[name] for name in takes})


def _listed(words: Iterable[str], last: str = "or") -> str:
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end
