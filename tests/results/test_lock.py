"""A folder has one writer: who holds it is said, what a kill left is taken over, and nothing stays behind."""

import errno
import fcntl
import json
import multiprocessing
import os
import re
import signal
import socket
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fedlit import FedAvg, FederatedTrainer, ServerCallback, Softmax, Synthetic
from fedlit.errors import RunError
from fedlit.results.lock import FolderLock
from tests.conftest import TINY, Call, files

PROCESSES = multiprocessing.get_context("fork")


def hold(folder: Path, told: Connection) -> None:
    lock = FolderLock(folder, "--run DIR")
    lock.take()
    told.send("held")
    signal.pause()


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """Another process that holds the lock of tmp_path/run until it is killed."""
    (tmp_path / "run").mkdir()
    told, tells = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=hold, args=(tmp_path / "run", tells))
    process.start()
    assert told.recv() == "held"
    yield process
    process.kill()
    process.join()


def train(folder: Path, *callbacks: Any, rounds: int = 2, **options: Any) -> FederatedTrainer:
    trainer = FederatedTrainer(
        rounds=rounds,
        clients_per_round=2,
        engine="sequential",
        run=folder,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        **options,
    )
    client = FedAvg(Softmax(60, 10), lr=0.01, local_epochs=1)
    trainer.fit(client, datamodule=Synthetic(num_clients=3, size_mean=1, size_sigma=0, size_min=12))
    return trainer


def test_the_second_is_told_process_host_and_time(tmp_path: Path, holder: Any) -> None:
    before = files(tmp_path)
    who = rf"run is in use: process {holder.pid} on {re.escape(socket.gethostname())} has written there since \d{{4}}-"
    with pytest.raises(RunError, match=who):
        FolderLock(tmp_path / "run", "--run DIR").take()
    assert files(tmp_path) == before


def test_a_lock_that_a_kill_left_is_taken_over(tmp_path: Path, holder: Any) -> None:
    holder.kill()
    holder.join()
    lock = FolderLock(tmp_path / "run", "--run DIR")
    assert lock.path.exists()
    lock.take()
    assert json.loads(lock.path.read_text())["pid"] == os.getpid()
    lock.give_back()
    assert files(tmp_path) == {}


def test_a_process_that_waited_at_a_removed_file_does_not_share_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One opens the file, the holder removes it and goes, a third makes it anew: only one of the two may have it."""
    first, second, third = (FolderLock(tmp_path, "--run DIR") for _ in range(3))
    first.take()
    real = fcntl.flock

    def late(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        first.give_back()
        third.take()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(RunError, match="in use"):
        second.take()
    assert (second.is_held, third.is_held) == (False, True)
    third.give_back()


def test_a_forked_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, "--run DIR")
    lock.take()
    child = PROCESSES.Process(target=signal.pause)
    child.start()
    lock.give_back()
    try:
        lock.take()
    finally:
        child.kill()
        child.join()
    lock.give_back()


def test_a_file_system_without_locks_is_said_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(fd: int, how: int) -> None:  # the tests' own file system has locks
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FolderLock(tmp_path, "--run DIR")
    lock.take()
    lock.give_back()
    (line,) = caplog.messages
    assert "cannot be locked (No locks available)" in line
    assert files(tmp_path) == {}


# runs


@pytest.mark.parametrize("option", ["", "--resume", "--overwrite"])
def test_a_command_is_refused_while_another_run_is_in_the_folder(call: Call, option: str) -> None:
    assert call(f"fit {TINY}").code == 0
    lock = FolderLock(Path("run"), "--run DIR")
    lock.take()
    before = files(Path("run"))
    answer = call(f"fit {TINY} --trainer.rounds 4 {option}")
    assert (answer.code, answer.out) == (2, "")
    assert re.fullmatch(rf"fedlit: run is in use: process {os.getpid()} on .*--run DIR\.\n", answer.err)
    assert files(Path("run")) == before
    lock.give_back()
    assert call(f"fit {TINY} --trainer.rounds 4 --resume").code == 0


def test_who_holds_a_lock_is_said_even_in_the_instant_in_which_it_is_taken(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)  # taken, and the file is still empty
    says = threading.Timer(0.3, os.write, (fd, b'{"pid": 7, "host": "here", "since": "noon"}'))
    says.start()
    try:
        with pytest.raises(RunError, match="process 7 on here has written there since noon"):
            FolderLock(tmp_path, "--run DIR").take()
    finally:
        says.join()
        os.close(fd)


def test_of_two_runs_that_start_at_the_same_moment_one_trains(tmp_path: Path) -> None:
    class Meets(ServerCallback):
        """Both come to their first round, were both let in; the one that is not refused waits for that."""

        def on_cohort_start(self, *args: Any) -> None:
            refused.wait(20)

    refused = threading.Event()
    errors: list[RunError] = []

    def one() -> None:
        try:
            train(tmp_path / "run", Meets())
        except RunError as error:
            errors.append(error)
            refused.set()

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (error,) = errors
    assert f"process {os.getpid()}" in str(error)
    assert not (tmp_path / "run" / "lock").exists()


def test_a_run_gives_its_folder_back_at_its_end_and_when_it_fails(tmp_path: Path) -> None:
    class Fails(ServerCallback):
        def on_cohort_trained(self, *args: Any) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        train(tmp_path / "run", Fails(), overwrite=True)
    assert not (tmp_path / "run" / "lock").exists()
    train(tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "lock").exists()
    train(tmp_path / "run", resume=True, rounds=3)
