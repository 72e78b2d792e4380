"""Laws of the optimisers of several servers that step together: each is left as if it had stepped by itself."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit.server.optimizers import SGD, FedAdagrad, FedAdam, FedAvgM, FedYogi, saved, step_all

Build = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

BUILDS: dict[str, Build] = {
    **{type(rule).__name__: rule.build for rule in (SGD(0.5), FedAvgM(0.5), FedAdam(), FedYogi(), FedAdagrad())},
    "Nesterov": FedAvgM(nesterov=True).build,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "RMSprop": torch.optim.RMSprop,
}
SERVERS = 3


def parameters() -> list[list[nn.Parameter]]:
    """A weight and a bias of each server."""
    rng = np.random.default_rng(5)
    return [
        [nn.Parameter(torch.from_numpy(rng.normal(size=shape))) for shape in ((4, 3), (4,))] for _ in range(SERVERS)
    ]


def events() -> list[list[int]]:
    """Who steps together: not always the same, so that some have a longer past than others."""
    return [[0, 1], [0, 1, 2], [2], [1, 2], [0, 1, 2]]


def play(build: Build, step: Callable[[list[torch.optim.Optimizer]], Any], lrs: list[float] | None = None) -> list[Any]:
    """All parameters and states after some events."""
    params, rng = parameters(), np.random.default_rng(7)
    optimizers = [build(own) for own in params]
    for optimizer, lr in zip(optimizers, lrs or [], strict=False):
        optimizer.param_groups[0]["lr"] = lr
    for due in events():
        for z in (z for k in due for z in params[k]):
            z.grad = torch.from_numpy(rng.normal(size=z.shape))
        step([optimizers[k] for k in due])
    return [params, [optimizer.state_dict() for optimizer in optimizers]]


def one_by_one(optimizers: list[torch.optim.Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.step()


def flat(value: Any) -> list[Any]:
    """Numbers and tensors as lists, in order."""
    if isinstance(value, dict):
        return [[key, *flat(held)] for key, held in value.items()]
    if isinstance(value, list):
        return [flat(held) for held in value]
    return [value.tolist() if isinstance(value, Tensor) else value]


@pytest.mark.parametrize("name", list(BUILDS))
def test_optimisers_that_step_together_end_with_the_bits_of_each_alone(name: str) -> None:
    assert flat(play(BUILDS[name], step_all)) == flat(play(BUILDS[name], one_by_one))


@pytest.mark.parametrize("name", list(BUILDS))
def test_what_is_saved_is_a_copy_of_the_state_dict(name: str) -> None:
    [own, *_] = parameters()
    optimizer = BUILDS[name](own)
    for _ in range(2):
        for z in own:
            z.grad = torch.ones_like(z)
        kept, told = saved(optimizer), optimizer.state_dict()
        state = flat(told["state"])
        assert kept["param_groups"] == told["param_groups"]
        optimizer.step()
        assert flat(kept["state"]) == state


@pytest.mark.parametrize("name", ["SGD", "FedAvgM", "Adam"])
def test_each_steps_with_the_options_of_its_own_group(name: str) -> None:
    together, alone = (play(BUILDS[name], step, lrs=[0.1, 0.2, 0.3]) for step in (step_all, one_by_one))
    assert flat(together) == flat(alone) != flat(play(BUILDS[name], step_all))


def test_a_hook_on_a_servers_optimiser_is_called_with_that_optimiser() -> None:
    params, called = parameters(), list[Any]()
    optimizers = [SGD().build(own) for own in params]
    optimizers[1].register_step_post_hook(lambda optimizer, args, kwargs: called.append(optimizer))
    for z in (z for own in params for z in own):
        z.grad = z.detach().clone()
    step_all(optimizers)
    assert called == [optimizers[1]]
    assert not any(z.any() for own in params for z in own)


def test_a_rate_that_torch_schedules_is_taken_without_a_warning() -> None:
    """torch warns of a schedule whose optimiser has not stepped."""
    params = parameters()
    optimizers = [SGD().build(own) for own in params]
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizers[2], gamma=0.5)
    for z in (z for own in params for z in own):
        z.grad = torch.ones_like(z)
    step_all(optimizers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()
    before = [own[0].detach().clone() for own in params]
    step_all(optimizers)
    ways = [float((was - own[0].detach()).max()) for was, own in zip(before, params, strict=True)]
    assert ways == pytest.approx([1, 1, 0.5])
