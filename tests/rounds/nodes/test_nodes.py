"""`fedlit cloud`: servers and clients as processes have the simulation's numbers, and none of them is left behind."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import yaml
from pyarrow import parquet

from fedlit.client.messages import pack, unpack
from fedlit.errors import ProcessError
from fedlit.results.records import read_metrics
from fedlit.rounds.nodes.plan import Plan, divide
from fedlit.rounds.nodes.supervisor import Supervisor
from tests.cases import slow_but
from tests.conftest import Call
from tests.forked import forked
from tests.sockets import Strangers, listening

EVERYONE = "--servers 3 --clients 6"
FEW = "--servers 3 --clients 3"
"""A process takes half a second to come up."""
MODELS: dict[str, dict[str, Any]] = {
    "FedBCD": {"prox": 0.8, "extrapolation": 0.7},
    "FedAvg": {"local_epochs": 2, "momentum": 0.5, "keep_optimizer": True},
    "Scaffold": {"local_epochs": 1},
    "examples.topk.TopK": {"local_epochs": 1},
}


@pytest.fixture
def config(workplace: Path) -> Callable[..., str]:
    """`config(algorithm, rounds=6, …)` writes a small run in float64; returns the words that name it."""

    def write(algorithm: str = "FedBCD", **trainer: Any) -> str:
        given: dict[str, Any] = {
            "rounds": 6,
            "clients_per_round": 2,
            "sampler": "earliest",
            "precision": "64-true",
            "engine": "sequential",
            "checkpoint_every": 1,
            "enable_progress_bar": False,
            "cloud": {"servers": 3, "first": 2},
            "clock": {"latency": {"arrival": {"class_path": "Exponential", "init_args": {"mean": 2.0}}}},
        }
        net = {"class_path": "fedlit.Softmax", "init_args": {"num_features": 60, "num_classes": 10}}
        content = {
            "trainer": given | trainer,
            "model": {
                "class_path": algorithm,
                "init_args": {"net": net, "lr": 0.01, "batch_size": 5, **MODELS[algorithm]},
            },
            "data": {"class_path": "Synthetic", "init_args": {"num_clients": 12, "size_mean": 2.5, "size_sigma": 0.5}},
        }
        Path("small.yaml").write_text(yaml.safe_dump(content))
        return "--config small.yaml --wandb disabled"

    return write


def ended_state(folder: str) -> dict[str, Any]:
    """All that a run's last checkpoint holds of servers, clients and optimisers."""
    content = torch.load(Path(folder) / "checkpoints" / "last.ckpt", weights_only=True)
    loop = content["loops"]["fit_loop"]
    return {name: loop[name] for name in ("rounds", "federation", "clients", "first_risk")} | {
        "optimizers": content["optimizer_states"],
        "callbacks": {name: state for name, state in content["callbacks"].items() if "RunCheckpoint" not in name},
    }


