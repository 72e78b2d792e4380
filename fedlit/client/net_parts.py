"""Parts of a net by name: a module, a parameter, or what a pattern with * matches; and what enters a module."""

from fnmatch import fnmatchcase

from torch import Tensor, nn

from fedlit.errors import ConfigError, nearest
from fedlit.inputs import Inputs, call

_SHOWN = 12
"""Most names that an error lists."""


def parameters_of(net: nn.Module, part: str | None) -> list[str]:
    """Names of the parameters of a part of the net, in the net's order; of all for None. An unknown part gives none."""
    names = [name for name, _ in net.named_parameters()]
    return [name for name in names if part is None or any(fnmatchcase(whole, part) for whole in _wholes(name))]


def check_part(net: nn.Module, part: str | None, key: str) -> None:
    """ConfigError, with the key of the option, if no parameter belongs to the part."""
    if parameters_of(net, part):
        return
    wholes = [whole for name, _ in net.named_parameters() for whole in reversed(_wholes(name))]
    known = list(dict.fromkeys(wholes))
    more = ", …" if len(known) > _SHOWN else ""
    raise ConfigError(
        f"{key} is '{part}', but no parameter of model.net ({type(net).__name__}) belongs to it. "
        f"{nearest(part or '', known)}Give the name of a module or a parameter, or a pattern with *. Names: "
        f"{', '.join(known[:_SHOWN])}{more}."
    )


def _wholes(name: str) -> list[str]:
    """A parameter and the modules around it: a.b.weight, a.b, a."""
    words = name.split(".")
    return [".".join(words[:count]) for count in range(len(words), 0, -1)]


def input_of(net: nn.Module, module: str, x: Inputs) -> Tensor:
    """What enters a module when the net is called with x: features, if it is the last layer."""
    entered: list[Tensor] = []
    hook = net.get_submodule(module).register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    try:
        call(net, x)
    finally:
        hook.remove()
    return entered[0]
