"""Laws of the run folder: nothing complete is ever lost, and what is read back is what was written."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from hypothesis import given
from hypothesis import strategies as st

from fedlit.errors import RunError
from fedlit.files import write_json, write_text, writing
from fedlit.results.folder import RunFolder, fingerprint, run_name
from fedlit.results.records import read_clients, read_metrics

FULL = OSError(errno.ENOSPC, "No space left on device")
READ_ONLY = OSError(errno.EROFS, "Read-only file system")


class Killed(BaseException):
    """The process dies here."""


@contextmanager
def killed_at(step: int) -> Iterator[list[str]]:
    """From the step-th system call on, none has an effect any more, not even the clean-up; yields the calls made."""
    calls: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if len(calls) >= step:
                raise Killed
            calls.append(name)
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "fsync", "link", "replace", "unlink"):
            patch.setattr(os, name, counted(name))
        yield calls


def steps_of(action: Callable[[], object]) -> int:
    """How many system calls the action makes when nobody kills it."""
    with killed_at(sys.maxsize) as calls:
        action()
    return len(calls)


def raising(error: OSError) -> Callable[..., NoReturn]:
    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise error

    return call


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    run = RunFolder(tmp_path / "run")
    run.create({"seed": 0})
    yield run
    run.close()


# creating and clearing


def test_config_reads_back_as_it_was_given(folder: RunFolder) -> None:
    config = {"trainer": {"rounds": 3, "engine": "auto"}, "data": {"alpha": 0.5, "path": "Zürich"}, "a": None}
    folder.create(config)
    assert yaml.safe_load(folder.config.read_text("utf-8")) == config
    assert list(yaml.safe_load(folder.config.read_text("utf-8"))) == ["trainer", "data", "a"]


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv", "checkpoints/last.ckpt"])
def test_a_folder_with_any_file_of_a_run_holds_a_run(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path)
    assert not run.holds_run()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert run.holds_run()


@pytest.mark.parametrize("inside", ["", "deeper"], ids=["as the folder", "above the folder"])
def test_a_file_where_the_folder_should_be_is_refused_and_kept(tmp_path: Path, inside: str) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(RunError, match=r"notes.*a file is where a folder should be.*--run DIR"):
        RunFolder(tmp_path / "notes" / inside).create({})
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_read_only_folder_is_refused_by_name(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", raising(READ_ONLY))
    with pytest.raises(RunError, match=rf"{folder.path}.*read-only.*--run DIR"):
        folder.create({"seed": 1})
    assert files(folder.path) == {"config.yaml": b"seed: 0\n"}


def test_an_error_that_has_no_words_of_ours_is_told_in_the_systems(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", raising(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(RunError, match="log.txt cannot be written: the system says 'Input/output error'.*--run DIR"):
        write_text(folder.log, "hello")


def test_clear_removes_what_fedlit_wrote_and_nothing_else(folder: RunFolder) -> None:
    folder.start_metrics(["a"], [{"round": 0}])
    folder.append_clients(0, {"client": [0], "group": ["a"]})
    folder.finish_clients()
    for path in (folder.last, folder.previous, folder.best, folder.summary, folder.partition, folder.log):
        path.touch()
        path.with_name(path.name + ".tmp").touch()
    (folder.path / "partition.png").touch()
    (folder.clients_dir / "00000001-00000002.parquet.tmp").touch()
    foreign = ["notes.md", "clients/mine.parquet", "checkpoints/epoch=3.ckpt"]
    for name in foreign:
        (folder.path / name).write_text("mine")
    folder.clear()
    assert files(folder.path) == dict.fromkeys(foreign, b"mine")
    assert not folder.holds_run()


def test_a_killed_clear_never_leaves_a_checkpoint_beside_missing_records(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")

    def fill() -> None:
        shutil.rmtree(run.path, ignore_errors=True)
        run.create({})
        run.start_metrics([], [])
        run.append_clients(0, {"client": [0]})
        run.finish_clients()
        run.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"one"))
        run.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"two"))

    fill()
    complete = files(run.path).keys()
    for step in range(steps_of(run.clear)):
        fill()
        with killed_at(step), pytest.raises(Killed):
            run.clear()
        left = files(run.path).keys()
        has_checkpoint = any(name.endswith(".ckpt") for name in left)
        has_records = left >= {name for name in complete if not name.endswith(".ckpt")}
        assert has_records or not has_checkpoint
    run.close()


# whole files


def test_a_writer_that_raises_leaves_the_old_file_and_no_temporary_one(folder: RunFolder) -> None:
    write_text(folder.summary, "old")
    before = files(folder.path)

    def write() -> None:
        with writing(folder.summary) as tmp:
            tmp.write_text("half of the n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert files(folder.path) == before


@pytest.mark.parametrize("name", ["open", "fsync", "replace"])
@pytest.mark.parametrize("error", [FULL, OSError(errno.EDQUOT, "Disk quota exceeded")], ids=["disk", "quota"])
def test_a_full_disk_leaves_every_file_as_it_was(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, name: str, error: OSError
) -> None:
    folder.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"one"))
    folder.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"two"))
    before = files(folder.path)
    monkeypatch.setattr(os, name, raising(error))
    with pytest.raises(RunError, match=r"checkpoints.*\.ckpt.*disk is full.*--resume.*untouched"):
        folder.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"three"))
    with pytest.raises(RunError, match=r"config\.yaml.*disk is full"):
        folder.create({"seed": 1})
    assert files(folder.path) == before


def test_a_disk_that_fills_while_a_checkpoint_is_written_leaves_every_file_as_it_was(folder: RunFolder) -> None:
    folder.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"one"))
    before = files(folder.path)

    def write(tmp: Path) -> None:
        tmp.write_bytes(b"tw")
        raise FULL

    with pytest.raises(RunError, match="disk is full"):
        folder.rotate_checkpoint(write)
    assert files(folder.path) == before


def test_json_reads_back_as_it_was_given(folder: RunFolder) -> None:
    summary = {"best": {"global/acc": 0.1 + 0.2}, "engine": "sequential", "lanes": None}
    write_json(folder.summary, summary)
    assert json.loads(folder.summary.read_text()) == summary


# checkpoints


def test_rotate_keeps_the_two_newest_checkpoints(folder: RunFolder) -> None:
    for content in (b"one", b"two", b"three"):
        folder.rotate_checkpoint(lambda tmp, content=content: tmp.write_bytes(content))  # type: ignore[misc]  # lambda
    assert files(folder.checkpoints) == {"last.ckpt": b"three", "previous.ckpt": b"two"}


def test_rotate_copies_where_there_are_no_hard_links(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", raising(OSError(errno.EPERM, "Operation not permitted")))
    test_rotate_keeps_the_two_newest_checkpoints(folder)


def test_a_leftover_second_name_of_the_last_checkpoint_is_not_written_through(folder: RunFolder) -> None:
    folder.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"one"))
    os.link(folder.last, folder.checkpoints / "last.ckpt.tmp")

    def write(tmp: Path) -> None:
        tmp.write_bytes(b"half")
        assert folder.last.read_bytes() == b"one"

    folder.rotate_checkpoint(write)
    assert files(folder.checkpoints) == {"last.ckpt": b"half", "previous.ckpt": b"one"}


def test_a_kill_at_any_system_call_of_rotate_leaves_complete_checkpoints(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")

    def rotate(content: bytes) -> None:
        run.rotate_checkpoint(lambda tmp: tmp.write_bytes(content))

    def fill() -> None:
        shutil.rmtree(run.path, ignore_errors=True)
        run.create({})
        rotate(b"one")
        rotate(b"two")

    fill()
    steps = steps_of(lambda: rotate(b"three"))
    assert steps >= 8  # link, three renames or removals, and a sync of each
    for step in range(steps):
        fill()
        with killed_at(step), pytest.raises(Killed):
            rotate(b"three")
        assert run.last.read_bytes() in (b"two", b"three")
        assert run.previous.read_bytes() in (b"one", b"two")
        newest = run.last.read_bytes()
        rotate(b"four")  # the next run is not hindered by what the kill left behind
        assert files(run.checkpoints) == {"last.ckpt": b"four", "previous.ckpt": newest}


def test_the_new_checkpoint_is_on_the_disk_before_the_old_previous_one_is_given_up(folder: RunFolder) -> None:
    folder.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"one"))
    with killed_at(sys.maxsize) as calls:
        folder.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"two"))
    assert calls.index("fsync") < calls.index("link") < calls.index("replace")


def test_a_kill_at_any_system_call_of_the_first_rotate_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")

    def first() -> None:
        run.rotate_checkpoint(lambda tmp: tmp.write_bytes(b"one"))

    run.create({})
    for step in range(steps_of(first)):
        shutil.rmtree(run.path)
        run.create({})
        with killed_at(step), pytest.raises(Killed):
            first()
        assert {path.read_bytes() for path in run.checkpoints.glob("*.ckpt")} <= {b"one"}


# metrics.csv


@given(st.lists(st.floats(width=64), min_size=1, max_size=20))
def test_metrics_read_back_exactly(values: list[float]) -> None:
    with tempfile.TemporaryDirectory() as path:
        run = RunFolder(Path(path))
        run.start_metrics(["global/acc"], [])
        for round, value in enumerate(values):
            run.append_metrics(round, {"global/acc": value})
        run.close()
        rows = read_metrics(run.metrics)
    assert [row["round"] for row in rows] == list(range(len(values)))
    np.testing.assert_array_equal([row["global/acc"] for row in rows], values)
    assert [math.copysign(1, row["global/acc"]) for row in rows if row["global/acc"] == 0] == [
        math.copysign(1, value) for value in values if value == 0
    ]


def test_metrics_are_text_that_a_spreadsheet_reads(folder: RunFolder) -> None:
    folder.start_metrics(["a", "b"], [])
    folder.append_metrics(0, {"b": 0.1, "a": 3})
    folder.append_metrics(1, {"a": math.nan})
    from_numpy: dict[str, Any] = {"a": np.float64(0.1), "b": np.int32(7)}
    folder.append_metrics(2, from_numpy)
    assert folder.metrics.read_text() == "round,a,b\n0,3,0.1\n1,nan,\n2,0.1,7\n"


def test_a_field_that_was_not_due_is_missing_when_read(folder: RunFolder) -> None:
    folder.start_metrics(["a", "b"], [])
    folder.append_metrics(1, {"b": 0.5})
    assert read_metrics(folder.metrics) == [{"round": 1, "b": 0.5}]


def test_resumed_metrics_are_the_bytes_of_an_uninterrupted_run(folder: RunFolder) -> None:
    rows = [{"a": 1 / 3, "b": 5}, {"a": math.inf}, {}, {"a": 1e300, "b": -0.0}]
    folder.start_metrics(["a", "b"], [])
    for round, row in enumerate(rows):
        folder.append_metrics(round, row)
    uninterrupted = folder.metrics.read_bytes()
    kept = [row for row in read_metrics(folder.metrics) if row["round"] <= 1]
    folder.start_metrics(["a", "b"], kept)
    for round, row in list(enumerate(rows))[2:]:
        folder.append_metrics(round, row)
    assert folder.metrics.read_bytes() == uninterrupted


def test_an_unknown_column_is_refused_and_nothing_is_written(folder: RunFolder) -> None:
    folder.start_metrics(["a"], [])
    with pytest.raises(RunError, match="no column for b, c"):
        folder.append_metrics(0, {"a": 1, "c": 2, "b": 3})
    assert folder.metrics.read_text() == "round,a\n"


@pytest.mark.parametrize("columns", [["a", "a"], ["round"], ["a,b"], ["a\nb"]])
def test_columns_that_could_not_be_read_back_are_refused(folder: RunFolder, columns: list[str]) -> None:
    with pytest.raises(RunError, match="Name each metric once"):
        folder.start_metrics(columns, [])
    assert not folder.metrics.exists()


def test_a_row_is_one_write(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    folder.start_metrics(["a"], [])
    write = os.write

    def noted(fd: int, data: bytes) -> int:
        writes.append(data)
        return write(fd, data)

    monkeypatch.setattr(os, "write", noted)
    folder.append_metrics(0, {"a": 0.5})
    assert writes == [b"0,0.5\n"]


@pytest.mark.parametrize("fits", [0, 3], ids=["nothing fits", "half a line fits"])
def test_a_disk_that_fills_while_a_row_is_appended_leaves_the_rows_before(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    folder.start_metrics(["a"], [{"round": 0, "a": 0.5}])
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:fits]))
    with pytest.raises(RunError, match=r"metrics\.csv.*disk is full.*--resume"):
        folder.append_metrics(1, {"a": 0.25})
    assert folder.metrics.read_text() == "round,a\n0,0.5\n"


def test_the_row_of_a_round_that_failed_is_taken_back_and_another_follows(folder: RunFolder) -> None:
    folder.start_metrics(["a"], [{"round": 0, "a": 0.5}])
    folder.append_metrics(1, {"a": 0.25})
    folder.forget_after(1)
    folder.append_metrics(2, {"a": 0.125})
    folder.forget_after(1)
    folder.forget_after(1)
    assert folder.metrics.read_text() == "round,a\n0,0.5\n1,0.25\n"
    folder.append_metrics(2, {"a": 0.75})
    assert folder.metrics.read_text() == "round,a\n0,0.5\n1,0.25\n2,0.75\n"


# client records

CLIENTS = 5


def record(run: RunFolder, round: int) -> None:
    """The evaluation of a round, the same in every run; clients come in no particular order."""
    draws = np.random.default_rng(round)
    clients = draws.permutation(CLIENTS)
    run.append_clients(
        round,
        {
            "client": clients.tolist(),
            "group": [f"site {client % 2}" for client in clients],
            "size": 10 + clients,
            "dual": [0] * CLIENTS if round == 0 else draws.random(CLIENTS, dtype=np.float32),
            "acc_global": np.where(clients == 3, np.nan, draws.random(CLIENTS)),
        },
    )


def evaluate(run: RunFolder, rounds: range, checkpoint_every: int) -> None:
    for round in rounds:
        record(run, round)
        if round % checkpoint_every == 0:
            run.flush_clients()


@pytest.fixture
def uninterrupted(tmp_path: Path) -> bytes:
    """clients.parquet of ten rounds in one part."""
    run = RunFolder(tmp_path / "uninterrupted")
    run.create({})
    for round in range(10):
        record(run, round)
    run.finish_clients()
    return run.clients.read_bytes()


def test_client_records_have_a_stable_schema(folder: RunFolder) -> None:
    record(folder, 0)
    folder.flush_clients()
    record(folder, 1)
    folder.finish_clients()
    expected = pa.schema(
        {
            "round": pa.int64(),
            "client": pa.int64(),
            "group": pa.string(),
            "size": pa.int64(),
            "dual": pa.float64(),
            "acc_global": pa.float64(),
        }
    )
    assert read_clients(folder.path).schema.equals(expected, check_metadata=True)


def test_client_records_are_sorted_by_round_and_client_and_keep_their_values(folder: RunFolder) -> None:
    folder.append_clients(3, {"client": [7, 2], "group": ["b", "a"], "loss": [0.5, math.nan]})
    folder.append_clients(12, {"client": [1], "group": ["a"], "loss": [math.nan]})
    folder.flush_clients()
    assert [path.name for path in folder.clients_dir.iterdir()] == ["00000003-00000012.parquet"]
    table = read_clients(folder.path).to_pydict()
    assert (table["round"], table["client"], table["group"]) == ([3, 3, 12], [2, 7, 1], ["a", "b", "a"])
    np.testing.assert_array_equal(table["loss"], [math.nan, 0.5, math.nan])


def test_client_records_are_copied_when_they_are_appended(folder: RunFolder) -> None:
    loss = np.array([0.5])
    folder.append_clients(0, {"client": [0], "loss": loss})
    loss[0] = 7
    folder.flush_clients()
    assert read_clients(folder.path)["loss"].to_pylist() == [0.5]


@pytest.mark.parametrize("checkpoint_every", [1, 2, 3, 7])
def test_clients_parquet_does_not_depend_on_how_parts_were_cut(
    folder: RunFolder, uninterrupted: bytes, checkpoint_every: int
) -> None:
    evaluate(folder, range(10), checkpoint_every)
    folder.finish_clients()
    assert folder.clients.read_bytes() == uninterrupted


def test_parts_of_an_unfinished_run_read_as_clients_parquet_would(folder: RunFolder) -> None:
    evaluate(folder, range(10), checkpoint_every=4)
    folder.flush_clients()
    from_parts = read_clients(folder.path)
    folder.finish_clients()
    joined = read_clients(folder.path)
    assert joined.schema == from_parts.schema
    assert joined.drop(["acc_global"]).equals(from_parts.drop(["acc_global"]))
    np.testing.assert_array_equal(joined["acc_global"], from_parts["acc_global"])  # equal where both are NaN


@pytest.mark.parametrize("round", [0, 3, 4, 5, 9])
@pytest.mark.parametrize("end", [RunFolder.flush_clients, RunFolder.finish_clients], ids=["killed", "finished"])
def test_records_dropped_and_made_again_are_those_of_an_uninterrupted_run(
    folder: RunFolder, uninterrupted: bytes, round: int, end: Callable[[RunFolder], None]
) -> None:
    evaluate(folder, range(10), checkpoint_every=4)
    end(folder)
    (folder.clients_dir / "00000009-00000010.parquet.tmp").touch()
    resumed = RunFolder(folder.path)
    resumed.drop_clients_after(round)
    assert set(read_clients(folder.path)["round"].to_pylist()) == set(range(round + 1))
    evaluate(resumed, range(round + 1, 10), checkpoint_every=3)
    resumed.finish_clients()
    assert folder.clients.read_bytes() == uninterrupted
    assert not list(folder.clients_dir.glob("*.tmp"))


@pytest.mark.parametrize("checkpoint", [0, 5, 8], ids=["start", "inside a part", "end of a part"])
def test_a_kill_at_any_system_call_of_flush_drop_or_finish_loses_no_client_record(
    tmp_path: Path, uninterrupted: bytes, checkpoint: int
) -> None:
    run = RunFolder(tmp_path / "run")

    def start() -> RunFolder:
        shutil.rmtree(run.path, ignore_errors=True)
        run.create({})
        first = RunFolder(run.path)
        evaluate(first, range(10), checkpoint_every=4)
        return first

    def resume() -> None:
        resumed = RunFolder(run.path)
        resumed.drop_clients_after(checkpoint)
        evaluate(resumed, range(checkpoint + 1, 10), checkpoint_every=3)
        resumed.finish_clients()

    start().finish_clients()
    steps = steps_of(resume)
    assert steps > 8
    for step in range(steps):
        start().finish_clients()
        with killed_at(step), pytest.raises(Killed):
            resume()
        left = read_clients(run.path)
        keys = list(zip(left["round"].to_pylist(), left["client"].to_pylist(), strict=True))
        assert len(set(keys)) == len(keys)  # no instant shows a row twice
        assert set(range(checkpoint + 1)) <= {round for round, _ in keys}
        resume()
        assert run.clients.read_bytes() == uninterrupted


def test_a_part_is_named_after_the_rounds_it_holds_even_when_it_was_cut(folder: RunFolder) -> None:
    evaluate(folder, range(9), checkpoint_every=4)
    folder.drop_clients_after(6)
    names = sorted(path.name for path in folder.clients_dir.iterdir())
    assert names == ["00000000-00000000.parquet", "00000001-00000004.parquet", "00000005-00000006.parquet"]


def test_a_kill_before_the_flush_loses_only_rounds_after_the_checkpoint(
    folder: RunFolder, uninterrupted: bytes
) -> None:
    evaluate(folder, range(7), checkpoint_every=4)  # rounds 5 and 6 are in memory only
    folder.close()
    resumed = RunFolder(folder.path)
    resumed.drop_clients_after(4)
    evaluate(resumed, range(5, 10), checkpoint_every=4)
    resumed.finish_clients()
    assert folder.clients.read_bytes() == uninterrupted


def test_a_full_disk_keeps_the_buffered_rounds_for_a_second_flush(
    folder: RunFolder, uninterrupted: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for round in range(10):
        record(folder, round)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", raising(FULL))
        with pytest.raises(RunError, match="disk is full"):
            folder.flush_clients()
    assert files(folder.clients_dir) == {}
    folder.finish_clients()
    assert folder.clients.read_bytes() == uninterrupted


def test_a_run_without_evaluation_finishes_without_client_records(folder: RunFolder) -> None:
    folder.append_clients(0, {"client": [], "loss": []})
    folder.finish_clients()
    assert not folder.clients.exists()
    with pytest.raises(RunError, match="holds no client records"):
        read_clients(folder.path)


# names


def test_run_names_are_lower_case() -> None:
    assert run_name("CIFAR10", "FedBC", 3, "0a1b2c3d") == "cifar10-fedbc-3-0a1b2c3d"


def test_fingerprint_depends_on_content_and_not_on_order() -> None:
    one = fingerprint({"data": {"alpha": 0.5, "beta": 1}, "model": "FedBC"})
    assert one == fingerprint({"model": "FedBC", "data": {"beta": 1, "alpha": 0.5}})
    assert one != fingerprint({"model": "FedBC", "data": {"beta": 1, "alpha": 0.25}})
    assert len(one) == 8
    assert int(one, 16) >= 0


def test_the_module_loads_neither_torch_nor_pyarrow() -> None:
    code = "import sys, fedlit.results.folder; print(sorted(sys.modules.keys() & {'torch', 'pyarrow'}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
