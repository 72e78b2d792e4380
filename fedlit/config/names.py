"""Config names: looked up in the working folder, then among the configs that fedlit ships; `.yaml` may be left out."""

from itertools import pairwise
from pathlib import Path

from fedlit.config.shipped import shipped_configs
from fedlit.errors import ConfigError, nearest


def resolve_configs(arguments: list[str]) -> list[str]:
    """The arguments with every config's name replaced by its path; configs come first, so that any option wins."""
    configs: list[str] = []
    others: list[str] = []
    expected = False
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if expected:
            configs += ["--config", find_config(argument)]
        elif flag in ("--config", "-c") and value:
            configs += ["--config", find_config(value)]
        elif argument not in ("--config", "-c"):
            others.append(argument)
        expected = not expected and argument in ("--config", "-c")
    if expected:
        raise ConfigError("--config needs a file after it, such as --config synthetic_fedbc.yaml.")
    return [*configs, *others]


def given_configs(arguments: list[str]) -> list[str]:
    """The paths that follow --config, after `resolve_configs`."""
    return [path for flag, path in pairwise(arguments) if flag in ("--config", "-c")]


def find_config(name: str) -> str:
    """The path of a config, or an error that suggests the nearest name."""
    shipped = shipped_configs()
    names = (name, f"{name}.yaml")
    paths = [file for file in names if Path(file).is_file()] + [
        str(shipped[known]) for known in names if known in shipped
    ]
    if paths:
        return paths[0]
    stems = [Path(known).stem for known in shipped]  # with '.yaml', any two names would be alike
    raise ConfigError(
        f"There is no config '{name}', neither in {Path.cwd()} nor among fedlit's own. "
        f"{nearest(name.removesuffix('.yaml'), stems)}'fedlit list configs' lists those that fedlit ships."
    )
