"""The parts of a net: which tensors are trained and which are frozen; parts by name or pattern; the input of a module.

Everything that is stacked, sent, averaged, kept for a client or counted takes its tensors from here. A parameter is
trained if it requires a gradient. A buffer is trained if any parameter of its own module is. A module without
parameters looks to the nearest module around it that has some: its buffers are trained if all of those are, since a
frozen one means that the module stands inside a frozen part. What is not trained is frozen: the same for everybody, and
never changed by a run.
"""

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedlit.errors import ConfigError, nearest, require
from fedlit.inputs import Inputs, call
from fedlit.params import Params

_SHOWN = 12
"""How many names an error lists at most."""


# ---- trained and frozen ----------------------------------------------------------------------------------------------


def trained_params(net: nn.Module) -> Params:
    """The parameters that are trained, by name."""
    return {name: value for name, value in net.named_parameters() if value.requires_grad}


def trained_buffers(net: nn.Module) -> Params:
    """The buffers that training changes, such as running statistics; servers average them."""
    frozen = _modules_with_frozen_buffers(net)
    return {name: value for name, value in net.named_buffers() if name.rpartition(".")[0] not in frozen}


def trained(net: nn.Module) -> Params:
    """The model that clients train and a server averages: parameters, then buffers."""
    return trained_params(net) | trained_buffers(net)


def frozen(net: nn.Module) -> Params:
    """All other parameters and buffers: part of the net, and the same for everybody."""
    part = trained(net)
    return {name: value for name, value in _named(net) if name not in part}


def trained_state(net: nn.Module) -> Params:
    """The trained part of the net's state dict, in which a tensor may have several names."""
    part = {id(value) for value in trained(net).values()}
    names = {name for name, value in _named(net, every_name=True) if id(value) in part}
    return {name: value for name, value in net.state_dict().items() if name in names}


def frozen_state(net: nn.Module) -> Params:
    """The rest of the net's state dict."""
    part = trained_state(net)
    return {name: value for name, value in net.state_dict().items() if name not in part}


def begin_training(net: nn.Module) -> None:
    """Put the net into training mode, except layers that normalise by frozen statistics."""
    net.train()
    frozen = _modules_with_frozen_buffers(net)
    for name, module in net.named_modules():
        if name in frozen and isinstance(module, _NormBase):
            module.eval()


def batch_norms(net: nn.Module) -> list[nn.Module]:
    """The BatchNorm layers that normalise by the statistics of a batch while the net is trained."""
    frozen = _modules_with_frozen_buffers(net)
    return [module for name, module in net.named_modules() if isinstance(module, _BatchNorm) and name not in frozen]


def freeze_but(net: nn.Module, train: str | Sequence[str], key: str) -> None:
    """Let the parameters of these parts require a gradient, and no others; `key` is the option, for errors."""
    parts = [train] if isinstance(train, str) else [*train]
    require(len(parts) > 0, f"{key} is an empty list, so nothing would be trained. Name a part of the net.")
    for part in parts:
        check_part(net, part, key)
    every_name = [*net.named_parameters(remove_duplicate=False)]
    chosen = {id(value) for name, value in every_name if any(_is_in(name, part) for part in parts)}
    for value in net.parameters():
        value.requires_grad_(id(value) in chosen)


def _named(net: nn.Module, *, every_name: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a net; a tensor that modules share has one name, or every name."""
    yield from net.named_parameters(remove_duplicate=not every_name)
    yield from net.named_buffers(remove_duplicate=not every_name)


def _modules_with_frozen_buffers(net: nn.Module) -> set[str]:
    """Names of the modules whose own buffers are frozen."""
    modules = {name: module for name, module in net.named_modules() if any(True for _ in module.buffers(recurse=False))}
    return {name for name, module in modules.items() if not _has_trained_buffers(net, name, module)}


def _has_trained_buffers(net: nn.Module, name: str, module: nn.Module) -> bool:
    """Whether the buffers of a module's own are trained."""
    own = [value.requires_grad for value in module.parameters(recurse=False)]
    if own:
        return any(own)
    for enclosing in [*_wholes(name), ""]:
        flags = [value.requires_grad for value in net.get_submodule(enclosing).parameters()]
        if flags:
            return all(flags)
    return True


# ---- parts by name ---------------------------------------------------------------------------------------------------


def parameters_of(net: nn.Module, part: str | None) -> list[str]:
    """Names of the trained parameters of a part (None: of the whole net), in its order; an unknown part has none."""
    return [name for name in trained_params(net) if part is None or _is_in(name, part)]


def check_trained_part(net: nn.Module, part: str | None, key: str) -> None:
    """ConfigError, with the key of the option, if no trained parameter belongs to the part."""
    if parameters_of(net, part):
        return
    check_part(net, part, key)
    raise ConfigError(
        f"{key} is '{part}', but that part of model.net ({type(net).__name__}) is frozen: none of its parameters is "
        f"trained. Choose a part that is, such as {listed(trained_params(net), 3)}, or add it to model.train."
    )


def check_part(net: nn.Module, part: str | None, key: str) -> None:
    """ConfigError, with the key of the option, if no parameter belongs to the part."""
    names = [name for name, _ in net.named_parameters(remove_duplicate=False)]
    if any(part is None or _is_in(name, part) for name in names):
        return
    known = list(dict.fromkeys(whole for name in names for whole in reversed(_wholes(name))))
    raise ConfigError(
        f"{key} is '{part}', but no parameter of model.net ({type(net).__name__}) belongs to it. "
        f"{nearest(part or '', known)}Give the name of a module or a parameter, or a pattern with *. Names: "
        f"{listed(known, _SHOWN)}."
    )


def _is_in(name: str, part: str) -> bool:
    return any(fnmatchcase(whole, part) for whole in _wholes(name))


def _wholes(name: str) -> list[str]:
    """A parameter and the modules around it: a.b.weight, a.b, a."""
    words = name.split(".")
    return [".".join(words[:count]) for count in range(len(words), 0, -1)]


def listed(names: Collection[str], most: int) -> str:
    """The first names, and whether there are more."""
    return ", ".join([*names][:most]) + (", …" if len(names) > most else "")


def input_of(net: nn.Module, module: str, x: Inputs) -> Tensor:
    """What enters a module when the net is called with x: features, if it is the last layer."""
    entered: list[Tensor] = []
    hook = net.get_submodule(module).register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    try:
        call(net, x)
    finally:
        hook.remove()
    return entered[0]
