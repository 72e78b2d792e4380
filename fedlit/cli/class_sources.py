"""Classes as their source files describe them, without importing anything: torch takes seconds, and a list is words."""

import ast
from dataclasses import dataclass
from functools import cache

from fedlit.config.files import PACKAGE


@dataclass(frozen=True)
class Place:
    """Where something is defined: `fedlit.client.base` and `Client`."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Scope:
    """What a file of fedlit defines and imports at its top."""

    classes: dict[str, ast.ClassDef]
    imports: dict[str, Place]


def exported(module: str) -> list[Place]:
    """The classes of fedlit that a module offers by importing them, in the order of their names there."""
    imports = scope_of(module).imports
    places = [definition(imports[name]) for name in sorted(imports)]
    return [place for place in places if is_ours(place.module) and place.name in scope_of(place.module).classes]


def first_line(place: Place) -> str:
    """Of a class's docstring."""
    return (ast.get_docstring(scope_of(place.module).classes[place.name]) or "").partition("\n")[0]


def ancestors(place: Place) -> set[Place]:
    """All classes that a class is built on, as far as fedlit's own files tell."""
    if not is_ours(place.module):
        return set()
    scope = scope_of(place.module)
    parents = {definition(named(base, place.module)) for base in scope.classes[place.name].bases}
    return parents.union(*(ancestors(parent) for parent in parents))


def named(base: ast.expr, module: str) -> Place:
    """What a base class's expression means in its file: `Client`, `nn.Module`, `Kept[int]`."""
    words = ast.unparse(base.value if isinstance(base, ast.Subscript) else base).split(".")
    scope = scope_of(module)
    if words[0] in scope.imports:
        origin = scope.imports[words[0]]
        return origin if len(words) == 1 else Place(str(origin), ".".join(words[1:]))
    return Place(module, words[0])


def definition(place: Place) -> Place:
    """Where a name is defined that may only have been imported there."""
    while is_ours(place.module) and place.name in scope_of(place.module).imports:
        place = scope_of(place.module).imports[place.name]
    return place


def is_ours(module: str) -> bool:
    """Whether the file is one of fedlit's."""
    return module.partition(".")[0] == PACKAGE.name


@cache
def scope_of(module: str) -> Scope:
    """A module of fedlit, read."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    files = (path / "__init__.pyi", path / "__init__.py", path.with_suffix(".py"))
    file = next(file for file in files if file.exists())
    body = ast.parse(file.read_text(encoding="utf-8")).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    imports = {
        alias.asname or alias.name: Place(f"{module}.{node.module}" if node.level else str(node.module), alias.name)
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return Scope(classes, imports)
