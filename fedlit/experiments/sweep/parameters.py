"""A parameter of a sweep, as W&B writes it: a value, a list of values, or a distribution to draw from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlit.errors import ConfigError, nearest

_RANGE = ("min", "max")
KEYS: dict[str, tuple[str, ...]] = {
    "constant": ("value",),
    "categorical": ("values",),
    **dict.fromkeys(("int_uniform", "uniform", "log_uniform_values"), _RANGE),
    "q_uniform": (*_RANGE, "q"),
}
"""Distributions with the keys that each takes, as W&B names them; it has more, which no search needed so far."""
_DEFAULTS: dict[str, Any] = {"q": 1.0}


@dataclass(frozen=True)
class Parameter:
    """One option of `fedlit fit` that a sweep sets."""

    name: str
    distribution: str
    keys: Mapping[str, Any]
    """What the distribution takes: min, max, values, ..."""

    @property
    def is_constant(self) -> bool:
        """The same in all trials."""
        return self.distribution == "constant"

    @property
    def is_log(self) -> bool:
        """Whether it is spread over powers."""
        return self.distribution == "log_uniform_values"

    def grid(self) -> list[Any] | None:
        """The values that a grid takes, or None where there are too many to name."""
        if self.distribution == "constant":
            return [self.keys["value"]]
        if self.distribution == "categorical":
            return [value for k, value in enumerate(self.keys["values"]) if value not in self.keys["values"][:k]]
        if self.distribution == "int_uniform":
            return list(range(self.keys["min"], self.keys["max"] + 1))
        if self.distribution == "q_uniform":  # without its end, as W&B does
            return [tidy(value) for value in np.arange(self.keys["min"], self.keys["max"], self.keys["q"]).tolist()]
        return None

    def draw(self, rng: np.random.Generator) -> Any:
        """A value, as W&B draws it; numbers have six digits, so that a command line can be copied."""
        keys = self.keys
        if self.distribution == "constant":
            return keys["value"]
        if "values" in keys:
            return keys["values"][int(rng.choice(len(keys["values"])))]
        if self.distribution == "int_uniform":
            return int(rng.integers(keys["min"], keys["max"] + 1))
        if self.is_log:
            return tidy(math.exp(rng.uniform(math.log(keys["min"]), math.log(keys["max"]))))
        value = float(rng.uniform(keys["min"], keys["max"]))
        if "q" not in keys:
            return tidy(value)
        steps = round(value / keys["q"])
        return steps * keys["q"] if isinstance(keys["q"], int) else tidy(steps * keys["q"])


def tidy(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")


def read_parameter(name: str, section: object, where: str) -> Parameter:
    """A parameter of a sweep file, or a ConfigError that says what is wrong with it."""
    here = f"{where}: parameters.{name}"
    if not isinstance(section, Mapping) or not section:
        raise ConfigError(f"{here} is {section!r}. Give it value, values, or min and max.")
    if "parameters" in section:
        raise ConfigError(f"{here} holds parameters of its own. Write them as one name with dots, such as model.lr.")
    distribution = section.get("distribution") or guessed(section)
    if distribution not in KEYS:
        known = f"fedlit sweep knows {', '.join(KEYS)}."
        raise ConfigError(f"{here}.distribution is {distribution!r}. {nearest(str(distribution), KEYS)}{known}")
    taken = KEYS[distribution]
    for key in section:
        if key not in (*taken, "distribution"):
            raise ConfigError(f"{here} has '{key}', but {distribution} takes {', '.join(taken)}.")
    for key in taken:
        if key not in section and key not in _DEFAULTS:
            raise ConfigError(f"{here} lacks '{key}', which {distribution} needs.")
    parameter = Parameter(name, distribution, {key: section.get(key, _DEFAULTS.get(key)) for key in taken})
    check_keys(parameter, here)
    return parameter


def guessed(section: Mapping[str, Any]) -> str:
    """The distribution that is meant where none is named."""
    if "value" in section:
        return "constant"
    if "values" in section:
        return "categorical"
    whole = all(isinstance(section.get(end), int) for end in _RANGE)
    return "int_uniform" if whole else "uniform"


def check_keys(parameter: Parameter, where: str) -> None:
    """Lists are lists, numbers are numbers, and ranges go up."""
    keys = parameter.keys
    for key, value in keys.items():
        if key == "values" and (not isinstance(value, list) or not value):
            raise ConfigError(f"{where}.{key} is {value!r}. Give a list with at least one entry.")
        if key not in ("value", "values"):
            check_number(key, value, parameter.distribution, where)
    if "min" in keys and not keys["min"] < keys["max"]:
        raise ConfigError(f"{where} goes from {keys['min']} to {keys['max']}. Give a min below its max.")
    if parameter.is_log and keys["min"] <= 0:
        raise ConfigError(f"{where}.min is {keys['min']}, which has no logarithm. Give a number above 0.")


def check_number(key: str, value: object, distribution: str, where: str) -> None:
    """A number, a whole one for int_uniform, and above 0 where it is a width."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        dot = f" YAML reads a number like {value} as text: write a dot into it, 1.0e-7." if is_number(value) else ""
        raise ConfigError(f"{where}.{key} is {value!r}, which is not a number.{dot}")
    if distribution == "int_uniform" and not isinstance(value, int):
        raise ConfigError(f"{where}.{key} is {value}, but int_uniform takes whole numbers.")
    if key == "q" and value <= 0:
        raise ConfigError(f"{where}.{key} is {value}. Give a number above 0.")


def is_number(value: object) -> bool:
    """Whether a text reads as a number."""
    try:
        float(str(value))
    except ValueError:
        return False
    return True
