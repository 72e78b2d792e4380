"""Initial weights from the run's seed, whenever the net was built: the same script gives the same numbers.

In Lightning's usual order the net is built before the trainer, so its weights come from a stream that no seed governs.
Its modules draw them again from the seed (`reset_parameters`, which torch's own layers have), in the order in which
they were built. A net whose weights were made in another way (trained, say) is refused rather than spoilt.

How that is known: a run marks the net that it has trained, and its copies have the mark too. Of other nets the numbers
tell: constants that are not those of `reset_parameters`, numbers beyond the ends of a uniform distribution, which is
what most of torch's layers draw and a few steps of training leave, and another mean or spread. Weights that are drawn
from a normal distribution and were trained a little elsewhere cannot be told from fresh ones.
"""

import hashlib
from collections.abc import Callable, Iterator
from math import log, sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from fedlit.client.row_layout import as_bytes
from fedlit.errors import ConfigError
from fedlit.params import Params, clone, copy_into
from fedlit.recorded import TRAINED_AS

InitialWeights = Literal["seed", "net"]

_FEWEST = 8
"""Numbers from which on a tensor's spread tells anything."""

_DRAWS, _NUMBERS = 32, 2**16
"""How often a net is drawn, at most, to know what it draws; of a large one so many numbers are enough."""
_ENOUGH = 512
"""Numbers that tell a uniform distribution from others."""

_HOW = (
    "Set trainer.initial_weights to 'net' to keep what the net brings; where that should follow from the seed, build "
    "the net after the FederatedTrainer, which sets it."
)


def draw_initial_weights(net: nn.Module, seed: int) -> None:
    """Let every module draw its weights again, from the seed; ConfigError where that would not give such a net."""
    name, before = type(net).__name__, clone(net.state_dict())
    check_not_trained(net)
    able = [module for module in as_built(net) if drawing(module) is not None]
    reached = {id(value) for module in able for value in module.parameters()}
    silent = [key for key, value in net.named_parameters() if id(value) not in reached]
    if silent:
        raise ConfigError(
            f"The seed cannot decide the initial weights of model.net ({name}): '{silent[0]}' belongs to "
            f"no module with a method reset_parameters(), so it cannot be drawn again. Write that method, or: {_HOW}"
        )
    draws = drawn_often(net, able, seed)
    other = [key for key, value in before.items() if not alike(value, [drawn[key] for drawn in draws])]
    if other:
        copy_into(net, before)
        raise ConfigError(
            f"The seed cannot decide the initial weights of model.net ({name}): '{other[0]}' is not what "
            "reset_parameters() draws. The net has an initialisation of its own, which should be that method, or "
            f"weights that were trained. {_HOW}"
        )


def mark_trained(net: nn.Module) -> None:
    """Let the net, and copies of it, carry a fingerprint of the weights that a run has left."""
    vars(net)[TRAINED_AS] = weights_print(net)


def check_not_trained(net: nn.Module) -> None:
    """ConfigError for a net with the weights that a run left in it, or in the net that it is a copy of."""
    if vars(net).get(TRAINED_AS) == weights_print(net):
        raise ConfigError(
            f"model.net ({type(net).__name__}) was trained by a run before, and drawing its initial weights from the "
            "seed would throw that away. Build a new net for a new run; set trainer.initial_weights to 'net' to begin "
            "with these weights; or continue the run itself with resume=True and its folder."
        )


def weights_print(net: nn.Module) -> str:
    """A fingerprint of all numbers of a net, in one floating-point type."""
    content = hashlib.sha256()
    for value in net.state_dict().values():
        plain = value.detach().cpu()
        content.update(as_bytes(plain.float() if plain.is_floating_point() else plain).numpy().data)
    return content.hexdigest()[:16]


def drawn_often(net: nn.Module, able: list[nn.Module], seed: int) -> list[Params]:
    """What the modules draw, several times; the last is that of the seed, and stays in the net."""
    often = max(1, min(_DRAWS, _NUMBERS // (1 + sum(value.numel() for value in net.parameters()))))
    draws = []
    with torch.random.fork_rng(devices=[]):
        for number in range(often):
            torch.manual_seed(seed + often - 1 - number)
            for module in able:
                drawing(module)()  # type: ignore[misc]  # `able` are those that have one
            draws.append(clone(net.state_dict()))
    return draws


def drawing(module: nn.Module) -> Callable[[], None] | None:
    """The method with which a module draws its weights, if it has one; torch's attention hides its own."""
    return getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))


def as_built(module: nn.Module) -> Iterator[nn.Module]:
    """Every module after its children: the order in which constructors end."""
    for child in module.children():
        yield from as_built(child)
    yield module


def alike(had: Tensor, draws: list[Tensor]) -> bool:
    """Whether a tensor could be one of these draws: the same constant, or the same mean, spread and ends.

    Five standard errors apart is different; a few numbers tell little, and pass.
    """
    drawn = draws[-1]
    if not had.is_floating_point() or had.numel() < _FEWEST:
        return torch.equal(had, drawn) or had.is_floating_point()
    (spread, centre), (other_spread, other_centre) = (torch.std_mean(value.double()) for value in (had, drawn))
    if min(spread, other_spread) == 0:
        return torch.equal(had, drawn)
    error = 5 * sqrt(2 / had.numel())
    is_near = abs(log(spread / other_spread)) < error and abs(float(centre - other_centre)) < error * float(spread)
    return is_near and within_ends(had.double(), torch.stack(draws).double())


def within_ends(had: Tensor, draws: Tensor) -> bool:
    """Whether all numbers of a tensor lie where a uniform distribution, if these are draws from one, has its own.

    The largest of n draws is short of the end by 25/n of the width with a probability of e^-25.
    """
    low, high = (float(end) for end in torch.aminmax(draws))
    width, count = high - low, draws.numel()
    is_uniform = abs(float(draws.std()) / width * sqrt(12) - 1) < 5 * sqrt(0.2 / count)
    if count < _ENOUGH or not is_uniform:
        return True
    slack = width * (25 / count + 1e-6)  # and what rounding adds
    return low - slack <= float(had.min()) and float(had.max()) <= high + slack
