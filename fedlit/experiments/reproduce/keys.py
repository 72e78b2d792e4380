"""The keys of a table's file: known, there, and with a value of the right kind, or an error that names the place."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedlit.errors import ConfigError, nearest


def named(section: Mapping[str, Any], key: str, where: str, keys: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Rows or columns by name."""
    entries = section[key]
    if not isinstance(entries, dict) or not entries:
        raise ConfigError(f"{where}: {key} is {entries!r}. Give names with their keys below them.")
    for name, entry in entries.items():
        if not isinstance(name, str) or any(sign in name for sign in ":,"):
            raise ConfigError(f"{where}: {key} has the name {name!r}. Give a text without ':' and ','.")
        if not isinstance(entry, dict):
            raise ConfigError(f"{where}: {key}.{name} is {entry!r}. Give it keys: {', '.join(keys)}.")
    return entries


def known_name(name: str, known: Collection[str], where: str, what: str) -> None:
    """Refuse a name that is not there."""
    if name not in known:
        raise ConfigError(f"{where} names the {what} '{name}', which is not in the file. {nearest(name, known)}")


def check_keys(section: Mapping[str, Any], known: Sequence[str], where: str, needed: Sequence[str] = ()) -> None:
    """Refuse keys that mean nothing, and the lack of those that are needed."""
    for key in section:
        if key not in known:
            raise ConfigError(
                f"{where}: '{key}' is not a key here. {nearest(str(key), known)}Keys: {', '.join(known)}."
            )
    for key in needed:
        if key not in section:
            raise ConfigError(f"{where} lacks '{key}'. docs/reproduce.md explains the keys.")


def options(section: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """A mapping of names, empty without the key."""
    entries = section.get(key)
    if entries is None:
        return {}
    if not isinstance(entries, dict) or not all(isinstance(name, str) for name in entries):
        raise ConfigError(f"{where}.{key} is {entries!r}. Give names with their values, such as model.lr: 0.1.")
    return entries


def text(section: Mapping[str, Any], key: str, where: str) -> str:
    """A text."""
    if not isinstance(section[key], str) or not section[key]:
        raise ConfigError(f"{where}: {key} is {section[key]!r}. Give a text.")
    return str(section[key])


def whole(section: Mapping[str, Any], key: str, where: str, least: int = 1) -> int:
    """A whole number."""
    value = section[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{where}: {key} is {value!r}. Give a whole number, {least} or more.")
    return value


def number(section: Mapping[str, Any], key: str, where: str, default: float) -> float:
    """A number, 0 or more."""
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
        raise ConfigError(f"{where}: {key} is {value!r}. Give a number, 0 or more.")
    return float(value)


def truth(section: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    """True or false."""
    value = section.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}.{key} is {value!r}. Give true or false.")
    return value
