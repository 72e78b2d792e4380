"""A fingerprint of code that a user wrote: classes and functions of a script, a notebook or a package in the making.

Runs with different code behind one name are different runs. The fingerprint is that of the compiled code: comments,
layout and docstrings do not matter, and a class that was redefined in a notebook is another class. Numbers, texts and
functions of the user that the code reads from outside (`MU = 0.1` above the class) are part of it. Installed packages
count only by name. Another version of Python compiles differently, and so gives another fingerprint.
"""

import dis
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any

_INSTALLED = ("site-packages", "dist-packages")
_LIBRARIES = frozenset({"fedlit", "torch", "pytorch_lightning", "lightning_fabric", "lightning", "numpy"})
MODULES_OF_0_1 = {
    "fedlit.client.base": "fedlit.client",
    "fedlit.client.cohort": "fedlit.cohort",
    "fedlit.client.local_optimizers": "fedlit.local",
    "fedlit.client.states": "fedlit.states",
    "fedlit.client.step": "fedlit.step",
    "fedlit.client.tasks": "fedlit.task",
    "fedlit.client.weights_file": "fedlit.weights_file",
    "fedlit.data.image_datasets": "fedlit.data.pictures",
    "fedlit.data.image_folders": "fedlit.data.folders",
    "fedlit.metrics.catalogue": "fedlit.catalogue",
    "fedlit.metrics.measures": "fedlit.measure",
    "fedlit.report.dashboard.page": "fedlit.dashboard.page",
    "fedlit.results.groups": "fedlit.results",
    "fedlit.results.runs": "fedlit.results",
    "fedlit.rounds.loop": "fedlit.loop",
    "fedlit.trainer.trainer": "fedlit.trainer",
    "fedlit.trainer.wandb.logger": "fedlit.tracking.logger",
    "fedlit.trainer.wandb.users": "fedlit.tracking.users",
}
"""Module -> the module of fedlit 0.1 that had its public classes."""
_as_in_0_1 = ContextVar("as_in_0_1", default=False)


@contextmanager
def as_in_0_1() -> Iterator[None]:
    """Inside the block, fingerprints are those of fedlit 0.1, which identified its own classes by their modules."""
    token = _as_in_0_1.set(True)
    try:
        yield
    finally:
        _as_in_0_1.reset(token)


def is_user_code(thing: type | FunctionType) -> bool:
    """Whether the user, and not a library, wrote a class or function."""
    root = thing.__module__.partition(".")[0]
    if root in _LIBRARIES or (root in sys.stdlib_module_names and root != "__main__"):
        return False
    file = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""  # a notebook's module has none
    return not any(folder in file for folder in _INSTALLED)


def code_of(thing: type | FunctionType) -> str:
    """The fingerprint of a class or function: eight hex digits."""
    return hashlib.sha256("\n".join(pieces(thing, set())).encode()).hexdigest()[:8]


def pieces(thing: Any, seen: set[int]) -> Iterator[str]:
    """The texts that a class, a function or a plain value adds to a fingerprint; nothing for other objects."""
    if isinstance(thing, str | bytes | int | float | bool | None):
        yield repr(thing)
    elif isinstance(thing, tuple | frozenset):
        within = [repr(list(pieces(one, seen))) for one in thing]
        yield f"({' '.join(within if isinstance(thing, tuple) else sorted(within))})"
    elif isinstance(thing, CodeType):
        yield from code_pieces(thing, seen)
    elif isinstance(thing, type | FunctionType) and is_user_code(thing) and id(thing) not in seen:
        seen.add(id(thing))
        yield from class_pieces(thing, seen) if isinstance(thing, type) else function_pieces(thing, seen)
    elif isinstance(thing, type | FunctionType):
        yield library_path(thing)


def library_path(thing: type | FunctionType) -> str:
    """The import path of a library's class or function; fedlit's by their public path (`fedlit.Client`)."""
    module = thing.__module__
    if module.partition(".")[0] != "fedlit":
        return f"{module}.{thing.__qualname__}"
    return f"{MODULES_OF_0_1.get(module, module) if _as_in_0_1.get() else 'fedlit'}.{thing.__qualname__}"


def class_pieces(kind: type, seen: set[int]) -> Iterator[str]:
    """All methods and plain attributes of a class, and of those base classes that the user wrote."""
    for base in filter(is_user_code, kind.__mro__):
        for name, attribute in sorted(vars(base).items()):
            function = method_in(attribute)
            if function is not None or not name.startswith("__"):
                yield name
                yield from pieces(attribute if function is None else function, seen)


def plain_attributes(kind: type) -> dict[str, Any]:
    """`Class.name` -> the numbers and texts on a user's class, which are part of its code."""
    return {
        f"{base.__name__}.{name}": value
        for base in filter(is_user_code, kind.__mro__)
        for name, value in sorted(vars(base).items())
        if not name.startswith("__") and isinstance(value, str | int | float | bool | None)
    }


def method_in(attribute: Any) -> FunctionType | None:
    """The function of a method, property or the like; None for other attributes."""
    if isinstance(attribute, staticmethod | classmethod):
        attribute = attribute.__func__
    elif isinstance(attribute, property):
        attribute = attribute.fget
    elif isinstance(attribute, cached_property):
        attribute = attribute.func
    return attribute if isinstance(attribute, FunctionType) else None


def function_pieces(function: FunctionType, seen: set[int]) -> Iterator[str]:
    """A function's code, its defaults, and the variables that it reads from outside."""
    function = without_a_librarys_wrapper(function)
    yield from pieces(function.__code__, seen)
    yield from pieces(function.__defaults__, seen)
    for name, value in sorted({**(function.__kwdefaults__ or {}), **read_from_around(function)}.items()):
        yield name
        yield from pieces(value, seen)


def without_a_librarys_wrapper(function: FunctionType) -> FunctionType:
    """The user's own function: torch wraps the `step` of an optimiser's class when the first object is made."""
    while any(folder in function.__code__.co_filename for folder in _INSTALLED) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def read_from_around(function: FunctionType) -> dict[str, Any]:
    """Name -> value of the variables that a function reads from enclosing functions and its module."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    enclosing = {name: value for name, cell in cells for value in cell_content(cell)}
    return {name: function.__globals__.get(name) for name in global_names(function.__code__)} | enclosing


def cell_content(cell: Any) -> list[Any]:
    """The value in a closure's cell, in a list; an empty list before its variable is assigned."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def global_names(code: CodeType) -> set[str]:
    """Names that the code, or a function inside it, reads from its module, without attributes."""
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def code_pieces(code: CodeType, seen: set[int]) -> Iterator[str]:
    """The instructions of code and their arguments; docstrings are not among these."""
    for instruction in dis.get_instructions(code):
        yield instruction.opname
        yield from pieces(instruction.argval, seen)
