"""Initial weights from the run's seed, whenever the net was built: the same script gives the same numbers.

A Lightning user usually builds the net before the trainer, and so before anything is seeded. Its modules therefore draw
their weights again from the seed (`reset_parameters`, which torch's own layers have), in the order in which they were
built. A net whose weights were made in another way, for example by training, is refused and not overwritten.

A net that a run has trained carries a mark, and so do its copies. Any other net is recognised by its numbers: constants
that `reset_parameters` does not give, another mean or spread, or numbers beyond the ends of the uniform distribution
from which most of torch's layers draw (a few training steps leave it). Weights that were drawn from a normal
distribution and trained a little outside of fedlit look like fresh ones.

Frozen weights are what the net brings: they are not drawn.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from math import log, sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from fedlit.client.net_parts import frozen, trained, trained_params
from fedlit.client.row_layout import as_bytes
from fedlit.errors import ConfigError
from fedlit.params import Params, clone, copy_into
from fedlit.recorded import TRAINED_AS

InitialWeights = Literal["seed", "net"]

_FEWEST = 8
"""Fewest numbers of a tensor whose spread is compared."""

_DRAWS, _NUMBERS = 32, 2**16
"""How often a net is drawn at most, and after how many numbers a large net is not drawn again."""
_ENOUGH = 512
"""Fewest numbers that show whether a distribution is uniform."""

_HOW = (
    "Set trainer.initial_weights to 'net' to keep what the net brings; where that should follow from the seed, build "
    "the net after the FederatedTrainer, which sets it."
)


def draw_initial_weights(net: nn.Module, seed: int, given: Collection[str] = ()) -> list[str]:
    """Let every module draw its trained weights again, from the seed; ConfigError if they were made in another way.

    Frozen weights, and those that were `given`, stay as they are. Returns the names of the parameters that were drawn.
    """
    name, before = type(net).__name__, clone(trained(net) | frozen(net))
    names = [key for key in trained(net) if key not in given]
    params = [key for key in trained_params(net) if key in names]
    if not params:
        return []
    check_not_trained(net)
    drawable = [module for module in as_built(net) if reset_method(module) is not None]
    reached = {id(value) for module in drawable for value in module.parameters()}
    missed = [key for key, value in trained_params(net).items() if key in names and id(value) not in reached]
    if missed:
        raise ConfigError(
            f"The seed cannot decide the initial weights of model.net ({name}): '{missed[0]}' belongs to "
            f"no module with a method reset_parameters(), so it cannot be drawn again. Write that method, or: {_HOW}"
        )
    draws = repeated_draws(net, drawable, seed)
    copy_into(net, {key: value for key, value in before.items() if key not in names})
    unlike = [key for key in names if not alike(before[key], [drawn[key] for drawn in draws])]
    if unlike:
        copy_into(net, before)
        raise ConfigError(
            f"The seed cannot decide the initial weights of model.net ({name}): '{unlike[0]}' is not what "
            "reset_parameters() draws. The net has an initialisation of its own, which should be that method, or "
            f"weights that were trained. {_HOW}"
        )
    return params


def mark_trained(net: nn.Module) -> None:
    """Store a fingerprint of the trained weights on the net; copies of the net carry it too."""
    vars(net)[TRAINED_AS] = weights_print(net)


def check_not_trained(net: nn.Module) -> None:
    """ConfigError for a net, or a copy of one, that still has the weights with which a run left it."""
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


def repeated_draws(net: nn.Module, drawable: list[nn.Module], seed: int) -> list[Params]:
    """Weights that the modules draw, several times. The last draw is that of the seed, and stays in the net."""
    count = max(1, min(_DRAWS, _NUMBERS // (1 + sum(value.numel() for value in net.parameters()))))
    draws = []
    on_host = all(value.device.type == "cpu" for value in net.parameters())
    set_seed = torch.default_generator.manual_seed if on_host else torch.manual_seed  # every device's: 0.7 ms a call
    with torch.random.fork_rng(devices=[]):
        for number in range(count):
            set_seed(seed + count - 1 - number)
            for module in drawable:
                reset_method(module)()  # type: ignore[misc]  # `drawable` are those that have one
            draws.append(clone(trained(net)))
    return draws


def reset_method(module: nn.Module) -> Callable[[], None] | None:
    """The method with which a module draws its weights, if it has one; that of torch's attention is private.

    A layer of peft draws its adapter after its parts, which are plain layers, have drawn theirs.
    """
    if hasattr(module, "reset_lora_parameters"):
        return partial(_reset_adapters, module)
    return getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))


def _reset_adapters(layer: nn.Module) -> None:
    for name in layer.lora_A:  # type: ignore[union-attr]  # of peft's layers
        layer.reset_lora_parameters(name, True)  # type: ignore[operator]


def as_built(module: nn.Module) -> Iterator[nn.Module]:
    """Every module after its children, which is the order in which constructors end."""
    for child in module.children():
        yield from as_built(child)
    yield module


def alike(tensor: Tensor, draws: list[Tensor]) -> bool:
    """Whether a tensor could be one of these draws: the same constant, or the same mean, spread and ends.

    Means or spreads that are five standard errors apart are different. A tensor of a few numbers always passes.
    """
    drawn = draws[-1]
    if not tensor.is_floating_point() or tensor.numel() < _FEWEST:
        return torch.equal(tensor, drawn) or tensor.is_floating_point()
    (spread, centre), (other_spread, other_centre) = (torch.std_mean(value.double()) for value in (tensor, drawn))
    if min(spread, other_spread) == 0:
        return torch.equal(tensor, drawn)
    error = 5 * sqrt(2 / tensor.numel())
    is_near = abs(log(spread / other_spread)) < error and abs(float(centre - other_centre)) < error * float(spread)
    return is_near and within_ends(tensor.double(), torch.stack(draws).double())


def within_ends(tensor: Tensor, draws: Tensor) -> bool:
    """Whether a tensor lies within the ends of the uniform distribution of these draws; True if they are not uniform.

    The largest of n draws is below the upper end by more than 25/n of the width with a probability of e^-25.
    """
    low, high = (float(end) for end in torch.aminmax(draws))
    width, count = high - low, draws.numel()
    is_uniform = abs(float(draws.std()) / width * sqrt(12) - 1) < 5 * sqrt(0.2 / count)
    if count < _ENOUGH or not is_uniform:
        return True
    slack = width * (25 / count + 1e-6)  # 1e-6 for rounding
    return low - slack <= float(tensor.min()) and float(tensor.max()) <= high + slack
