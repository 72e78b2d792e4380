"""Download a set by torchvision's own classes; the readers verify the files.

The files are downloaded into a temporary folder and moved when all are complete, so that a failed or killed download is
never taken for data.
"""

import importlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fedlit.data.files import Layout
from fedlit.errors import DataError


def fetch(layout: Layout, root: Path, *, timeout_s: float = 20.0) -> None:
    """Download the files of a set to where `layout` expects them; DataError says what to do if that fails.

    Args:
        layout: of a set that torchvision can download: MNIST, Fashion-MNIST, EMNIST, CIFAR-10, CIFAR-100.
        root: the folder of the data sets; made if it is not there.
        timeout_s: seconds that a server may be silent before the download is given up.
    """
    if not layout.torchvision:
        raise DataError(f"{layout.name} cannot be downloaded. {layout.instruction(root)}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=root, prefix=".download-") as arrived, _patience(timeout_s):
            datasets = importlib.import_module("torchvision.datasets")  # here: half a second that few runs need
            split = {"split": layout.split} if layout.split else {}
            getattr(datasets, layout.torchvision)(arrived, **split, download=True)
            _move(Path(arrived) / layout.folder, root / layout.folder)
    except Exception as error:  # servers, networks, archives and disks fail in ways that nobody has listed
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{layout.name} could not be downloaded ({reason}). {layout.instruction(root)}") from error


@contextmanager
def _patience(timeout_s: float) -> Iterator[None]:
    """Set a timeout for all new sockets: torchvision opens its connections without one."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(timeout_s)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _move(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        path.replace(target / path.name)