def assert_same(one: Any, other: Any, where: str = "state") -> None:
    """Bit for bit, wherever two nested states hold numbers or tensors."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name, value in one.items():
            assert_same(value, other[name], f"{where}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for k, value in enumerate(one):
            assert_same(value, other[k], f"{where}[{k}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


def measured(folder: str) -> list[dict[str, float]]:
    """metrics.csv without what a clock on the wall says."""
    rows = read_metrics(Path(folder) / "metrics.csv")
    return [
        {name: value for name, value in row.items() if not name.endswith(("train_s", "eval_s", "round_s"))}
        for row in rows
    ]


def processes() -> dict[str, int]:
    """Name and id of every process that a run in this process has started and that still lives."""
    return {child.name.removeprefix("fedlit "): child.pid or 0 for child in multiprocessing.active_children()}


@contextmanager
def killed_after(name: str, rows: int, how: int = signal.SIGKILL) -> Iterator[dict[str, float]]:
    """Kill a process of the run, or this one, once its metrics.csv has so many rows; says when that was."""
    known: dict[str, float] = {}
    over = threading.Event()

    def wait_and_kill() -> None:
        path = Path("cloud/metrics.csv")
        while not over.is_set() and (not path.exists() or path.read_text().count("\n") <= rows):
            time.sleep(0.005)
        if not over.is_set():
            os.kill(processes()[name] if name else os.getpid(), how)
            known["at"] = time.monotonic()

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    try:
        yield known
    finally:
        over.set()
        thread.join()


SAME = {
    "FedBCD-async": ("FedBCD", {"cloud": {"servers": 3, "first": 2, "iterations": 2}}, EVERYONE),
    "FedBCD-sync": ("FedBCD", {"cloud": {"servers": 3}}, FEW),
    "FedAvg-async": ("FedAvg", {"server_optimizer": "FedAdam"}, FEW),
    "FedAvg-sync": ("FedAvg", {"cloud": {"servers": 3, "mixing": {"class_path": "Ring"}}}, FEW),
    "FedAvg-rigorous": ("FedAvg", {"cloud": {"servers": 3, "first": 2, "protocol": "rigorous"}}, FEW),
    "TopK-async": ("examples.topk.TopK", {}, FEW),
    "Scaffold-flat": ("Scaffold", {"cloud": None, "clients_per_round": 5}, "--clients 3"),
}


@pytest.mark.parametrize("name", slow_but(set(SAME) - {"FedBCD-sync", "FedAvg-async"}, SAME))
def test_processes_have_the_bits_of_the_simulation(call: Call, config: Callable[..., str], name: str) -> None:
    algorithm, trainer, counts = SAME[name]
    words = config(algorithm, **trainer)
    answer = call(f"cloud {words} {counts} --run cloud")
    assert answer.code == 0, answer
    assert processes() == {}
    assert call(f"fit {words} --run fit").code == 0
    assert_same(ended_state("cloud"), ended_state("fit"))
    assert measured("cloud") == measured("fit")
    if Path("fit/servers.parquet").exists():
        assert parquet.read_table("cloud/servers.parquet").equals(parquet.read_table("fit/servers.parquet"))


def lines_about(words: str) -> list[str]:
    """Lines of the run's log.txt, which are also shown."""
    return [line for line in Path("cloud/log.txt").read_text().splitlines() if words in line]


def test_async_goes_on_without_a_killed_server_and_says_so(call: Call, config: Callable[..., str]) -> None:
    words = config(rounds=60, checkpoint_every=20)
    with killed_after("Server 1", rows=4) as killed:
        answer = call(f"cloud {words} {FEW} --run cloud")
    assert "at" in killed
    assert answer.code == 0, answer
    [line] = lines_about("Server 1")
    assert "was ended by SIGKILL" in line
    assert "the run goes on with 2 of 3 servers" in line
    rows = parquet.read_table("cloud/servers.parquet").to_pylist()
    assert max(row["round"] for row in rows) == 60
    assert {row["server"] for row in rows if row["round"] == 1} == {0, 1, 2}
    assert {row["server"] for row in rows if row["round"] == 60} == {0, 2}
    assert processes() == {}


def test_sync_stops_at_a_killed_server_and_is_resumed_to_the_same_bits(call: Call, config: Callable[..., str]) -> None:
    words = config(rounds=40, cloud={"servers": 3})
    with killed_after("Server 2", rows=4) as killed:
        answer = call(f"cloud {words} {FEW} --run cloud")
    assert time.monotonic() - killed["at"] < 15
    assert answer.code == 1, answer
    [line] = answer.err.splitlines()
    assert line.startswith("fedlit: Server 2 (process ")
    assert "was ended by SIGKILL. 3 of 3 servers step together, and 2 are left: the run ends." in line
    assert processes() == {}
    assert call(f"cloud {words} {FEW} --run cloud --resume").code == 0
    assert call(f"fit {words} --run fit").code == 0
    assert_same(ended_state("cloud"), ended_state("fit"))
    assert measured("cloud") == measured("fit")


def test_a_server_that_loses_a_client_process_leaves_the_run(call: Call, config: Callable[..., str]) -> None:
    words = config(rounds=60, checkpoint_every=20)
    with killed_after("Client process 0", rows=4):
        answer = call(f"cloud {words} {FEW} --run cloud")
    assert answer.code == 0, answer
    [line] = lines_about("Client process 0")
    assert "was ended by SIGKILL, and with it server 0 has lost clients: the run goes on with 2 of 3 servers" in line
    assert processes() == {}


