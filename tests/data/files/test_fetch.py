"""Laws of downloading: all files or none, never without an end, and a failure says what to do. No network is used."""

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torchvision.datasets

from fedlit.data.files import Layout
from fedlit.data.files.cifar import CIFAR10
from fedlit.data.files.fetch import fetch
from fedlit.data.files.mnist import FASHION_MNIST, MNIST
from fedlit.data.files.office import LAYOUT as OFFICE
from fedlit.errors import DataError
from tests.conftest import files
from tests.data.files import refused

LAYOUTS = [MNIST.layout, FASHION_MNIST.layout, CIFAR10.layout]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def stand_in(monkeypatch: pytest.MonkeyPatch, layout: Layout, download: Callable[[Path], None]) -> None:
    """Exchange torchvision's class for one that does this with its root."""

    def construct(root: str, *, download: bool) -> None:
        assert download
        act(Path(root))

    act = download
    monkeypatch.setattr(torchvision.datasets, layout.torchvision, construct)


def write_all(layout: Layout) -> Callable[[Path], None]:
    def download(root: Path) -> None:
        (root / layout.folder).mkdir(parents=True)
        for name in layout.files:
            (root / layout.folder / name).write_text(f"new {name}")
        (root / "archive.tar.gz").touch()

    return download


def write_one_and_fail(layout: Layout, error: BaseException) -> Callable[[Path], None]:
    def download(root: Path) -> None:
        (root / layout.folder).mkdir(parents=True)
        (root / layout.folder / layout.files[0]).write_text("half of it")
        raise error

    return download


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


@each_layout
def test_files_end_where_the_readers_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    stand_in(monkeypatch, layout, write_all(layout))
    fetch(layout, tmp_path / "new" / "root")
    assert layout.missing(tmp_path / "new" / "root") == []


@each_layout
def test_nothing_else_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    stand_in(monkeypatch, layout, write_all(layout))
    fetch(layout, tmp_path)
    assert set(files(tmp_path)) == {f"{layout.folder}/{name}" for name in layout.files}


def test_files_that_were_there_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, MNIST.layout, write_all(MNIST.layout))
    path = tmp_path / MNIST.layout.folder / MNIST.layout.files[0]
    path.parent.mkdir(parents=True)
    path.write_text("old")
    fetch(MNIST.layout, tmp_path)
    assert path.read_text() == f"new {path.name}"


@each_layout
@pytest.mark.parametrize(
    "error",
    [
        urllib.error.URLError("no route"),
        RuntimeError("Tried a,\ngot b\n"),
        TimeoutError(),
        EOFError(),
        ImportError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_of_any_kind_says_which_files_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, error: Exception
) -> None:
    stand_in(monkeypatch, layout, write_one_and_fail(layout, error))
    with refused(f"{layout.name} could not be downloaded", type(error).__name__, *layout.files, str(tmp_path)):
        fetch(layout, tmp_path)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(TimeoutError(), DataError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["failed", "interrupted"],
)
def test_a_download_that_did_not_end_leaves_the_root_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[BaseException]
) -> None:
    (tmp_path / "kept").write_text("mine")
    stand_in(monkeypatch, MNIST.layout, write_one_and_fail(MNIST.layout, error))
    with pytest.raises(raised):
        fetch(MNIST.layout, tmp_path)
    assert files(tmp_path) == {"kept": b"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_torchvision_without_a_network_fails_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    with refused("CIFAR-10", "name resolution", "Put data_batch_1", str(tmp_path / "cifar-10-batches-py")):
        fetch(CIFAR10.layout, tmp_path)


@pytest.mark.timeout(30)  # what fails here fails by waiting
def test_a_server_that_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_server: str
) -> None:
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [silent_server])
    started = time.monotonic()
    with refused("MNIST could not be downloaded", "Put train-images"):
        fetch(MNIST.layout, tmp_path, timeout_s=0.2)
    assert time.monotonic() - started < 10


@pytest.fixture(params=[None, 7.0], ids=["none", "seven seconds"])
def timeout_before(request: pytest.FixtureRequest) -> Iterator[float | None]:
    """What the rest of the program has chosen as the timeout of its connections."""
    original = socket.getdefaulttimeout()
    socket.setdefaulttimeout(request.param)
    yield request.param
    socket.setdefaulttimeout(original)


def test_the_timeout_holds_during_the_download_and_not_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_before: float | None
) -> None:
    during: list[float | None] = []
    stand_in(monkeypatch, MNIST.layout, lambda root: during.append(socket.getdefaulttimeout()))
    with refused("could not be downloaded"):  # nothing was written, so there is nothing to move
        fetch(MNIST.layout, tmp_path, timeout_s=3.0)
    assert (during, socket.getdefaulttimeout()) == ([3.0], timeout_before)


def test_a_root_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("MNIST could not be downloaded", "Put train-images"):
        fetch(MNIST.layout, tmp_path / "file" / "root")


def test_a_set_that_torchvision_does_not_have_is_refused_at_once(tmp_path: Path) -> None:
    with refused("Office-Caltech10 cannot be downloaded", "Put office_caltech10_surf.npz"):
        fetch(OFFICE, tmp_path)
