"""Initial weights from the run's seed, whenever the net was built: the same script gives the same numbers.

In Lightning's usual order the net is built before the trainer, so its weights come from a stream that no seed governs.
Its modules draw them again from the seed (`reset_parameters`, which torch's own layers have), in the order in which
they were built. A net whose weights were made in another way (trained, say) is refused rather than spoilt.
"""

from collections.abc import Callable, Iterator
from math import log, sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from fedlit.errors import ConfigError
from fedlit.params import clone, load

InitialWeights = Literal["seed", "net"]

_FEWEST = 8
"""Numbers from which on a tensor's spread tells anything."""

_HOW = (
    "Set trainer.initial_weights to 'net' to keep what the net brings; where that should follow from the seed, build "
    "the net after the FederatedTrainer, which sets it."
)


def draw_initial_weights(net: nn.Module, seed: int) -> None:
    """Let every module draw its weights again, from the seed; ConfigError where that would not give such a net."""
    name, before = type(net).__name__, clone(net.state_dict())
    able = [module for module in as_built(net) if drawing(module) is not None]
    reached = {id(value) for module in able for value in module.parameters()}
    silent = [key for key, value in net.named_parameters() if id(value) not in reached]
    if silent:
        raise ConfigError(
            f"The seed cannot decide the initial weights of model.net ({name}): '{silent[0]}' belongs to "
            f"no module with a method reset_parameters(), so it cannot be drawn again. Write that method, or: {_HOW}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in able:
            drawing(module)()  # type: ignore[misc]  # not None: looked up above
    other = [key for key, value in net.state_dict().items() if not alike(before[key], value)]
    if other:
        load(net, before)
        raise ConfigError(
            f"The seed cannot decide the initial weights of model.net ({name}): '{other[0]}' is not what "
            "reset_parameters() draws. The net has an initialisation of its own, which should be that method, or "
            f"weights that were trained. {_HOW}"
        )


def drawing(module: nn.Module) -> Callable[[], None] | None:
    """The method with which a module draws its weights, if it has one; torch's attention hides its own."""
    return getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))


def as_built(module: nn.Module) -> Iterator[nn.Module]:
    """Every module after its children: the order in which constructors end."""
    for child in module.children():
        yield from as_built(child)
    yield module


def alike(had: Tensor, drawn: Tensor) -> bool:
    """Whether two tensors could be draws from one distribution: the same constant, or the same mean and spread.

    Five standard errors apart is different; a few numbers tell little, and pass.
    """
    if not had.is_floating_point() or had.numel() < _FEWEST:
        return torch.equal(had, drawn) or had.is_floating_point()
    (spread, centre), (other_spread, other_centre) = (torch.std_mean(value.double()) for value in (had, drawn))
    if min(spread, other_spread) == 0:
        return torch.equal(had, drawn)
    error = 5 * sqrt(2 / had.numel())
    return abs(log(spread / other_spread)) < error and abs(float(centre - other_centre)) < error * float(spread)
