"""Any part of a run as plain data, for config.yaml of a run that Python started.

Runs that give different numbers must have different descriptions, and a reader must understand them: numbers, texts and
lists are written as they are, a part as its class and arguments, large data as a short hash with its shape. Objects
that cannot be described are refused, because two runs with different ones could not be told apart.
"""

import dataclasses
import functools
import hashlib
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from fedlit.client.net_parts import trained_params
from fedlit.errors import ConfigError
from fedlit.recorded import TRAINED_AS, ReadFromFile, Recorded, arguments_of
from fedlit.results.config_file import ATTRIBUTES, FROZEN
from fedlit.trainer import frozen_file
from fedlit.trainer.code_fingerprint import code_of, is_user_code, plain_attributes

LONGEST = 32
"""Longest list that is written out; a longer one becomes a hash."""
DEEPEST = 8
"""Most levels of objects within objects; a logger or a trainer would have no end."""
_AS_TEXT = (PurePath, timedelta, torch.dtype, torch.device)
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"_built_with", TRAINED_AS}
_OF_EVERY_LIGHTNING_MODULE = _OF_EVERY_MODULE | frozenset(vars(LightningModule()))
_OPTIONS = (str, int, float, NoneType, type, FunctionType, BuiltinFunctionType, functools.partial)

Description = dict[str, Any]


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A value as data that YAML can hold; `where` names it in errors."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, Tensor | np.ndarray):
        return array_text(value, where)
    if isinstance(value, Mapping):
        return {str(name): plain(one, f"{where}.{name}", depth + 1) for name, one in value.items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray):
        listed = [plain(one, where, depth + 1) for one in value]
        return shortened(listed if isinstance(value, Sequence) else sorted(listed, key=json.dumps))
    if isinstance(value, type | FunctionType):
        return f"{path_of(value)} {code_of(value)}" if is_user_code(value) else path_of(value)
    if isinstance(value, BuiltinFunctionType):
        return path_of(value)
    return describe_net(value, where) if isinstance(value, nn.Module) else describe(value, where, depth)


def describe(part: object, where: str, depth: int = 0) -> Description:
    """An object's class and arguments."""
    if depth > DEEPEST:
        raise ConfigError(refusal(where, f"holds objects within objects, more than {DEEPEST} deep"))
    content = {name: plain(value, f"{where}.{name}", depth + 1) for name, value in content_of(part, where).items()}
    return {**class_of(part), **attributes_of([part]), "init_args": content}


def content_of(part: object, where: str) -> dict[str, Any]:
    """The arguments of a recorded part or of one from a file, the fields of a dataclass, otherwise all attributes."""
    if isinstance(part, ReadFromFile):
        return part.known_by()
    if isinstance(part, Recorded):
        return arguments_of(part)
    if isinstance(part, functools.partial):
        return {"function": part.func, "args": part.args, **part.keywords}
    if isinstance(part, MethodType):
        return {"object": part.__self__, "method": part.__name__}
    if dataclasses.is_dataclass(part):
        return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    return vars(part) if hasattr(part, "__dict__") else {"content": pickled(part, where)}


def describe_net(net: nn.Module, where: str) -> Description:
    """A module's class, its arguments if it is fedlit's, its size, and a fingerprint of its layers."""
    built_with = describe(net, where)["init_args"] if isinstance(net, Recorded) else hyperparameters(net, where)
    count = sum(value.numel() for value in net.parameters())
    structure = digest("\n".join(structure_lines(net, where)).encode(), 8)
    known = {**class_of(net), **attributes_of(net.modules())}
    return {**known, "init_args": built_with, "parameters": count, "structure": structure, **parts_of(net)}


def hyperparameters(net: nn.Module, where: str) -> Description:
    """What a LightningModule has kept with save_hyperparameters."""
    kept = dict(net.hparams) if isinstance(net, LightningModule) else {}
    return {name: plain(value, f"{where}.{name}") for name, value in kept.items()}


