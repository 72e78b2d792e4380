"""Several processes, real ones: they give the bits of one, end together, and go on in any number."""

import ast
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import FileStore, ProcessGroupGloo  # type: ignore[attr-defined]  # torch lists one alone

from fedlit import FedAvg, FedBC, FederatedTrainer
from fedlit.client.row_layout import RowLayout
from fedlit.engines.choose import Request, check_same_engine
from fedlit.engines.processes.error_json import from_json, to_json
from fedlit.engines.processes.group import rows_in_order
from fedlit.engines.processes.monitor import IdleTimer, Member, is_alive
from fedlit.engines.processes.rendezvous import LOOPBACK, introduce, recognize, serve_here
from fedlit.errors import ConfigError, DamagedRowsError, DivergedError, FedlitError, RankError, ResumeError
from fedlit.experiments.conformance.problem import LOCAL, largest_gap
from fedlit.ranks import divide
from fedlit.results.records import read_metrics
from fedlit.trainer.description import check_ranks_agree
from tests import ranked
from tests.conftest import TINY
from tests.forked import PROCESSES, Fork, forked
from tests.problems import tiny_data, tiny_net
from tests.sockets import Strangers, listening

ROOT = Path(__file__).parents[2]
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "PL_"))}
"""The environment of a user without W&B, and without what another run left."""
STEPS = """
import os, time
from pathlib import Path
from fedlit import FedBC

class Slow(FedBC):
    def training_step(self, batch, batch_idx):
        if Path("hang-" + os.environ.get("LOCAL_RANK", "0")).exists():
            time.sleep(1000)
        time.sleep(0.01)
        return super().training_step(batch, batch_idx)
"""


