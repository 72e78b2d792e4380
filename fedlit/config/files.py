"""Configs, sweeps and tables: those that fedlit ships, and what a name on the command line stands for.

A wheel has these files inside the package, a checkout beside it. A config is looked up in the working folder, then
among fedlit's own; `.yaml` may be left out.
"""

from itertools import pairwise
from pathlib import Path

from fedlit.errors import ConfigError, nearest

PACKAGE = Path(__file__).parents[1]


def shipped_files(kind: str) -> list[Path]:
    """All YAML files of a folder: `configs`, `sweeps` or `reproduce`."""
    return [path for folder in (PACKAGE / kind, PACKAGE.parent / kind) for path in sorted(folder.glob("*.yaml"))]


def shipped_configs() -> dict[str, Path]:
    """Name -> path of every config."""
    return {path.name: path for path in shipped_files("configs")}


def shipped_sweeps() -> dict[str, Path]:
    """Name -> path of every sweep file."""
    return {path.name: path for path in shipped_files("sweeps")}


def shipped_tables() -> dict[str, Path]:
    """Name -> path of every table that `fedlit reproduce` makes, without .yaml."""
    return {path.stem: path for path in shipped_files("reproduce")}


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
