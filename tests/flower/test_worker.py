"""The worker of a node and the frames of its socket, without Flower: what a ClientApp would pass on."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
import torch

from fedlit import Softmax
from fedlit.client.messages import Message, pack, unpack
from fedlit.client.row_layout import bytes_as_tensor
from fedlit.config.described_model import described_model, made_from_description
from fedlit.data.client_file import ClientFile, write_client_file
from fedlit.errors import MessageError
from fedlit.experiments.conformance.problem import TINY
from fedlit.flower.frames import ClosedError, connect, receive, send
from fedlit.flower.worker import Worker
from fedlit.remote.node import Node

FEDBC = {
    "class_path": "fedlit.FedBC",
    "init_args": {
        "net": {"class_path": "fedlit.Softmax", "init_args": {"num_features": 5, "num_classes": 3}},
        "dual_lr": 0.5,
        "batch_size": 4,
    },
}


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker that serves the first client of the tiny problem, from a file."""
    data = TINY.data()
    data.setup()
    write_client_file(tmp_path / "own.npz", data, 0)
    own = ClientFile(tmp_path / "own.npz")
    own.setup()
    with TemporaryDirectory(prefix="fedlit-") as sockets:  # a socket's path is short
        one = Worker(Node("clinic-a", own, tmp_path / "rows", made_from_description), Path(sockets) / "w.sock", 10_000)
        Thread(target=one.serve, daemon=True).start()
        yield one
        one.close()


def asked(worker: Worker, content: bytes) -> Message:
    with connect(str(worker.path), timeout=20) as connection:
        send(connection, {}, [content])
        _, [answer] = receive(connection)
    return unpack(bytes_as_tensor(answer))


def test_a_node_tells_how_many_samples_it_has_and_none_of_them(worker: Worker) -> None:
    told = asked(worker, pack({"kind": "hello"}).numpy().tobytes())
    assert told["name"] == "clinic-a"
    assert told["classes"] == 3
    assert sum(told["sizes"].values()) == 9
    assert all(not value.any() for value in told["form"].values()), "a form has zeros alone"


def test_only_its_user_can_open_its_socket(worker: Worker) -> None:
    assert worker.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"not a message", bytes(64), b"\xff" * 64])
def test_what_is_no_message_is_answered_with_a_reason(worker: Worker, content: bytes) -> None:
    assert "cannot be read" in asked(worker, content)["failed"]


def test_a_message_that_is_too_long_is_not_read_and_the_worker_goes_on(worker: Worker) -> None:
    with pytest.raises((ClosedError, OSError)):
        asked(worker, bytes(20_000))
    assert asked(worker, pack({"kind": "hello"}).numpy().tobytes())["name"] == "clinic-a"


def test_a_head_that_is_too_long_is_refused() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(struct.pack("<Q", 2**40))
    with ours, theirs, pytest.raises(ClosedError, match="a head of"):
        receive(ours)


def test_a_frame_arrives_as_it_was_sent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Thread(target=send, args=(theirs, {"names": ["a"]}, [b"x" * 300_000, b""])).start()
        assert receive(ours) == ({"names": ["a"]}, [b"x" * 300_000, b""])


# ---- classes ---------------------------------------------------------------------------------------------------------


def test_a_node_makes_the_algorithm_that_is_described() -> None:
    client = made_from_description(FEDBC)
    assert (type(client).__name__, client.batch_size) == ("FedBC", 4)
    assert isinstance(client.net, Softmax)


@pytest.mark.parametrize(
    ("description", "why"),
    [
        ({"class_path": "os.system", "init_args": {}}, "was asked to make a os.system, and makes only classes of"),
        (
            {"class_path": "fedlit.FedAvg", "init_args": {"net": {"class_path": "evil.Net"}}},
            "was asked to make a evil.Net.* start the node with --allow evil",
        ),
        (
            {"class_path": "fedlit.FedAvg", "init_args": {"init_from": "/etc/passwd"}},
            "was asked to read the file /etc/passwd",
        ),
    ],
)
def test_a_node_makes_no_class_of_another_package_and_reads_no_file(description: Message, why: str) -> None:
    with pytest.raises(MessageError, match=why):
        made_from_description(description)


def test_a_node_is_told_nothing_of_the_file_of_the_initial_weights() -> None:
    config = {"class_path": "fedlit.FedAvg", "init_args": {"lr": 0.1, "init_from": "weights.pt"}}
    assert described_model(config) == {"class_path": "fedlit.FedAvg", "init_args": {"lr": 0.1}}


def test_a_form_of_the_net_is_the_only_state_of_a_run(worker: Worker) -> None:
    """A request for a run that the node does not know is answered with a question."""
    request = {"kind": "train", "run": "abc", "model": torch.zeros(1)}
    assert asked(worker, pack(request).numpy().tobytes()) == {"unknown_run": True}
