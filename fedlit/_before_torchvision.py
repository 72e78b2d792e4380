"""Has `_torchvision` imported before torchvision is, whoever imports that, and not before it is needed.

A plain import of it in fedlit/__init__.py would do the same and take torch's seconds at every `fedlit --help`; one in
each file that imports Lightning would not help a user's own `import pytorch_lightning` after `import fedlit`.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class BeforeTorchvision:
    """A finder that finds nothing: it is asked before all others, and acts once."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Called for every import of something new."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            importlib.import_module("fedlit._torchvision")
        return None


sys.meta_path.insert(0, BeforeTorchvision())
