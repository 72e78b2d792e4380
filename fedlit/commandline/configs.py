"""Config names: a bare name is looked up in the working folder, then among the configs that fedlit ships."""

from itertools import pairwise
from pathlib import Path

import fedlit
from fedlit.errors import ConfigError, nearest


def shipped_configs() -> dict[str, Path]:
    """Name -> path of every config: fedlit/configs of an installed wheel, configs/ of a checkout."""
    package = Path(fedlit.__file__).parent
    folders = (package / "configs", package.parent / "configs")
    return {path.name: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def resolve_configs(arguments: list[str]) -> list[str]:
    """The arguments with every config's name replaced by its path."""
    resolved: list[str] = []
    expected = False
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if expected:
            resolved.append(find_config(argument))
        elif flag in ("--config", "-c") and value:
            resolved += [flag, find_config(value)]
        else:
            resolved.append(argument)
        expected = not expected and argument in ("--config", "-c")
    if expected:
        raise ConfigError("--config is the last word: name a file after it, such as --config synthetic_fedbc.yaml.")
    return resolved


def given_configs(arguments: list[str]) -> list[str]:
    """The paths that follow --config, after `resolve_configs`."""
    return [path for flag, path in pairwise(arguments) if flag in ("--config", "-c")]


def find_config(name: str) -> str:
    """The path of a config, or an error that lists what is there."""
    if Path(name).is_file():
        return name
    shipped = shipped_configs()
    for known in (name, f"{name}.yaml"):
        if known in shipped:
            return str(shipped[known])
    raise ConfigError(
        f"There is no config '{name}', neither in {Path.cwd()} nor among fedlit's own. {nearest(name, shipped)}"
        f"fedlit ships: {', '.join(shipped)}."
    )
