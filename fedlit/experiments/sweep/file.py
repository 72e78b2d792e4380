"""A sweep file in W&B's own format, read for running it here: what is swept, by what method, and with which command."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedlit.config.files import shipped_sweeps
from fedlit.config.parse_errors import read_yaml
from fedlit.errors import ConfigError, nearest
from fedlit.experiments.fit_arguments import refuse_options
from fedlit.experiments.sweep.objective import Goal
from fedlit.experiments.sweep.parameters import Parameter, read_parameter

METHODS = ("grid", "random", "bayes")
_KEYS = (
    *("method", "metric", "parameters", "program", "command", "run_cap", "early_terminate", "name", "description"),
    *("project", "entity", "controller", "kind", "apiVersion"),
)
_EXAMPLE = "command: ['${env}', '${program}', fit, --config, synthetic_fedbc.yaml, '${args}'] with program: fedlit"
_MACRO = re.compile(r"\$\{([\w:]+)\}")
_ARGS = ("${args}", "${args_no_equals}")


@dataclass(frozen=True)
class SweepFile:
    """What `fedlit sweep` takes from the file."""

    path: Path
    method: Literal["grid", "random", "bayes"]
    metric: str
    goal: Goal
    parameters: tuple[Parameter, ...]
    """By name: the order in which W&B goes through them too."""
    words: tuple[str, ...]
    """What follows `fedlit fit` in the command; `${args}` stands for the parameters."""
    run_cap: int | None
    ignored: tuple[str, ...]
    """Keys that mean something to W&B and nothing here."""

    def arguments(self, values: Mapping[str, Any], overrides: Sequence[str] = ()) -> tuple[str, ...]:
        """The arguments of `fedlit fit` for these values, as W&B's agent writes them, and then the overrides."""
        filled: list[str] = []
        for word in self.words:
            if word == "${args}":
                filled += [f"--{name}={value}" for name, value in values.items()]
            elif word == "${args_no_equals}":
                filled += [part for name, value in values.items() for part in (f"--{name}", str(value))]
            else:
                filled.append(word)
        return (*filled, *overrides)


def find_sweep(name: str) -> Path:
    """The path of a sweep file: in the working folder, else among those that fedlit ships."""
    shipped = shipped_sweeps()
    names = (name, f"{name}.yaml")
    files = [Path(file) for file in names if Path(file).is_file()] + [
        shipped[known] for known in names if known in shipped
    ]
    if files:
        return files[0]
    raise ConfigError(
        f"There is no sweep file '{name}', neither in {Path.cwd()} nor among fedlit's own. {nearest(name, shipped)}"
        f"fedlit ships: {', '.join(shipped)}."
    )


def read_sweep(path: Path) -> SweepFile:
    """A sweep file, or a ConfigError that names the key and how to mend it."""
    where = path.name
    content = read_yaml(str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no keys. Give a sweep file in W&B's format: method, metric, parameters.")
    for key in content:
        if key not in _KEYS:
            raise ConfigError(f"{where}: '{key}' is not a key of a sweep. {nearest(str(key), _KEYS)}")
    method = content.get("method")
    if method not in METHODS:
        raise ConfigError(f"{where}: method is {method!r}. Give one of {', '.join(METHODS)}.")
    metric, goal = read_metric(content.get("metric"), where)
    cap = content.get("run_cap")
    if cap is not None and (not isinstance(cap, int) or cap < 1):
        raise ConfigError(f"{where}: run_cap is {cap!r}. Give a whole number, 1 or more.")
    parameters = read_parameters(content.get("parameters"), where)
    words = read_command(content.get("command"), content.get("program"), where)
    ignored = [key for key in ("early_terminate", "controller") if key in content]
    ignored += [f"metric.{key}" for key in ("target", "impute") if key in content["metric"]]
    return SweepFile(path, method, metric, goal, parameters, words, cap, tuple(ignored))


def read_metric(section: object, where: str) -> tuple[str, Goal]:
    """Name and goal."""
    example = "metric: {name: val/acc, goal: maximize}"
    if not isinstance(section, dict) or not isinstance(section.get("name"), str):
        raise ConfigError(f"{where} names no metric, so its trials cannot be ranked. Add {example}.")
    for key in section:
        if key not in ("name", "goal", "target", "impute"):
            raise ConfigError(f"{where}: metric.{key} is not a key of a metric. Write {example}.")
    goal = section.get("goal", "minimize")  # W&B's default
    if goal not in ("maximize", "minimize"):
        raise ConfigError(f"{where}: metric.goal is {goal!r}. Give maximize or minimize.")
    return section["name"], goal


def read_parameters(section: object, where: str) -> tuple[Parameter, ...]:
    """All of them, by name."""
    if not isinstance(section, dict) or not section:
        raise ConfigError(f"{where} has no parameters. Add some: parameters: {{model.lr: {{values: [0.01, 0.1]}}}}.")
    refuse_options([f"--{name}" for name in section])
    return tuple(read_parameter(str(name), section[name], where) for name in sorted(section, key=str))


def read_command(section: object, program: object, where: str) -> tuple[str, ...]:
    """The words after `fedlit fit`, with macros replaced but for the parameters'."""
    if not isinstance(section, list) or not section:
        raise ConfigError(f"{where} has no command. fedlit sweep runs 'fedlit fit': write {_EXAMPLE}.")
    words = [fill_word(str(word), program, where) for word in section]
    starts = [k for k in range(len(words) - 1) if Path(words[k]).name == "fedlit" and words[k + 1] == "fit"]
    if not starts:
        raise ConfigError(
            f"{where}: the command does not call 'fedlit fit', and fedlit sweep runs nothing else. Write {_EXAMPLE}."
        )
    words = words[starts[0] + 2 :]
    if not any(word in _ARGS for word in words):
        raise ConfigError(f"{where}: the command has no ${{args}}, so no parameter would arrive. Write {_EXAMPLE}.")
    return tuple(word for word in words if word != "--overwrite")  # trials are continued, never begun anew


def fill_word(word: str, program: object, where: str) -> str:
    """A word of the command without macros; those of the parameters stay."""
    known = {"env": "/usr/bin/env", "interpreter": "python", "program": str(program)}

    def replace(macro: re.Match[str]) -> str:
        name = macro[1]
        if name.startswith("envvar:"):
            return os.environ.get(name.removeprefix("envvar:"), name.removeprefix("envvar:"))  # as W&B does
        if name not in known:
            raise ConfigError(f"{where}: the command has ${{{name}}}, which fit cannot read. Write ${{args}} instead.")
        return known[name]

    return word if word in _ARGS else _MACRO.sub(replace, word)
