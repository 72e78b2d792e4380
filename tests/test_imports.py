"""Who may import whom: the diagram of style 3.2 as a table, read off the source. Imports point down only."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import fedlit

ROOT = Path(fedlit.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LEVELS = {
    **dict.fromkeys(
        (
            "_before_torchvision",
            "_torchvision",
            "catalogue",
            "measure",
            "task",
            "weights_file",
            "checkpointform",
            "clientparts",
            "colours",
            "errors",
            "keys",
            "lock",
            "places",
            "params",
            "ranks",
            "shipped",
            "room",
            "rowlayout",
            "rowstore",
            "local",
            "mistakes",
            "states",
            "strict_yaml",
            "cohort",
            "step",
            "tally",
            "templates",
            "words",
        ),
        0,
    ),
    **dict.fromkeys(("recorded", "codeprint", "describing", "behaviour"), 0),
    "client": 1,
    **dict.fromkeys(("engines", "server"), 2),
    **dict.fromkeys(("algorithms", "clock", "data", "models", "metrics", "run"), 3),
    **dict.fromkeys(
        ("consistent", "divergence", "evaluate", "history", "summary", "settings", "progress", "rules", "results"), 4
    ),
    **dict.fromkeys(
        ("assembly", "buffered", "cloud_protocol", "federation", "flat", "gathering", "initial", "measuring"), 4
    ),
    **dict.fromkeys(("processes", "protocol", "rehearsal", "round", "run_state", "stopping", "training", "users"), 4),
    "loop": 5,
    **dict.fromkeys(("checkpoint", "outcome"), 6),
    **dict.fromkeys(("restore", "trainer"), 7),
    "_public": 8,
    "fedlit": 8,
    **dict.fromkeys(("conformance", "report", "dashboard", "tracking"), 9),
    "commandline": 10,
    **dict.fromkeys(("experiments", "cloud_processes"), 11),
    "commands": 12,
    "cli": 13,
}
STARTED_BY_NAME = {"fedlit.experiments.child"}
"""`python -m` starts it as `fedlit` is started: it stands where cli stands, and nobody may import it."""
BUILDS_ON = {("perfedbc", "fedbc"), ("fedbcdi", "fedbcd")}
"""Algorithms that are another one with a part exchanged."""
EQUALS_MAY_MEET = {0, 4}
"""Levels whose parts may import each other; elsewhere they are strangers (engines and server, the algorithms)."""
SIDE = {"clock", "data", "models", "metrics", "run"}
"""They know nothing of federation: keys, errors, locks, measures, places and how arguments are recorded."""
PEERS = ROOT.parent / "benchmarks" / "peers"
"""Programs that `python -m benchmarks --peer` runs in interpreters that have other packages, and no fedlit."""
HEAVY = {
    "PIL",
    "datasets",
    "matplotlib",
    "optuna",
    "pandas",
    "pyarrow",
    "tensorboard",
    "torchvision",
    "wandb",
    "wandb_workspaces",
}
OUTSIDE = HEAVY - {"tensorboard"} | {
    "jinja2",
    "jsonargparse",
    "markupsafe",
    "numpy",
    "pytorch_lightning",
    "rich",
    "torch",
    "yaml",
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """`fedlit.engines.base` -> `engines`; the package itself and its names -> `fedlit`."""
    return next((name for name in module.split(".")[1:2] if name in LEVELS), "fedlit")


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Full names of what these statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def imported(path: Path) -> list[str]:
    """Everything that a file imports, inside functions too."""
    return list(imports_of(ast.walk(ast.parse(path.read_text()))))


def is_allowed(importer: str, target: str) -> bool:
    source, part = part_of(importer), part_of(target)
    if any(f"{target}.".startswith(f"{name}.") for name in STARTED_BY_NAME):
        return False
    if importer in STARTED_BY_NAME:
        return part == "cli"
    if source == "algorithms":
        builds_on = (importer.rpartition(".")[2], target.split(".")[2]) in BUILDS_ON if part == source else False
        return LEVELS[part] <= 1 or part == "server" or builds_on
    if source == "fedlit":
        return part in ("_public", "_before_torchvision")
    if source == part:
        return True
    if source in SIDE:
        return part in ("clientparts", "keys", "errors", "lock", "measure", "places", "recorded")
    return LEVELS[part] < LEVELS[source] or (LEVELS[part] == LEVELS[source] and LEVELS[part] in EQUALS_MAY_MEET)


def breaches(path: Path) -> list[str]:
    own = [name for name in imported(path) if name.split(".")[0] == "fedlit"]
    return [name for name in own if not is_allowed(module_of(path), name)]


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_down_only(path: Path) -> None:
    assert breaches(path) == []


def test_every_file_has_a_place_in_the_table() -> None:
    assert {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES} - {"__init__"} == set(LEVELS) - {
        "fedlit"
    }


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("fedlit.engines.base", "fedlit.algorithms.fedbc"),
        ("fedlit.engines.base", "fedlit.server.weights"),
        ("fedlit.server.base", "fedlit.engines.base"),
        ("fedlit.server.base", "fedlit.algorithms.fedbc"),
        ("fedlit.algorithms.fedbc", "fedlit.engines.base"),
        ("fedlit.algorithms.fedbc", "fedlit.loop"),
        ("fedlit.algorithms.fedbc", "fedlit.algorithms.fedprox"),
        ("fedlit.data.base", "fedlit.client"),
        ("fedlit.clock.latency", "fedlit.cohort"),
        ("fedlit.metrics", "fedlit.cohort"),
        ("fedlit.loop", "fedlit.trainer"),
        ("fedlit.trainer", "fedlit.cli"),
        ("fedlit.client", "fedlit.FedAvg"),
        ("fedlit.experiments.compare", "fedlit.commands.fit"),
        ("fedlit.experiments.jobs", "fedlit.cli.main"),
        ("fedlit.experiments.jobs", "fedlit.experiments.child.end_with"),
        ("fedlit.commandline.fit_cli", "fedlit.commands.fit"),
        ("fedlit.commandline.fit_cli", "fedlit.experiments.compare"),
        ("fedlit.commands.fit", "fedlit.cli.main"),
        ("fedlit.report.page", "fedlit.dashboard.page"),
    ],
)
def test_table_forbids(importer: str, target: str) -> None:
    assert not is_allowed(importer, target)


def test_only_declared_packages_are_imported_from_outside() -> None:
    own = [path for path in FILES if path.parent != PEERS]
    outside = {name.split(".")[0] for path in own for name in imported(path)} - {"fedlit"}
    assert outside - sys.stdlib_module_names - OUTSIDE == set()


def test_programs_of_other_interpreters_import_nothing_of_fedlit_and_nobody_imports_them() -> None:
    theirs = {name.split(".")[0] for path in PEERS.glob("*.py") for name in imported(path)}
    assert "fedlit" not in theirs
    assert not [name for path in FILES for name in imported(path) if name.startswith("benchmarks.peers")]


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_heavy_packages_are_imported_where_they_are_used_and_not_at_the_top(path: Path) -> None:
    at_the_top = {name.split(".")[0] for name in imports_of(ast.parse(path.read_text()).body)}
    assert at_the_top & HEAVY == set()


def test_importing_fedlit_imports_nothing_heavy_but_what_lightning_brings() -> None:
    """Lightning imports torchmetrics, and torchmetrics takes both along where they are installed, with Pillow."""
    program = f"import sys, fedlit; print(*({HEAVY!r} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert set(answer.stdout.split()) <= {"matplotlib", "torchvision", "PIL"}
