"""`fedlit flower run` and `fedlit flower node` as on several machines, with TLS and keys, and who is refused there."""

import csv
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest

from fedlit.flower.keys import Keys
from fedlit.flower.programs import Programs, free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("flwr") is None, reason='Flower is not installed: pip install "fedlit[flower]"'),
]
CONFIG = ["--config", "synthetic_fedbc", "--data.num_clients", "2"]
RUN = [
    *(*CONFIG, "--wandb", "disabled", "--trainer.rounds", "8", "--trainer.clients_per_round", "2"),
    *("--trainer.eval_every", "8", "--model.start_from", "local"),
]
SERVER = """
import time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    ask = [Message(RecordDict({"c": ConfigRecord({"x": 1})}), node, "query", ttl=100) for node in grid.get_node_ids()]
    left = set(grid.push_messages(ask))
    while left:
        for reply in grid.pull_messages(list(left)):
            left.discard(reply.metadata.reply_to_message_id)
            with Path(FOLDER, "replies").open("a") as file:
                file.write((reply.error.reason if reply.has_error() else "it was answered") + "\\n")
        time.sleep(0.5)
    Path(FOLDER, "done").touch()
"""
CLIENT = """
from pathlib import Path
from flwr.clientapp import ClientApp

Path(FOLDER, "ran on a node").touch()
app = ClientApp()
"""


@contextmanager
def fedlit(*words: str, log: Path, cwd: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A command in the background."""
    program = "import sys; from fedlit_start import main; sys.exit(main())"
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-c", program, *words], stdout=output, stderr=output, cwd=cwd)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def wait_for(words: str, log: Path, seconds: float = 200) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if words in log.read_text():
            return log.read_text()
        time.sleep(0.5)
    raise AssertionError(f"'{words}' is not in: {log.read_text()}")


def run_to_the_end(*words: str, cwd: Path) -> None:
    program = "import sys; from fedlit_start import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", program, *words], check=True, cwd=cwd, timeout=300)


class Damaging:
    """A machine on the way that changes a byte of some pieces that it passes on, counted from the first."""

    def __init__(self, server: str, pieces: set[int]) -> None:
        self.server, self.pieces = server, pieces
        self.passed = self.damaged = 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            near, _ = self.listening.accept()
            host, port = self.server.split(":")
            far = socket.create_connection((host, int(port)))
            for one, other in ((near, far), (far, near)):
                Thread(target=self.pass_on, args=(one, other), daemon=True).start()

    def pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError), one, other:
            while piece := bytearray(one.recv(2**16)):
                self.passed += 1
                if self.passed in self.pieces:
                    piece[len(piece) // 2] ^= 1
                    self.damaged += 1
                other.sendall(piece)


def strangers_app(folder: Path) -> Path:
    """An app that would leave a file behind on every node."""
    from fedlit.flower.bundle import write_bundle

    app = write_bundle(folder / "app", folder / "none", "", {})
    for name, code in (("server", SERVER), ("client", CLIENT)):
        (app / "fedlit_run" / f"{name}.py").write_text(code.replace("FOLDER", repr(str(folder))))
    return app


def metrics(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in csv.DictReader(lines)]


def test_a_run_to_its_end_and_who_is_refused_meanwhile(tmp_path: Path) -> None:
    """A key that is not registered, another authority, a stranger's app, and somebody on the way who changes bytes."""
    server, address = tmp_path / "server", f"127.0.0.1:{free_port()}"
    server.mkdir()
    run_to_the_end("flower", "keys", "--out", "keys", "--host", "127.0.0.1", "--nodes", "a", "b", cwd=server)
    run_to_the_end("flower", "keys", "--out", "others", "--host", "127.0.0.1", "--nodes", "a", cwd=server)
    run_to_the_end("data", "export", *CONFIG, "--out", "data", cwd=server)
    options = ["--data", "data/client-0.npz", "--server", address]
    words = ["flower", "run", *RUN, "--nodes", "2", "--listen", address, "--keys", "keys", "--run", "run"]
    with fedlit(*words, log=tmp_path / "run.log", cwd=server) as run:
        wait_for("waiting for 2 nodes", tmp_path / "run.log")
        for name, ca, key in (
            ("unknown", "keys/ca.crt", "others/nodes/a"),
            ("deceived", "others/ca.crt", "keys/nodes/a"),
        ):
            refused = ["flower", "node", "--name", name, *options, "--ca", ca, "--key", key]
            with fedlit(*refused, log=tmp_path / f"{name}.log", cwd=server):
                print(wait_for("does not know the key of this node, or --ca is not", tmp_path / f"{name}.log"))
        between = Damaging(address, {60, 151, 202})  # TLS notices, and Flower sends it again
        nodes = [
            fedlit(
                *("flower", "node", "--name", name, "--data", f"data/client-{k}.npz", "--server", where),
                *("--ca", "keys/ca.crt", "--key", f"keys/nodes/{name}"),
                log=tmp_path / f"{name}.log",
                cwd=server,
            )
            for k, (name, where) in enumerate((("a", address), ("b", between.address)))
        ]
        with nodes[0], nodes[1]:
            wait_for("engine: ", tmp_path / "run.log")
            (tmp_path / "stranger").mkdir()
            lines = [f'root-certificates = "{Keys(server / "keys").ca}"']
            Programs(tmp_path / "stranger").submit(strangers_app(tmp_path / "stranger"), address, lines)
            assert run.wait(400) == 0, (tmp_path / "run.log").read_text()
    assert between.damaged == 3
    assert not (tmp_path / "stranger" / "ran on a node").exists()
    assert set((tmp_path / "stranger" / "replies").read_text().splitlines()) == {
        "This node runs what its owner has installed, and no app that was submitted."
    }
    replay = ["--replay", "run/events.jsonl", "--trainer.engine", "sequential"]  # a damaged node may miss a round
    run_to_the_end("fit", *RUN, *replay, "--run", "again", cwd=server)
    assert metrics(server / "run" / "metrics.csv") == metrics(server / "again" / "metrics.csv")
