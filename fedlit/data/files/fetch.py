"""Download a set where the machine can, by torchvision's own classes; the readers verify what has come.

The files arrive in a folder beside their place and are moved when all are there, so that a download that failed or was
killed is never taken for data.
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
    """Put the set's files where `layout` says; a DataError that says what to do if that fails.

    Args:
        layout: of a set that torchvision can download: MNIST, Fashion-MNIST, EMNIST, CIFAR-10, CIFAR-100.
        root: the folder of the data sets; made if it is not there.
        timeout_s: how long a server may be silent before we give up.
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
    """torchvision opens its connections without a timeout; the default of all new sockets is the only way in."""
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
