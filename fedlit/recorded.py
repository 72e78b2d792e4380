"""Recorded: the parts of a run remember the arguments that they were built with.

A run is identified by the arguments that decided its numbers, even if a class keeps one under another name. `__new__`
records them before any `__init__` runs: dataclasses and classes without a constructor need no code for it, and the
signatures that `--help` shows stay as they are.
"""

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Self

from fedlit.errors import ConfigError, nearest, require

Arguments = dict[str, Any]
_KEPT = "_built_with"
TRAINED_AS = "_trained_as"
"""Attribute that marks a trained net (`client/initial_weights.py`); it is not part of the net's description."""


class Recorded:
    """Base class of the parts of a run: clients, data, samplers, weightings, callbacks, nets …"""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if (args or options) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")  # object checks this only if __new__ is its own
        built = super().__new__(cls)
        built.__dict__[_KEPT] = (args, options)
        return built


class ReadFromFile(ABC):
    """A part that reads its numbers from a file: a run is identified by the file's content, not by its name alone."""

    @abstractmethod
    def known_by(self) -> Arguments:
        """The arguments of its constructor, and a fingerprint of the file's content."""


def fingerprint_of(content: bytes) -> str:
    """16 hex digits over all bytes of a file."""
    return hashlib.sha256(content).hexdigest()[:16]


def require_fingerprint(content: bytes, sha256: str | None, file: str, option: str) -> None:
    """ConfigError if a file does not have the fingerprint that was given for it."""
    actual = fingerprint_of(content)
    require(
        sha256 in (None, actual),
        f"{file} has the fingerprint {actual}, but {option} is {sha256}: it is not the file that the run began with. "
        "Restore it, or leave sha256 out.",
    )


def refuse_unknown(part: Recorded, options: Collection[str]) -> None:
    """Refuse options that neither the part's class nor its base classes have; for constructors that take **options."""
    parameters = inspect.signature(type(part).__init__).parameters.values()
    named = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    known = list(dict.fromkeys([*named, *inherited_arguments(type(part))[0]]))[1:]  # without self
    for name in options:
        raise ConfigError(
            f"{type(part).__name__} has no argument '{name}'. {nearest(name, known)}It takes {', '.join(known)}."
        )


def arguments_of(part: Recorded) -> Arguments:
    """Every argument of a part's constructor, and of the base constructors to which it passes its ** on.

    The attribute of an argument's name counts first, if it is a number, text or part: it may have been set later
    (`client.lr = 0.1`), or may be a default that was filled in. Then counts the argument that was passed, then the
    default. What a subclass passes to its base's constructor by itself is known only if the base keeps it.
    """
    passed = given_arguments(part)
    inherited, hands_on = inherited_arguments(type(part))
    known = (inherited if hands_on else {}) | passed
    kept = {name: value for name, value in vars(part).items() if name in inherited or name in passed}
    return known | {name: value for name, value in kept.items() if replaces(value, known.get(name))}


def given_arguments(part: Recorded) -> Arguments:
    """The arguments of the part's own constructor, defaults included; those in ** by their names."""
    args, options = vars(part)[_KEPT]
    signature = inspect.signature(type(part).__init__)
    bound = signature.bind(part, *args, **options)
    bound.apply_defaults()
    arguments: Arguments = {}
    for position, (name, value) in enumerate(bound.arguments.items()):
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        elif position > 0 and not is_rest(signature, name, value):
            arguments[name] = value
    return arguments


def is_rest(signature: inspect.Signature, name: str, value: Any) -> bool:
    """Whether the argument is an empty *args."""
    return signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL and not value


def inherited_arguments(kind: type) -> tuple[Arguments, bool]:
    """Optional arguments of the base classes' constructors, and whether the class passes its ** on to them."""
    bases = [base for base in kind.__mro__ if issubclass(base, Recorded) and "__init__" in vars(base)]
    parameters = [inspect.signature(vars(base)["__init__"]).parameters.values() for base in bases]
    optional = [[one for one in constructor if one.default is not one.empty] for constructor in parameters[1:]]
    hands_on = any(one.kind is one.VAR_KEYWORD for constructor in parameters[:1] for one in constructor)
    return {one.name: one.default for constructor in reversed(optional) for one in constructor}, hands_on


def replaces(current: Any, passed: Any) -> bool:
    """Whether an attribute may be the present value of its argument: each is a number, a text, a part or None."""
    return all(isinstance(value, str | int | float | bool | Recorded | None) for value in (current, passed))
