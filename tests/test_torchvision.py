"""torchvision beside a CPU-only torch: its operators are declared where its library does not load, and only there."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from fedlit.data import _torchvision

Declared = list[str]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Declared:
    """The schemas that are declared from now on, instead of being given to torch a second time."""
    schemas: Declared = []

    class Recording:
        def __init__(self, namespace: str, kind: str) -> None:
            assert (namespace, kind) == ("torchvision", "DEF")

        def define(self, schema: str) -> None:
            schemas.append(schema)

    monkeypatch.setattr(torch.library, "Library", Recording)
    return schemas


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`install("_C.so")`: as if torchvision were installed with these files, none of which is a real library."""

    def pretend(*libraries: str) -> None:
        for name in libraries:
            (tmp_path / name).write_bytes(b"built for another torch")
        spec = ModuleSpec("torchvision", None, origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(_torchvision.importlib.util, "find_spec", lambda name: spec)

    return pretend


def test_nothing_is_declared_where_the_compiled_library_loads(
    install: Callable[..., None], declared: Declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("_C.so")
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    assert (_torchvision.declare_missing_operators(), declared) == (None, [])


@pytest.mark.parametrize("libraries", [["_C.so"], []], ids=["built for another torch", "no library"])
def test_both_operators_are_declared_where_the_compiled_library_does_not_load(
    install: Callable[..., None], declared: Declared, libraries: list[str]
) -> None:
    install(*libraries)
    _torchvision.declare_missing_operators()
    arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    assert declared == [f"nms{arguments}", f"qnms{arguments}"]


def test_nothing_is_declared_where_torchvision_is_not_installed(
    declared: Declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_torchvision.importlib.util, "find_spec", lambda name: None)
    assert (_torchvision.declare_missing_operators(), declared) == (None, [])


def test_torchvision_can_be_imported_after_fedlit() -> None:
    assert importlib.import_module("torchvision").datasets.MNIST


def test_operators_that_torchvision_asks_for_exist() -> None:
    importlib.import_module("torchvision")
    assert torch.ops.torchvision.nms.default


ALONE = (pytest.param(package, marks=pytest.mark.slow) for package in ("torchvision", "torchmetrics"))


@pytest.mark.parametrize("packages", ["torchmetrics torchvision", *ALONE])
def test_imports_that_failed_before_fedlit_work_after_it(packages: str) -> None:
    """Where torchvision belongs to the torch, none fails."""
    names = packages.split()
    lines = [
        "import contextlib, importlib",
        *(f"with contextlib.suppress(RuntimeError): importlib.import_module('{name}')" for name in names),
        f"import fedlit, torchvision, {', '.join(names)}",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True)
