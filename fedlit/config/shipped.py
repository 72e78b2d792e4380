"""Files that come with fedlit: configs, sweeps, tables. A wheel has them inside the package, a checkout beside it."""

from pathlib import Path

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
