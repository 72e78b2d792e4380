"""fedlit: federated-learning experiments on PyTorch Lightning. `__init__.pyi` lists the public names.

A name is imported on first use: importing torch takes seconds, and `fedlit --help` does not need it.
"""

import importlib as _importlib
import importlib.util as _util
from importlib.metadata import version as _version

import lazy_loader as _lazy_loader

from fedlit.data import _torchvision as _torchvision

__version__ = _version("fedlit")

_public_name, _, __all__ = _lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Return a public name or a submodule, imported on first use."""
    if name in __all__:
        return _public_name(name)
    if not name.startswith("_") and _util.find_spec(f"fedlit.{name}") is not None:
        return _importlib.import_module(f"fedlit.{name}")
    raise AttributeError(f"module 'fedlit' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List all public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})


def import_all() -> None:
    """Import every public class: the command line knows a class by its bare name once it is imported."""
    for name in __all__:
        __getattr__(name)