def test_a_real_pace_is_replayed_by_the_simulation_to_the_same_bits(call: Call, config: Callable[..., str]) -> None:
    latency = {"arrival": {"class_path": "Exponential", "init_args": {"mean": 0.01}}}
    words = config(rounds=8, clock={"latency": latency})
    assert call(f"cloud {words} {FEW} --pace real --run cloud").code == 0
    assert call(f"fit {words} --config cloud/replay.yaml --run fit").code == 0
    ours, theirs = ended_state("cloud"), ended_state("fit")
    assert_same(ours["clients"], theirs["clients"])
    for one, other in zip(ours["federation"]["servers"], theirs["federation"]["servers"], strict=True):
        assert_same(one["model"], other["model"])
        assert one["clock"]["rounds"] == other["clock"]["rounds"]
    real, replayed = ([row["time/sim_s"] for row in measured(folder)] for folder in ("cloud", "fit"))
    np.testing.assert_allclose(real, replayed, rtol=0, atol=1e-9)
    assert real[-1] > 0
    assert processes() == {}


REFUSED = [
    ("--servers 4", {}, "--servers is 4, but trainer.cloud.servers is 3. Leave --servers out"),
    ("--servers 2", {"cloud": None}, "the config has no trainer.cloud with several servers: there is 1."),
    ("--servers 0", {}, "--servers is 0; give 1 or more"),
    ("--clients 2", {}, "--clients is 2, but there are 3 servers, and each needs a client process of its own."),
    ("--clients 13", {}, "server 0 5 client processes, but it has only 4 clients. Give 12 or fewer"),
    ("--pace fast", {}, "pace is 'fast', but it must be one of replay, real."),
    ("--timeout 0", {}, "--timeout is 0.0; give seconds above 0."),
    ("--port 70000", {}, "--port is 70000; give a number from 1 to 65535"),
    ("--pace real --resume", {}, "--pace real follows the real times"),
    ("", {"cloud": None, "buffer": {"size": 2, "concurrency": 4}}, "trainer.buffer is a server that does not wait"),
    ("--pace real", {"clock": {"dropout": 0.1}}, "a deadline or dropout, which are simulated"),
    (
        "",
        {"engine": "vectorized"},
        "trainer.engine is vectorized, but each client process trains its clients one after",
    ),
    ("", {"engine": "auto", "lanes": 2}, "trainer.lanes is 2, but each client process"),
]


@pytest.mark.parametrize(("words", "trainer", "said"), REFUSED, ids=[f"{words} {given}" for words, given, _ in REFUSED])
def test_what_processes_cannot_do_is_refused_before_any_is_started(
    refusal: Callable[..., str], config: Callable[..., str], words: str, trainer: dict[str, Any], said: str
) -> None:
    assert said in refusal(f"cloud {config('FedAvg', **trainer)} {words}")
    assert processes() == {}


