"""Lets torchvision be imported beside a CPU-only torch.

torchvision's Linux wheel is built for CUDA. Beside a CPU build of torch its compiled operators do not
load, `import torchvision` fails with "operator torchvision::nms does not exist", and because torchmetrics
imports torchvision where it is installed, so does `import pytorch_lightning`. fedlit uses none of those
operators, so it is enough to declare the two that torchvision's Python code asks for.
"""

import importlib.util
from pathlib import Path

import torch

_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def compiled_operators_load() -> bool:
    """Whether torchvision's compiled library can be loaded by this torch (True where torchvision is absent)."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    libraries = list(Path(spec.origin).parent.glob("_C*.so"))
    try:
        for library in libraries:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]  # torch has no hints here
    except OSError:
        return False
    return bool(libraries)


def declare_missing_operators() -> torch.library.Library | None:
    """Declare the operators that torchvision's import asks for, only where its own library does not load."""
    if compiled_operators_load():
        return None
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]  # nor here
    for name in _OPERATORS:
        library.define(name + _SCHEMA)  # type: ignore[no-untyped-call]  # nor here
    return library


library = declare_missing_operators()
