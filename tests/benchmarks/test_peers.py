"""Other frameworks beside fedlit: the talk with a real process, what is said of errors, who did other work."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks import __main__ as bench
from benchmarks import peer as peering
from benchmarks.peer import Choice, Peer, beside, session
from benchmarks.same_work import LAYERS, Outcome, PeerError, SameWork, averaged, compare
from benchmarks.workloads import WORKLOADS, Workload
from fedlit import Softmax
from fedlit.errors import ConfigError
from tests.benchmarks.test_bench import bench_args

SMALL = Workload(
    name="small",
    title="a few rows",
    net=lambda: Softmax(5, 3),
    sample_shape=(5,),
    sizes=(20, 31, 45, 12),
    batch_size=100,
    local_epochs=4,
    clients_per_round=3,
    num_classes=3,
    lr=0.2,
)
"""Full batches, so that the order of rows does not matter."""

NUMPY_PEER = """
import numpy as np

class Peer:
    version, processes, threads = "numpy", 1, 1

    def __init__(self, work):
        self.work, self.rng = work, np.random.default_rng(1)
        print("a library that prints")

    def start(self, weights):
        self.w, self.b = (value.astype(np.float64) for value in weights)

    def round(self, cohort):
        models = [self.train(k) for k in cohort]
        sizes = np.array([len(self.work.clients[k]) for k in cohort]) / sum(len(self.work.clients[k]) for k in cohort)
        self.w = sum(s * w for s, (w, _) in zip(sizes, models))
        self.b = sum(s * b for s, (_, b) in zip(sizes, models))
        return sum(self.work.steps_of(k) for k in cohort)

    def train(self, client):
        w, b = self.w.copy(), self.b.copy()
        for _ in range(self.work.local_epochs):
            rows = self.rng.permutation(self.work.clients[client])
            for first in range(0, len(rows), self.work.batch_size):
                batch = rows[first : first + self.work.batch_size]
                x, y = self.work.x[batch], self.work.y[batch]
                p = np.exp(x @ w.T + b)
                p /= p.sum(1, keepdims=True)
                p[np.arange(len(y)), y] -= 1
                w -= self.work.lr * p.T @ x / len(y)
                b -= self.work.lr * p.mean(0)
        return w, b

    def weights(self):
        return [self.w.astype(np.float32), self.b.astype(np.float32)]