def test_a_port_that_is_in_use_is_refused(refusal: Callable[..., str], config: Callable[..., str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"--port is {port}, on which this process cannot listen" in refusal(f"cloud {config()} --port {port}")


def ended_without_server_1(call: Call, words: str, hook: str) -> dict[str, Any]:
    """Servers 0 and 2 and all clients after a run in which server 1 dies in a hook of its second round."""
    assert call(f"cloud {words} {FEW} --run {hook}").code == 0
    assert processes() == {}
    state = ended_state(hook)
    return {"clients": state["clients"], "servers": [state["federation"]["servers"][id] for id in (0, 2)]}


def test_a_step_in_which_a_server_is_lost_is_undone_and_taken_by_the_others(
    call: Call, config: Callable[..., str]
) -> None:
    runs = {}
    for hook in ("on_cohort_start", "on_cohort_trained", "on_server_step_end"):
        dies = {"class_path": "tests.dying.Dies", "init_args": {"hook": hook}}
        words = config(callbacks=[dies], cloud={"servers": 3, "first": 2, "iterations": 2})
        runs[hook] = ended_without_server_1(call, words, hook)
    assert_same(runs["on_cohort_trained"], runs["on_cohort_start"])
    assert_same(runs["on_server_step_end"], runs["on_cohort_start"])


def test_the_only_server_is_lost_within_its_step(call: Call, config: Callable[..., str]) -> None:
    dies = {"class_path": "tests.dying.Dies", "init_args": {"hook": "on_server_step_end", "server": 0}}
    words = config(callbacks=[dies], cloud=None)
    answer = call(f"cloud {words} --clients 2 --run cloud")
    assert answer.code == 1
    assert "1 of 1 servers step together, and 0 are left: the run ends." in answer.err
    assert len(measured("cloud")) == 2, "the initial model and the first round"
    assert ended_state("cloud")["rounds"] == 1
    assert processes() == {}


def nothing_is_built() -> NoReturn:
    raise AssertionError("no process is started")


def test_a_silent_process_is_named_when_the_time_is_up() -> None:
    plan = Plan(divide([[0], [1]], workers=2), "replay", timeout=0.1)
    with pytest.raises(ProcessError, match=r"Nothing was heard of server 1 for 0\.1 seconds"):
        Supervisor(plan, nothing_is_built).hear([1])


def descendants(pid: int) -> set[int]:
    """Every process that a process, or one that it has started, has started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


@contextmanager
def running(words: str) -> Iterator[int]:
    """`fedlit` in a process of its own, which has written some rounds; gives its id."""
    started = forked(words)
    try:
        path = Path("cloud/metrics.csv")
        while not path.exists() or path.read_text().count("\n") < 4:
            assert started.poll() is None
            time.sleep(0.05)
        yield started.pid
        started.process.join(20)
    finally:
        started.process.kill()
        started.wait()


@pytest.mark.parametrize("how", slow_but([signal.SIGKILL], [signal.SIGINT, signal.SIGKILL]))
def test_no_process_outlives_the_command(config: Callable[..., str], how: int) -> None:
    words = config(rounds=100_000, eval_every=50, checkpoint_every=1000)
    with running(f"cloud {words} {EVERYONE} --run cloud") as pid:
        others = descendants(pid)
        assert len(others) >= 9
        assert sum(os.getpgid(other) == other for other in others) == 9, "a terminal's Ctrl-C is not for them"
        os.kill(pid, how)
    until = time.monotonic() + 30  # the fork server goes last
    while any(Path(f"/proc/{other}").exists() for other in others) and time.monotonic() < until:
        time.sleep(0.05)
    assert [other for other in others if Path(f"/proc/{other}").exists()] == []


def test_all_sockets_of_two_clouds_at_once_are_on_loopback_and_strangers_do_not_disturb_them(
    config: Callable[..., str],
) -> None:
    words, strangers = config(rounds=30), Strangers()
    clouds = [forked(f"cloud {words} {FEW} --run {name}", Path(f"{name}.txt")) for name in ("one", "two")]
    while any(cloud.poll() is None for cloud in clouds):
        pids = [pid for cloud in clouds for pid in (cloud.pid, *descendants(cloud.pid))]
        strangers.visit(listening(pids))
        time.sleep(0.1)
    strangers.leave()
    assert [cloud.wait() for cloud in clouds] == [0, 0], Path("one.txt").read_text() + Path("two.txt").read_text()
    assert {address for address, _ in strangers.seen} == {"127.0.0.1"}
    assert len(strangers.seen) >= 2 * 7
    assert measured("one") == measured("two")


def test_ctrl_c_ends_the_run_at_a_rounds_end_and_it_is_resumed(call: Call, config: Callable[..., str]) -> None:
    words = config(rounds=30)
    with killed_after("", rows=3, how=signal.SIGINT):
        answer = call(f"cloud {words} {FEW} --run cloud")
    assert answer.code == 130, answer
    assert processes() == {}
    assert call(f"fit {words} --run cloud --resume").code == 0
    assert call(f"fit {words} --run fit").code == 0
    assert_same(ended_state("cloud"), ended_state("fit"))


def test_a_message_arrives_as_it_was_sent() -> None:
    same = torch.arange(4.0).expand(3, 4)
    message = {
        "numbers": [1, 2.5, float("inf"), True, None, "λ"],
        "state": {0: {"betas": (0.9, 0.99)}, "empty": {}},
        "tensors": [torch.randn(2, 3, dtype=torch.float64), torch.tensor(7), torch.zeros(0, 2), torch.tensor([True])],
        "narrow": torch.randn(3).bfloat16(),
        "same": same,
    }
    got = unpack(pack(message))
    assert_same(got, message)
    assert got["same"].stride(0) == 0, "one row is sent where all are the same"
    assert len(pack({"same": same})) < len(pack({"same": same.contiguous()}))


def test_client_processes_are_divided_among_servers_in_blocks() -> None:
    parts = divide([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], workers=5)
    assert [(part.rank, part.server, part.worker, part.clients) for part in parts] == [
        *((1, 0, None, ()), (2, 1, None, ()), (3, 2, None, ())),
        *((4, 0, 0, (0, 1)), (5, 0, 1, (2, 3)), (6, 1, 2, (4, 5)), (7, 1, 3, (6, 7)), (8, 2, 4, (8, 9))),
    ]
