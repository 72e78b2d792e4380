"""Who may import whom, read off the source: a room imports loose modules and rooms above it, nothing else."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedlit

ROOT = Path(fedlit.__file__).parent
LOOSE = ("errors", "files", "inputs", "keys", "params", "recorded", "ranks")
ROOMS = (
    *("metrics", "results", "report", "clock", "data", "models", "client", "server", "engines", "algorithms"),
    *("evaluation", "rounds", "remote", "trainer", "config", "flower", "experiments", "cli"),
)
"""From the first that may be imported by all others to the last, which nobody imports."""
ALONE = {
    **dict.fromkeys(("clock", "data", "models"), {"metrics"}),
    "report": {"metrics", "results"},
    "client": {"metrics", "data"},
    "engines": {"metrics", "data", "client"},
    "server": {"metrics", "clock", "data", "client"},
    "algorithms": {"metrics", "client", "server"},
}
"""Rooms that must not know all rooms above them: the engines never name a server, an algorithm never an engine."""
PUBLIC = {"__init__"}
"""Where the public names are, from every room."""
BUILDS_ON = {("perfedbc", "fedbc"), ("fedbcdi", "fedbcd")}
"""Algorithms that are another one with a part exchanged."""
PEERS = ROOT.parent / "benchmarks" / "peers"
"""Programs that `python -m benchmarks --peer` runs in interpreters that have other packages, and no fedlit."""
HEAVY = {
    *("PIL", "datasets", "matplotlib", "optuna", "pandas", "peft", "pyarrow", "safetensors", "tensorboard"),
    *("torchvision", "transformers", "wandb", "wandb_workspaces"),
}
OUTSIDE = HEAVY - {"tensorboard"} | {
    *("cryptography", "flwr", "httpx", "jinja2", "jsonargparse", "lazy_loader", "markupsafe", "numpy"),
    *("pytorch_lightning", "rich", "starlette", "torch", "torchmetrics", "yaml"),
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def part_of(module: str) -> str:
    """`fedlit.engines.base` -> `engines`; the package itself and its names -> `__init__`."""
    return next((name for name in module.split(".")[1:2] if name in {*LOOSE, *ROOMS, *PUBLIC}), "__init__")


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
    room, other = part_of(importer), part_of(target)
    if room in PUBLIC:
        return True
    if room == other == "algorithms":
        return (importer.split(".")[2], target.split(".")[2]) in BUILDS_ON
    if room == other:
        return True
    if other in LOOSE:
        return room in ROOMS or LOOSE.index(other) < LOOSE.index(room)
    if room in LOOSE or other not in ROOMS:
        return target in ("fedlit.__version__", "fedlit.import_all") and room in ROOMS
    return ROOMS.index(other) < ROOMS.index(room) and other in ALONE.get(room, ROOMS)


def test_a_room_imports_loose_modules_and_rooms_above_it() -> None:
    pairs = [(name, target) for name, path in FILES.items() for target in imported(path)]
    own = [(name, target) for name, target in pairs if target.split(".")[0] == "fedlit"]
    assert [pair for pair in own if not is_allowed(*pair)] == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Raises CycleError, with the circle."""
    TopologicalSorter(targets_of_modules()).prepare()


def targets_of_modules() -> Mapping[str, set[str]]:
    """Which modules a module needs; the public names need all, and nobody's import of them counts."""
    return {
        name: {found for target in at_work(path) if (found := module_named(target)) not in (None, name)}
        for name, path in FILES.items()
        if part_of(name) not in PUBLIC
    }


def at_work(path: Path) -> list[str]:
    """What a file imports but for types alone."""
    tree = ast.parse(path.read_text())
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    return list(imports_of(ast.walk(tree)))


def module_named(target: str) -> str | None:
    """The module that holds an imported name, unless it is one of the public ones."""
    holder = target if target in FILES else target.rpartition(".")[0]
    return holder if holder in FILES and part_of(holder) not in PUBLIC else None


def test_every_file_is_loose_or_in_a_room() -> None:
    parts = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES.values()}
    assert parts == {*LOOSE, *ROOMS, *PUBLIC}


def test_the_picture_of_the_rooms_has_all_of_them_in_the_order_of_imports() -> None:
    picture = (ROOT.parent / "docs" / "rooms.svg").read_text()
    drawn = re.findall(r'<text class="head" x="34"[^>]*>([^<]+)<', picture)
    assert drawn == [" · ".join(sorted(LOOSE)), *ROOMS]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_in_its_first_lines_what_lives_there_and_what_does_not(room: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    assert text.count(".") >= 2


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("fedlit.engines.base", "fedlit.algorithms.fedbc"),
        ("fedlit.engines.base", "fedlit.server.weights"),
        ("fedlit.server.base", "fedlit.engines.base"),
        ("fedlit.algorithms.fedbc", "fedlit.engines.base"),
        ("fedlit.algorithms.fedbc", "fedlit.rounds.loop"),
        ("fedlit.algorithms.fedbc", "fedlit.algorithms.fedprox"),
        ("fedlit.data.base", "fedlit.client.base"),
        ("fedlit.report.page", "fedlit.client.cohort"),
        ("fedlit.client.base", "fedlit.FedAvg"),
        ("fedlit.experiments.jobs", "fedlit.cli.main"),
        ("fedlit.errors", "fedlit.files"),
        ("fedlit.params", "fedlit.client.cohort"),
    ],
)
def test_table_forbids(importer: str, target: str) -> None:
    assert not is_allowed(importer, target)


def test_only_declared_packages_are_imported_from_outside() -> None:
    outside = {name.split(".")[0] for path in FILES.values() for name in imported(path)} - {"fedlit"}
    assert outside - sys.stdlib_module_names - OUTSIDE == set()


def test_only_the_room_of_flower_imports_it() -> None:
    brought = {"cryptography", "flwr"}
    importers = {part_of(name) for name, path in FILES.items() if {n.split(".")[0] for n in imported(path)} & brought}
    assert importers == {"flower"}


def test_relays_import_nothing_of_fedlit_that_imports_torch() -> None:
    """Flower starts a process for every message."""
    program = "import sys; sys.modules['flwr'] = None; import fedlit.flower.frames; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert answer.stdout.strip() == "False"
    for relay in ("node_relay", "server_app", "records"):
        own = [target for target in imported(ROOT / "flower" / f"{relay}.py") if target.startswith("fedlit")]
        assert all(target.startswith(("fedlit.flower.frames.", "fedlit.flower.records.")) for target in own)


def test_programs_of_other_interpreters_import_nothing_of_fedlit_and_nobody_imports_them() -> None:
    theirs = {name.split(".")[0] for path in PEERS.glob("*.py") for name in imported(path)}
    assert "fedlit" not in theirs
    assert not [name for path in FILES.values() for name in imported(path) if name.startswith("benchmarks")]


def test_heavy_packages_are_imported_where_they_are_used_and_not_at_the_top() -> None:
    at_the_top = {
        (name, package.split(".")[0])
        for name, path in FILES.items()
        for package in imports_of(ast.parse(path.read_text()).body)
    }
    assert [pair for pair in sorted(at_the_top) if pair[1] in HEAVY] == []


def test_importing_fedlit_imports_nothing_heavy_but_what_lightning_brings() -> None:
    """Lightning imports torchmetrics, and torchmetrics takes both along where they are installed, with Pillow."""
    program = f"import sys, fedlit; print(*({HEAVY!r} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert set(answer.stdout.split()) <= {"matplotlib", "torchvision", "PIL"}
