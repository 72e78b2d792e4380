"""Recorded: the parts of a run remember the arguments that they were built with.

A run is known by what decided its numbers, also when a class does not keep an argument under its own name. The
arguments are taken in `__new__`, which sees them before any `__init__` does: dataclasses and classes without a
constructor need nothing of their own, and the signatures that `--help` shows stay as they are.
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
"""Attribute of a net that a run has trained (`client/initial_weights.py`); it does not belong to what the net is."""


class Recorded:
    """Base of everything that a run is put together from: clients, data, samplers, weightings, callbacks, nets …"""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if (args or options) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")  # object's own check ends where __new__ is changed
        built = super().__new__(cls)
        built.__dict__[_KEPT] = (args, options)
        return built


class ReadFromFile(ABC):
    """A part whose numbers stand in a file: a run is known by what the file holds, not by its name alone."""

    @abstractmethod
    def known_by(self) -> Arguments:
        """The arguments of its constructor, a fingerprint of the file's content among them."""


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


def refuse_unknown(part: Recorded, given: Collection[str]) -> None:
    """For a constructor that is handed options by its subclasses: name those that neither has."""
    parameters = inspect.signature(type(part).__init__).parameters.values()
    named = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    known = list(dict.fromkeys([*named, *inherited_arguments(type(part))[0]]))[1:]  # without self
    for name in given:
        raise ConfigError(
            f"{type(part).__name__} has no argument '{name}'. {nearest(name, known)}It takes {', '.join(known)}."
        )


def arguments_of(part: Recorded) -> Arguments:
    """Every argument of a part's constructor and of the constructors to which that hands its options on.

    A number, text or part that is kept under an argument's name says what holds now (`client.lr = 0.1` after it was
    built, a default that was filled in); then what was given counts, then the default. What a subclass fixes for the
    constructor of its base is known only if the base keeps it.
    """
    given = given_arguments(part)
    inherited, hands_on = inherited_arguments(type(part))
    known = (inherited if hands_on else {}) | given
    kept = {name: value for name, value in vars(part).items() if name in inherited or name in given}
    return known | {name: value for name, value in kept.items() if replaces(value, known.get(name))}


def given_arguments(part: Recorded) -> Arguments:
    """The constructor's own arguments, defaults included, those in ** by their names."""
    args, options = vars(part)[_KEPT]
    signature = inspect.signature(type(part).__init__)
    bound = signature.bind(part, *args, **options)
    bound.apply_defaults()
    given: Arguments = {}
    for position, (name, value) in enumerate(bound.arguments.items()):
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            given |= value
        elif position > 0 and not is_rest(signature, name, value):
            given[name] = value
    return given


def is_rest(signature: inspect.Signature, name: str, value: Any) -> bool:
    """Whether it is a *args in which there is nothing."""
    return signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL and not value


def inherited_arguments(kind: type) -> tuple[Arguments, bool]:
    """Optional arguments of the base classes' constructors, and whether the class hands its own ** on to them."""
    bases = [base for base in kind.__mro__ if issubclass(base, Recorded) and "__init__" in vars(base)]
    parameters = [inspect.signature(vars(base)["__init__"]).parameters.values() for base in bases]
    optional = [[one for one in own if one.default is not one.empty] for own in parameters[1:]]
    hands_on = any(one.kind is one.VAR_KEYWORD for own in parameters[:1] for one in own)
    return {one.name: one.default for own in reversed(optional) for one in own}, hands_on


def replaces(current: Any, given: Any) -> bool:
    """Whether an attribute can be today's value of an argument of its name: a number for a number, a part for None."""
    return all(isinstance(value, str | int | float | bool | Recorded | None) for value in (current, given))