def play(game: str, ranks: int, folder: Path) -> list[dict[str, Any]]:
    """What every rank of a game found. They start as with torchrun; `lost` and a slow test start from nothing."""
    said, place = folder / f"{game}.txt", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    begun = [
        Fork(PROCESSES.Process(target=ranked.play, args=(game, ranks, rank, folder, PLAIN | place, said)))
        for rank in range(ranks)
    ]
    codes = [one.wait(580) for one in begun]
    assert codes == [0] * ranks, said.read_text()[-3000:]
    return [torch.load(folder / f"{game}-{rank}-of-{ranks}.pt", weights_only=False) for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("played")


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    return play("two", 2, folder)


@pytest.fixture(scope="module")
def alone(folder: Path, two: list[dict[str, Any]]) -> dict[str, Any]:
    """The same runs in this process, and two rounds more of what two ranks began."""
    runs = {name: run() for name, run in ranked.RUNS.items()}
    on_disk = ranked.continued(1, folder, rounds=4, states="disk")
    return runs | {"continued": ranked.continued(1, folder, rounds=4), "continued on disk": on_disk}


@pytest.fixture(scope="module")
def three(folder: Path, alone: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of three ranks found, who then continue what one process left."""
    return play("three", 3, folder)


# ---- who does what ---------------------------------------------------------------------------------------------------


def test_longest_items_go_first_to_the_rank_that_has_least() -> None:
    assert divide([5, 1, 9, 3, 3], 2) == [[1, 2], [0, 3, 4]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_every_item_has_one_rank(ranks: int) -> None:
    shares = divide([4, 0, 2, 2, 9], ranks)
    assert sorted(item for share in shares for item in share) == [0, 1, 2, 3, 4]


def test_items_without_cost_are_shared_too() -> None:
    assert divide([0, 0, 0, 0], 2) == [[0, 2], [1, 3]]


def test_rows_of_ranks_are_put_into_the_items_order() -> None:
    shares, counts = [[1, 2], [0, 3]], [2, 1, 3, 1]
    held = torch.tensor([10, 20, 21, 22, 0, 1, 30])  # rank 0: items 1 and 2; rank 1: items 0 and 3
    assert held[rows_in_order(shares, counts)].tolist() == [0, 1, 10, 20, 21, 22, 30]


def test_rows_of_any_type_come_back_exactly() -> None:
    rows = {
        "weight": torch.randn(3, 2, 5),
        "count": torch.tensor([2**53 + 1, -1, 0]),
        "flag": torch.tensor([True, False, True]),
        "dual": torch.tensor([float("nan"), 1e-310, -0.0], dtype=torch.float64),
        "nothing": torch.zeros(3, 0),
    }
    layout = RowLayout.of(rows)
    flat = torch.zeros(3, layout.width, dtype=torch.uint8)
    layout.write(rows, flat)
    back = layout.read(flat)
    assert {name: value.dtype for name, value in back.items()} == {name: value.dtype for name, value in rows.items()}
    assert all(back[name].numpy().tobytes() == value.numpy().tobytes() for name, value in rows.items())
    assert back["weight"].shape == (3, 2, 5)


def test_time_for_which_a_process_was_stopped_itself_is_not_counted_as_silence() -> None:
    timer = IdleTimer(period=0.01)
    time.sleep(0.2)
    assert timer.passed() == 0.02
    assert timer.passed() < 0.02


class UsersError(Exception):
    """Of a class that other modules do not know."""


class UsersConfigError(ConfigError):
    """Another one, which is fedlit's kind of error."""


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (RankError("x"), RankError, "x"),
        (ZeroDivisionError("x"), ZeroDivisionError, "x"),
        (KeyError("x"), KeyError, "'x'"),
        (FileNotFoundError(2, "not there"), FileNotFoundError, "[Errno 2] not there"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
        (DivergedError("x", round=3, client=7), DivergedError, "x"),
        (DamagedRowsError(Path("rows.bin"), "cut off"), DamagedRowsError, "rows.bin is damaged: cut off."),
        (UsersError("x"), RuntimeError, "UsersError: x"),
        (UsersConfigError("x"), FedlitError, "UsersConfigError: x"),
        (UnicodeDecodeError("utf8", b"x", 0, 1, "why"), RuntimeError, "UnicodeDecodeError: 'utf8' codec"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_error_that_travelled_as_json_has_its_class_and_its_words(
    error: BaseException, kind: type[BaseException], said: str
) -> None:
    back = from_json(json.loads(json.dumps(to_json(error, "Rank 1 raised it."))))
    assert type(back) is kind
    assert str(back).startswith(said)
    assert getattr(back, "exit_code", None) == getattr(error, "exit_code", None)
    assert getattr(back, "round", None) == getattr(error, "round", None)
    assert hasattr(back, "__notes__") == (not isinstance(error, FedlitError))


def test_rank_without_rows_takes_the_layout_of_the_others_and_the_wider_type_counts() -> None:
    narrow, wide = ({"loss": torch.zeros(1, dtype=dtype)} for dtype in (torch.float32, torch.float64))
    agreed = RowLayout.agreed([RowLayout.of({}), RowLayout.of(narrow), RowLayout.of(wide)])
    assert agreed == RowLayout.of(wide)


# ---- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", ["two", pytest.param("three", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ranked.RUNS)
def test_several_processes_give_the_bits_of_one(
    name: str, processes: str, alone: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    for rank in request.getfixturevalue(processes):
        assert largest_gap(alone[name]["all"], rank[name]["all"]) == 0
        assert repr(rank[name]["history"]) == repr(alone[name]["history"])  # repr: NaN equals NaN


CONTINUED = pytest.mark.parametrize(("name", "states"), [("continued", "memory"), ("continued on disk", "disk")])


@CONTINUED
def test_run_of_two_processes_goes_on_with_one_from_the_first_ranks_folder(
    name: str, states: str, folder: Path, two: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    straight = ranked.conforming("SCAFFOLD I", rounds=4)
    assert [len(part["history"]) for part in (two[0][name], alone[name])] == [3, 5]
    assert largest_gap(straight["all"], alone[name]["all"]) <= 1e-10
    assert not (folder / states / "run-of-1").exists()
    assert len(list(folder.glob(f"{states}/run-of-0/checkpoints/rows-*.bin"))) == (states == "disk")


@pytest.mark.slow
@CONTINUED
def test_run_goes_on_with_one_process_and_then_three_from_the_first_ranks_folder(
    name: str, states: str, folder: Path, two: list[dict[str, Any]], alone: dict[str, Any], three: list[dict[str, Any]]
) -> None:
    straight = ranked.conforming("SCAFFOLD I", rounds=6)
    assert [len(part["history"]) for part in (two[0][name], alone[name])] == [3, 5]
    for rank in three:
        assert largest_gap(straight["all"], rank[name]["all"]) <= 1e-10
        assert len(rank[name]["history"]) == 7
    assert not any((folder / states / f"run-of-{rank}").exists() for rank in (1, 2))
    assert len(list(folder.glob(f"{states}/run-of-0/checkpoints/rows-*.bin"))) == (states == "disk")
    assert "had 1 processes so far and goes on with 3" in (folder / "three.txt").read_text()


# ---- together --------------------------------------------------------------------------------------------------------


def test_all_ranks_stop_after_the_round_in_which_one_was_asked(two: list[dict[str, Any]]) -> None:
    assert [rank["stopped"] for rank in two] == [{"rounds": 2, "interrupted": True}] * 2


def test_all_ranks_end_with_the_error_of_one_in_the_state_of_the_last_round(two: list[dict[str, Any]]) -> None:
    straight = ranked.conforming("FedBC", rounds=1)["all"]
    for rank in two:
        told = rank["failed"]["told"]
        assert told.startswith("this rank is ill")
        assert "in round 2, client" in told
        assert rank["failed"]["rounds"] == 1
        assert rank["failed"]["all"].keys() == straight.keys()
    assert largest_gap(two[0]["failed"]["all"], two[1]["failed"]["all"]) == 0


def test_ranks_that_are_not_started_alike_do_not_begin(two: list[dict[str, Any]]) -> None:
    assert "trainer.divergence_factor is 100.0 and 101.0" in two[0]["unlike"]
    assert two[0]["unlike"] == two[1]["unlike"]


def test_folder_that_the_first_rank_may_not_use_is_refused_on_all(two: list[dict[str, Any]]) -> None:
    assert "already holds a run" in two[0]["taken"]
    assert two[0]["taken"] == two[1]["taken"]


def test_profile_names_the_phases_of_a_round_for_every_rank_and_moves_no_bit(
    folder: Path, two: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    said = (folder / "two.txt").read_text()
    reports = [said.split("rank 0: ")[1].split("rank 1: ")[0], said.split("rank 1: ")[1]]
    for report in reports:
        for phase in ("sample", "gather", "train", "server", "evaluate", "log", "communicate", "wait"):
            assert f"[fedlit] {phase} " in report
    assert largest_gap(alone["FedBC"]["all"], two[0]["profiled"]["all"]) == 0


def test_lightnings_callbacks_agree_over_all_ranks(two: list[dict[str, Any]]) -> None:
    assert [rank["watched"] for rank in two] == [{"rounds": 2, "saved": 2}] * 2


def test_one_line_says_that_ranks_are_idle(folder: Path, two: list[dict[str, Any]]) -> None:
    assert "1 of 2 processes are idle: only 1 clients train in a round." in (folder / "two.txt").read_text()


def test_every_line_is_said_once(folder: Path, two: list[dict[str, Any]]) -> None:
    lines = (folder / "two.txt").read_text().splitlines()
    assert len([line for line in lines if line.startswith("engine: ")]) == len(ranked.RUNS) + 6


# ---- a rank that is lost ---------------------------------------------------------------------------------------------


class Command:
    """`fedlit fit` with two processes, in a folder of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "steps.py").write_text(STEPS)
        self.words = [*TINY.split(), "--model.class_path", "steps.Slow"]
        processes = ["--trainer.rounds", "400", "--trainer.devices", "2", "--trainer.strategy", "ddp", *options]
        self.said = folder / "said.txt"
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, ROOT / "fedlit_start.py", "fit", *self.words, *processes],
                cwd=folder,
                env=PLAIN | {"TMPDIR": str(folder)},
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def wait_for_rounds(self, rounds: int) -> None:
        metrics = self.folder / "run" / "metrics.csv"
        for _ in range(5000):
            if metrics.exists() and metrics.read_text().count("\n") > rounds:
                return
            assert self.process.poll() is None, self.said.read_text()
            time.sleep(0.1)
        raise AssertionError(self.said.read_text())

    @property
    def children(self) -> list[int]:
        with suppress(FileNotFoundError):
            listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
            return [int(pid) for pid in listed.split()]
        return []

    def wait_for_child(self) -> int:
        """The process of rank 1, as soon as there is one."""
        for _ in range(5000):
            if self.children:
                return self.children[0]
            time.sleep(0.05)
        raise AssertionError(self.said.read_text())

    def end(self, seconds: float) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            for pid in [*self.children, self.process.pid] if self.process.poll() is None else []:
                os.kill(pid, signal.SIGKILL)


def gone_within(pids: Sequence[int], seconds: float) -> bool:
    """Whether all of these processes end in time."""
    deadline = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(is_alive(pid) for pid in pids)


LOST = {
    "killed": (1, signal.SIGKILL, "is gone: it was killed or crashed", 1),
    "hanging": (1, None, "has given no sign for 8 s", 1),
    "first killed": (0, signal.SIGKILL, "is gone: it was killed or crashed", -9),
    "first stopped": (0, signal.SIGSTOP, "has given no sign for 8 s", 1),
}
"""How a rank is lost: which one, the signal (without one its step hangs), what is said, and the command's exit code."""


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Runs that are started at once and lose a rank, each in its own way."""
    folder = tmp_path_factory.mktemp("lost")
    commands = {how: Command(folder / how, "--trainer.rank_timeout", "8") for how in LOST}
    found: dict[str, Any] = {"commands": commands, "pids": {}, "codes": {}}
    try:
        for how, command in commands.items():
            command.wait_for_rounds(3)
            found["pids"][how] = [command.process.pid, *command.children]
        for how, (rank, signum, _, _) in LOST.items():
            if signum is None:
                (commands[how].folder / f"hang-{rank}").touch()
            else:
                os.kill(found["pids"][how][rank], signum)
        found["codes"] = {how: command.end(200) for how, command in commands.items()}
        yield found
    finally:
        for pid in [pid for pids in found["pids"].values() for pid in pids if is_alive(pid)]:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", LOST)
def test_run_that_loses_a_rank_ends_with_a_line_that_names_it_and_leaves_nobody(lost: dict[str, Any], how: str) -> None:
    rank, _, said, code = LOST[how]
    pids = lost["pids"][how]
    assert gone_within(pids, 20)
    named = f"fedlit: Rank {rank} (process {pids[rank]} on "
    lines = [line for line in lost["commands"][how].said.read_text().splitlines() if line.startswith(named)]
    assert [line for line in lines if said in line and "continue with --resume" in line] == lines[-1:]
    assert lost["codes"][how] == code
    assert list(lost["commands"][how].folder.glob("fedlit-*")) == []


@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0])
def test_first_rank_that_is_killed_at_the_start_leaves_nobody(tmp_path: Path, seconds: float) -> None:
    command = Command(tmp_path / "run")
    child = command.wait_for_child()
    time.sleep(seconds)
    command.process.kill()
    command.process.wait()
    assert gone_within([child], 20)


@pytest.mark.parametrize("how", ["killed", "hanging", "first stopped"])
@pytest.mark.usefixtures("workplace")
def test_run_that_lost_a_rank_can_be_continued(lost: dict[str, Any], how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = lost["commands"][how]
    run = command.folder / "run"
    rounds = len(read_metrics(run / "metrics.csv"))
    assert (run / "lock").exists() == how.startswith("first")
    monkeypatch.chdir(command.folder)
    words = " ".join([*command.words, "--trainer.rounds", str(rounds), "--resume"])
    code, said = forked(f"fit {words}", Path("again.txt")).wait(300), Path("again.txt").read_text()
    assert code == 0, said
    assert "had 2 processes so far and goes on with 1" in said
    assert [row["round"] for row in read_metrics(run / "metrics.csv")] == list(range(rounds + 1))


# ---- strangers -------------------------------------------------------------------------------------------------------


def test_all_sockets_of_a_run_are_on_loopback_and_strangers_do_not_disturb_it(tmp_path: Path) -> None:
    command, strangers = Command(tmp_path / "run", "--trainer.rounds", "30"), Strangers()
    while command.process.poll() is None:
        strangers.visit(listening([command.process.pid, *command.children]))
        time.sleep(0.02)
    strangers.leave()
    assert command.process.returncode == 0, command.said.read_text()
    assert {address for address, _ in strangers.seen} == {"127.0.0.1"}
    assert len(strangers.seen) >= 2


def test_nothing_between_processes_can_hold_a_program() -> None:
    files = sorted((ROOT / "fedlit" / "engines" / "processes").glob("*.py"))
    assert files
    for file in [*files, ROOT / "fedlit" / "ranks.py"]:
        tree = ast.parse(file.read_text())
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        called = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert not imported & {"pickle", "marshal", "shelve", "multiprocessing"}
        assert not [
            name
            for name in map(called_name, called)
            if name.endswith(("_object", "_object_list")) and name != "py_object"
        ]
        loads = [node for node in called if ast.unparse(node.func) == "torch.load"]
        assert all("weights_only=True" in ast.unparse(node) for node in loads)


def called_name(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


US = Member(1, 7, "here", "machine")


@pytest.mark.parametrize(
    ("said", "secret", "run"),
    [
        ("GET / HTTP/1.1", "ours", 1),
        ("[]", "ours", 1),
        ('{"member": "[1, 7, \\"a\\", \\"b\\"]"}', "ours", 1),
        (None, "theirs", 1),
        (None, "ours", 2),
    ],
    ids=["no JSON", "other JSON", "without a signature", "another secret", "of an earlier run"],
)
def test_process_that_does_not_know_the_secret_is_not_taken_for_a_rank(
    monkeypatch: pytest.MonkeyPatch, said: str | None, secret: str, run: int
) -> None:
    monkeypatch.setenv("FEDLIT_SECRET", secret)
    introduction = said or introduce(US, run=1)
    monkeypatch.setenv("FEDLIT_SECRET", "ours")
    with pytest.raises(RankError, match="came as rank 1 that does not know this run's secret"):
        recognize(introduction.encode(), rank=1, run=run)


def test_process_that_knows_the_secret_is_taken_for_the_rank_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIT_SECRET", "ours")
    assert recognize(introduce(US, run=1).encode(), rank=1, run=1) == US
    with pytest.raises(RankError, match="came as rank 0"):
        recognize(introduce(US, run=1).encode(), rank=0, run=1)


def test_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"MASTER_PORT is {port}, on which this process cannot listen"):
            serve_here(port, 1.0, f"MASTER_PORT is {port}", "Give another one")


# ---- what torch must keep --------------------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """gloo's groups of two ranks, in one process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", LOOPBACK)
    made: dict[int, Any] = {}

    def connect(rank: int) -> None:
        made[rank] = ProcessGroupGloo(FileStore(str(tmp_path / "store"), -1), rank, 2, timedelta(minutes=5))

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made.pop(0), made.pop(1)]


def gatherer(group: Any, value: int) -> tuple[Any, list[torch.Tensor]]:
    """An exchange that has begun, and where it puts what all ranks give."""
    parts = [torch.zeros(1) for _ in range(2)]
    return group.allgather(parts, torch.full((1,), float(value))), parts


def test_wait_that_is_over_before_the_others_come_leaves_the_exchange_as_it_is(groups: list[Any]) -> None:
    work, parts = gatherer(groups[0], 5)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait(timedelta(seconds=0.05))
        assert not work.is_completed()
    other, _ = gatherer(groups[1], 6)
    assert work.wait(timedelta(seconds=20))
    assert other.wait(timedelta(seconds=20))
    assert [float(part) for part in parts] == [5, 6]


def test_exchange_with_a_rank_that_has_closed_its_connections_fails_at_once(groups: list[Any]) -> None:
    first, second = gatherer(groups[0], 5)[0], gatherer(groups[1], 6)[0]
    assert first.wait(timedelta(seconds=20))
    assert second.wait(timedelta(seconds=20))
    work, _ = gatherer(groups[0], 7)
    del second
    groups.pop(1)
    with pytest.raises(RuntimeError, match="Connection (closed|reset) by peer"):
        work.wait(timedelta(seconds=20))
    assert work.is_completed()
    with pytest.raises(RuntimeError, match="Connection (closed|reset) by peer"):
        work.wait()


def test_process_with_an_open_exchange_ends_although_the_other_machine_is_lost(tmp_path: Path) -> None:
    program = f"""
import os, signal
from datetime import timedelta
import torch
from torch.distributed import FileStore, ProcessGroupGloo
from fedlit.engines.processes.connections import never_free
os.environ["GLOO_SOCKET_IFNAME"] = {LOOPBACK!r}
other = os.fork()
group = ProcessGroupGloo(FileStore({str(tmp_path / "store")!r}, -1), int(other == 0), 2, timedelta(days=1))
if other == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
print(other, flush=True)
work = group.allgather([torch.zeros(1), torch.zeros(1)], torch.zeros(1))
never_free(group)
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=PLAIN, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    other = int(process.stdout.readline())
    try:
        assert process.wait(60) == 0
        assert is_alive(other)
    finally:
        os.kill(other, signal.SIGKILL)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": 2, "strategy": "fsdp"}, "spreads one model's parameters over processes"),
        ({"devices": 2, "strategy": "deepspeed_stage_2"}, "spreads one model's parameters over processes"),
        ({"devices": 2, "strategy": "ddp_spawn"}, "give ddp, or leave it out"),
        ({"devices": 2, "strategy": object()}, "trainer.strategy is a object"),
        ({"devices": 2, "accelerator": "gpu"}, "this machine has no GPU"),
        ({"devices": 2, "accelerator": "tpu"}, "give auto, cpu or gpu"),
        ({"devices": 0}, "trainer.devices is 0"),
        ({"num_nodes": 0}, "trainer.num_nodes is 0"),
        ({"rank_timeout": 0}, "trainer.rank_timeout is 0"),
    ],
)
def test_processes_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FederatedTrainer(**options)


def test_processes_of_torchrun_must_be_as_many_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="torchrun started 4 processes, but .* is 2 × 1"):
        FederatedTrainer(devices=2)


def test_other_versions_and_data_of_a_rank_are_named() -> None:
    ours = ({"trainer": {"rounds": 3, "run": "a"}}, {"torch": "2.13.0"}, "beef")
    check_ranks_agree([ours, ({"trainer": {"rounds": 3, "run": "b"}}, {"torch": "2.13.0"}, "beef")])
    with pytest.raises(ConfigError, match="Ranks 0 and 1 .* the version of torch is 2.13.0 and 2.12.0"):
        check_ranks_agree([ours, (ours[0], {"torch": "2.12.0"}, "beef")])
    with pytest.raises(ConfigError, match="the data is beef and dead"):
        check_ranks_agree([ours, (ours[0], ours[1], "dead")])


def test_lanes_may_change_with_the_number_of_processes_but_not_the_engine() -> None:
    had = {"engine": "vectorized", "lanes": 4, "workers": 2, "compiled": False, "processes": 2}
    recorded = {"choice": had, "request": dict.fromkeys(had)}
    check_same_engine(recorded, Request(lanes=8), processes=3)
    with pytest.raises(ResumeError, match="trainer.lanes is 8"):
        check_same_engine(recorded, Request(lanes=8), processes=2)
    with pytest.raises(ResumeError, match="trainer.engine is sequential"):
        check_same_engine(recorded, Request(engine="sequential"), processes=3)


def test_one_process_starts_no_process_group() -> None:
    trainer = FederatedTrainer(rounds=1, clients_per_round=2, strategy="ddp", enable_progress_bar=False)
    trainer.fit(FedAvg(tiny_net().float()), datamodule=tiny_data())
    assert not torch.distributed.is_initialized()
    assert trainer.loop.ranks.size == 1


# ---- other ways to start ---------------------------------------------------------------------------------------------


def test_notebook_has_what_its_processes_computed(tmp_path: Path) -> None:
    program = f"""
import fedlit
from fedlit.experiments.conformance.problem import LOCAL, new_trainer, tiny_data, tiny_net
trainer = new_trainer(rounds=3, clients_per_round=3, devices=2, strategy="ddp_notebook", run={str(tmp_path / "run")!r})
client = fedlit.FedBC(tiny_net(), **LOCAL)
trainer.fit(client, datamodule=tiny_data())
print(trainer.summary["rounds"], trainer.summary["processes"], len(trainer.loop.history.rows), trainer.interrupted)
print(float(client.net.linear.weight.sum()))
"""
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, cwd=ROOT, env=PLAIN, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    first, weight = answer.stdout.splitlines()
    assert first == "3 2 4 False"
    straight = ranked.fit(FedBC(ranked.conformance_net(), **LOCAL), ranked.conformance_data(), rounds=3)
    assert float(weight) == float(straight.loop.server.params["linear.weight"].detach().sum())
    assert len(read_metrics(tmp_path / "run" / "metrics.csv")) == 4


@pytest.mark.slow
def test_fedbn_with_resnet20_is_the_same_in_two_processes(folder: Path) -> None:
    straight = ranked.play_resnet(1, folder)
    for rank in play("resnet", 2, folder):
        assert largest_gap(straight["all"], rank["all"]) <= 1e-10
        assert any("num_batches_tracked" in name for name in rank["all"])


@pytest.mark.slow
def test_two_nodes_of_torchrun_need_no_common_folder(tmp_path: Path) -> None:
    def start(node: int, port: int, *options: str) -> "subprocess.Popen[str]":
        folder = tmp_path / f"node{node}"
        folder.mkdir(exist_ok=True)
        nodes = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *nodes, "--master-addr", "127.0.0.1"]
        words = [*TINY.split(), "--trainer.num_nodes", "2", *options]
        command = [*torchrun, "--master-port", str(port), "--", str(ROOT / "fedlit_start.py"), "fit", *words]
        return subprocess.Popen(
            command, cwd=folder, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def both(*options: str) -> None:
        port = free_port()
        nodes = [start(node, port, *options) for node in (0, 1)]
        said = [node.communicate(timeout=300)[0] for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)

    both()
    both("--trainer.rounds", "5", "--resume")
    rounds = [row["round"] for row in read_metrics(tmp_path / "node0" / "run" / "metrics.csv")]
    assert rounds == [0, 1, 2, 3, 4, 5]
    assert not (tmp_path / "node1" / "run").exists()


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port
