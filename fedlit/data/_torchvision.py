"""Lets torchvision be imported beside a CPU-only torch, by whoever imports it after fedlit.

torchvision's Linux wheel is built for CUDA. Beside a CPU build of torch its compiled operators do not load, and
`import torchvision` fails with "operator torchvision::nms does not exist". torchmetrics imports torchvision where it is
installed, so `import pytorch_lightning` fails too. fedlit uses none of those operators, so it is enough to declare the
two that torchvision's Python code asks for.

They must be declared before torchvision is imported. Not earlier: that takes torch's seconds, which `fedlit --help` can
spare. So a finder waits for the name. What imports torchvision before fedlit fails as it does without fedlit, and works
when it is tried again.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.library import Library

_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list["Library | None"] = []
"""What is declared goes with the object that declares it."""


class BeforeTorchvision:
    """A finder that finds nothing: it is asked before all others, and acts once."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Called for every import of something new."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            _declared.append(declare_missing_operators())
        return None


def declare_missing_operators() -> "Library | None":
    """Declare the operators that torchvision's import asks for, only where its own library does not load."""
    if compiled_operators_load():
        return None
    from torch.library import Library

    library = Library("torchvision", "DEF")  # type: ignore[no-untyped-call]  # torch has no hints here
    for name in _OPERATORS:
        library.define(name + _SCHEMA)  # type: ignore[no-untyped-call]  # nor here
    return library


def compiled_operators_load() -> bool:
    """Whether torchvision's compiled library can be loaded by this torch (True where torchvision is absent)."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    libraries = list(Path(spec.origin).parent.glob("_C*.so"))
    try:
        for library in libraries:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]  # nor here
    except OSError:
        return False
    return bool(libraries)


sys.meta_path.insert(0, BeforeTorchvision())