def parts_of(net: nn.Module) -> Description:
    """Which parameters of a net are trained, and a fingerprint of the frozen ones; nothing if none is frozen."""
    rest = frozen_file.named(net) if any(not value.requires_grad for value in net.parameters()) else {}
    return {"trained": shortened([*trained_params(net)]), FROZEN: rest["sha256"]} if rest else {}


def structure_lines(net: nn.Module, where: str) -> list[str]:
    """Every module with its options, and every tensor with its shape.

    Values are included of buffers, except running statistics. The initial values of what is trained follow from the
    seed; frozen parameters have a fingerprint of their own. Floating-point dtypes follow from `trainer.precision`.
    """
    modules = [
        f"{name} {class_of(module)} {module.extra_repr()} {own_options(module, where)}"
        for name, module in net.named_modules()
    ]
    fixed = {name: value for name, value in net.named_buffers() if not name.endswith(_STATISTICS)}
    others = [
        f"{name} {tuple(value.shape)} {value.is_floating_point() or value.dtype}"
        for name, value in net.state_dict().items()
        if name not in fixed
    ]
    return (
        modules
        + others
        + [f"{name} {array_text(frozen_file.in_float32(value), where)}" for name, value in fixed.items()]
    )


def own_options(module: nn.Module, where: str) -> str:
    """A module's own attributes: a rate, the name of an activation, the activation itself."""
    every = _OF_EVERY_LIGHTNING_MODULE if isinstance(module, LightningModule) else _OF_EVERY_MODULE
    kept = {name: value for name, value in vars(module).items() if name not in every}
    return json.dumps({name: plain(value, where) for name, value in kept.items() if isinstance(value, _OPTIONS)})


def class_of(part: object) -> dict[str, str]:
    """The class, and a fingerprint of its code if the user wrote it."""
    kind = type(part)
    return {"class_path": path_of(kind), **({"code": code_of(kind)} if is_user_code(kind) else {})}


def attributes_of(parts: Iterable[object]) -> dict[str, dict[str, Any]]:
    """The numbers and texts on the user's classes among these parts, by name, for error messages."""
    kinds = dict.fromkeys(type(part) for part in parts)
    attributes = {name: value for kind in kinds for name, value in plain_attributes(kind).items()}
    return {ATTRIBUTES: attributes} if attributes else {}


def path_of(thing: type | FunctionType | BuiltinFunctionType) -> str:
    """The import path; fedlit's own as in configs: `fedlit.FedBC`."""
    module = str(thing.__module__ or "builtins")
    return f"{'fedlit' if module.startswith('fedlit.') else module}.{thing.__qualname__}"


def array_text(values: Tensor | NDArray[Any], where: str) -> str:
    """Type, shape and a hash of the values: `float32 (200, 784) 1a2b3c4d5e6f`."""
    array = values.detach().cpu() if isinstance(values, Tensor) else values
    if isinstance(array, Tensor):
        array = (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).numpy()
    if array.dtype.kind == "O":
        content = json.dumps(plain(array.tolist(), where), default=str).encode()
    else:
        content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    kind = str(values.dtype).removeprefix("torch.")
    return f"{kind} {tuple(values.shape)} {digest(content, 12)}"


def shortened(values: list[Any]) -> list[Any] | str:
    """A short list as it is, a long one as its length and hash."""
    if len(values) <= LONGEST:
        return values
    return f"list ({len(values)},) {digest(json.dumps(values).encode(), 12)}"


def pickled(part: object, where: str) -> str:
    """A hash of an object without readable attributes, such as NumPy's generators."""
    try:
        return digest(pickle.dumps(part, protocol=4), 12)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(refusal(where, f"is a {type(part).__name__}, whose content cannot be described")) from error


def refusal(where: str, why: str) -> str:
    """The error for a part that cannot be described."""
    return (
        f"{where} {why}, so config.yaml cannot say what it is, and runs with different ones would be taken for one. "
        "Give numbers, texts, arrays, functions or objects made of them, or train without a run folder."
    )


def digest(content: bytes, digits: int) -> str:
    """The first hex digits of a SHA-256."""
    return hashlib.sha256(content).hexdigest()[:digits]