"""


def new_work() -> SameWork:
    data = SMALL.data()
    data.setup()
    return SameWork(SMALL, data, LAYERS["W1"])


def choice(folder: Path, source: str) -> Choice:
    script = folder / "script.py"
    script.write_text(source)
    return Choice("numpy", Path(sys.executable), script)


@pytest.fixture
def started(tmp_path, request):
    """Starts a peer on the small work; it is ended after the test."""

    def start(source: str, **options) -> Peer:
        new_work().write(tmp_path, cores=1)
        peer = Peer(choice(tmp_path, source), tmp_path, **options)
        request.addfinalizer(peer.end)
        return peer

    return start


def test_peer_that_does_the_work_by_hand_in_numpy_agrees_and_is_timed(started):
    work, peer = new_work(), started(NUMPY_PEER)
    assert peer.hello() == {"version": "numpy", "processes": 1, "threads": 1}
    seen, by_hand = peer.check(work), work.by_hand()
    assert seen.steps == by_hand.steps == 2 * 3 * SMALL.local_epochs
    compare("numpy", seen, by_hand)
    assert by_hand.fall > 0.01
    assert seen.fall == pytest.approx(by_hand.fall, rel=1e-4)
    span = peer.run(0.2)
    assert span.steps > 0
    assert span.ended.wall - span.began.wall >= 0.2
    assert span.ended.own - span.began.own > 0.02
    assert peer.peak_rss_mb() > 10


def test_fedlits_own_rounds_on_the_given_cohorts_agree_too(monkeypatch):
    monkeypatch.setattr("fedlit.engines.choose.missing_compiler", lambda: "tests do not compile here")
    work = new_work()
    seen, by_hand = work.by_fedlit(1), work.by_hand()
    assert seen.steps == by_hand.steps
    assert seen.fall == pytest.approx(by_hand.fall, rel=1e-4)


def test_plain_loop_in_two_processes_does_the_same_work(tmp_path, request):
    work = new_work()
    work.write(tmp_path, cores=2)
    peer = Peer(Choice("plain", Path(sys.executable), peering.SCRIPTS / "run_plain.py"), tmp_path)
    request.addfinalizer(peer.end)
    assert peer.hello()["processes"] == 2
    assert len(session(peer.process.pid)) == 2
    seen, by_hand = peer.check(work), work.by_hand()
    assert seen.steps == by_hand.steps
    assert seen.fall == pytest.approx(by_hand.fall, rel=1e-4)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("w -= self.work.lr", "w -= 0.5 * self.work.lr"),
        ("range(self.work.local_epochs)", "range(self.work.local_epochs // 2)"),
        ("self.w, self.b = (value.astype(np.float64)", "self.w, self.b = (value.astype(np.float64) * 1.5"),
        ("return [self.w", "return [np.nan * self.w"),
    ],
    ids=["learning rate", "steps left out", "start", "not finite"],
)
def test_peer_that_does_other_work_is_refused(started, right, wrong):
    assert right in NUMPY_PEER
    work, peer = new_work(), started(NUMPY_PEER.replace(right, wrong, 1))
    peer.hello()
    seen = peer.check(work)
    with pytest.raises(PeerError, match=r"lowered the training loss by .* hand-written loop by .* differ by 2%"):
        compare("numpy", seen, work.by_hand())


def test_times_of_the_compared_rounds_are_averaged_and_missing_steps_show():
    assert averaged([Outcome(100, 0.1), Outcome(100, 0.3)]) == Outcome(100, pytest.approx(0.2))
    assert averaged([Outcome(100, 0.1), Outcome(99, 0.1)]).steps == 99


def test_peer_with_another_number_of_steps_is_refused():
    with pytest.raises(PeerError, match="did 90 local steps in 2 rounds; the hand-written loop 100"):
        compare("numpy", Outcome(90, 0.1), Outcome(100, 0.1))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("import not_to_be_found", ConfigError, "has no package not_to_be_found. Install it there"),
        ("raise OSError('no disk')", PeerError, "failed with OSError: no disk"),
        (
            "import os, sys; sys.stderr.write('out of memory\\n'); sys.stderr.flush(); os._exit(9)",
            PeerError,
            "ended with exit code 9 before it answered. It last wrote: out of memory. ",
        ),
        ("import time; time.sleep(600)", PeerError, "has been silent for 3 s and was ended"),
    ],
    ids=["not installed", "raises", "dies", "hangs"],
)
def test_peer_that_cannot_work_is_told_in_one_paragraph(started, source, error, message):
    with pytest.raises(error) as told:
        started(source, max_silence_s=3.0 if "sleep" in source else 120.0).hello()
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_peer_that_dies_between_two_requests_is_told(started):
    peer = started(NUMPY_PEER.replace("return [self.w", "import os; os._exit(7); return [self.w"))
    peer.hello()
    with pytest.raises(PeerError, match="exit code 7"):
        peer.check(new_work())
    with pytest.raises(PeerError, match="exit code 7"):
        peer.ask("start")


def test_pickle_in_place_of_weights_is_refused(started, tmp_path):
    np.save(tmp_path / "after-0.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(PeerError, match="no weights that can be read"):
        new_work().by_files(1, tmp_path, "numpy")


def test_everything_that_a_peer_started_ends_with_it(started):
    source = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    peer = started(source + NUMPY_PEER)
    peer.hello()
    everyone = list(session(peer.process.pid))
    assert len(everyone) == 2
    peer.end()
    assert wait_for(lambda: session(peer.process.pid) == {})


def state_of(leader: int) -> set[str]:
    """Letters of the system for what the processes of a peer do: T is held still."""
    return {fields[0] for fields in session(leader).values()}


def wait_for(claim: Callable[[], bool]) -> bool:
    """Whether it becomes true within ten seconds."""
    ended = time.monotonic() + 10
    while not claim() and time.monotonic() < ended:
        time.sleep(0.05)
    return claim()


def test_peer_rests_while_it_is_not_its_turn(started):
    peer = started(NUMPY_PEER)
    peer.hello()
    peer.check(new_work())
    peer.rest()
    assert wait_for(lambda: state_of(peer.process.pid) == {"T"})
    assert peer.run(0.05).steps > 0
    assert wait_for(lambda: state_of(peer.process.pid) == {"T"})


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot be asked for it")
def test_peer_at_rest_ends_when_fedlit_is_killed(tmp_path):
    new_work().write(tmp_path, cores=1)
    choice(tmp_path, NUMPY_PEER)
    source = (
        "import pathlib, sys; from benchmarks.peer import Choice, Peer; folder = pathlib.Path(sys.argv[1]); "
        "peer = Peer(Choice('numpy', pathlib.Path(sys.executable), folder / 'script.py'), folder); peer.hello(); "
        "peer.rest(); print(peer.process.pid, flush=True); sys.stdin.read()"
    )
    line = [sys.executable, "-c", source, str(tmp_path)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bench_process:
        assert bench_process.stdout is not None
        leader = int(bench_process.stdout.readline())
        assert wait_for(lambda: state_of(leader) == {"T"})
        bench_process.kill()
    assert wait_for(lambda: session(leader) == {})


@pytest.mark.parametrize("name", list(LAYERS))
def test_layers_in_words_are_the_workloads_network(name):
    workload = replace(WORKLOADS[name], sizes=(3,))
    net, left = workload.net(), None
    left, x = iter(net.parameters()), torch.randn(3, *workload.sample_shape)
    steps = {
        "linear": lambda x: F.linear(x, next(left), next(left)),
        "conv": lambda x: F.conv2d(x, next(left), next(left)),
        "pool": lambda x: F.max_pool2d(x, 2),
        "relu": F.relu,
        "flatten": lambda x: x.flatten(1),
    }
    expected = net(x)
    for layer in LAYERS[name]:
        x = steps[layer](x)
    torch.testing.assert_close(x, expected)
    assert next(left, None) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peer", "pfl"], "has no interpreter. Write --peer NAME=PYTHON"),
        (["--peer", f"pfll={sys.executable}"], "Did you mean 'pfl'"),
        (["--peer", f"flwr={sys.executable}"], "Known: plain, fedjax, pfl, flower"),
        (["--peer", "pfl=/nowhere/python"], "/nowhere/python is not a program"),
        (["--peer", f"pfl={sys.executable}", "--workload", "W4"], "W4 .* is not one of them. Leave out --workload W4"),
    ],
    ids=["no interpreter", "unknown", "by its package", "missing", "workload"],
)
def test_wrong_peer_is_refused_before_any_work(words, message):
    with pytest.raises(ConfigError, match=message):
        bench.main(bench_args(*words))


def test_bench_measures_a_peer_in_turns_with_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedlit.engines.choose.missing_compiler", lambda: "tests do not compile here")
    monkeypatch.setattr(bench, "WORKLOADS", {"W1": replace(SMALL, name="W1")})
    monkeypatch.setattr(peering, "SCRIPTS", tmp_path)
    (tmp_path / "run_pfl.py").write_text(NUMPY_PEER)
    (tmp_path / "serve.py").write_text((Path(peering.__file__).parent / "peers" / "serve.py").read_text())
    words = ["--workload", "W1", "--peer", f"pfl={sys.executable}", "--json", str(tmp_path / "a.json")]
    assert bench.main(bench_args(*words, "--repeats", "1", "--seconds", "0.05")) == 0
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["workloads"]["W1"][-1]["name"] == "pfl"
    assert written["workloads"]["W1"][-1]["ratio"] > 0
    assert list(written["same_work"]["W1"]) == ["handwritten", "vectorized", "pfl"]
    assert "Fall of the training loss in 2 rounds" in capsys.readouterr().out


@pytest.mark.skipif("FEDLIT_PEERS" not in os.environ, reason="FEDLIT_PEERS (NAME=PYTHON, …) names no environments")
def test_installed_peers_do_the_same_work():
    data = WORKLOADS["W1"].data()
    data.setup()
    choices = [Choice.parse(text) for text in os.environ["FEDLIT_PEERS"].split(",")]
    with beside(WORKLOADS["W1"], data, choices, lambda what: None) as (entries, _):
        assert all(entry.run(0.5).steps > 0 for entry in entries)
