"""The keys of a table's file: known, there, and with a value of the right kind, or an error that names the place."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedlit.errors import ConfigError, nearest


def named(held: Mapping[str, Any], key: str, where: str, keys: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Rows or columns by name."""
    given = held[key]
    if not isinstance(given, dict) or not given:
        raise ConfigError(f"{where}: {key} is {given!r}. Give names with their keys below them.")
    for name, one in given.items():
        if not isinstance(name, str) or any(sign in name for sign in ":,"):
            raise ConfigError(f"{where}: {key} has the name {name!r}. Give a text without ':' and ','.")
        if not isinstance(one, dict):
            raise ConfigError(f"{where}: {key}.{name} is {one!r}. Give it keys: {', '.join(keys)}.")
    return given


def known_name(name: str, known: Collection[str], place: str, what: str) -> None:
    """Refuse a name that is not there."""
    if name not in known:
        raise ConfigError(f"{place} names the {what} '{name}', which is not in the file. {nearest(name, known)}")


def check_keys(held: Mapping[str, Any], known: Sequence[str], place: str, needed: Sequence[str] = ()) -> None:
    """Refuse keys that mean nothing, and the lack of those that are needed."""
    for key in held:
        if key not in known:
            raise ConfigError(
                f"{place}: '{key}' is not a key here. {nearest(str(key), known)}Keys: {', '.join(known)}."
            )
    for key in needed:
        if key not in held:
            raise ConfigError(f"{place} lacks '{key}'. docs/reproduce.md explains the keys.")


def options(held: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    """A mapping of names, empty without the key."""
    given = held.get(key)
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{place}.{key} is {given!r}. Give names with their values, such as model.lr: 0.1.")
    return given


def text(held: Mapping[str, Any], key: str, place: str) -> str:
    """A text."""
    if not isinstance(held[key], str) or not held[key]:
        raise ConfigError(f"{place}: {key} is {held[key]!r}. Give a text.")
    return str(held[key])


def whole(held: Mapping[str, Any], key: str, place: str, least: int = 1) -> int:
    """A whole number."""
    value = held[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{place}: {key} is {value!r}. Give a whole number, {least} or more.")
    return value


def number(held: Mapping[str, Any], key: str, place: str, default: float) -> float:
    """A number, 0 or more."""
    value = held.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
        raise ConfigError(f"{place}: {key} is {value!r}. Give a number, 0 or more.")
    return float(value)


def truth(held: Mapping[str, Any], key: str, place: str, *, default: bool) -> bool:
    """True or false."""
    value = held.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{place}.{key} is {value!r}. Give true or false.")
    return value
