"""Rows of clients on disk: what is read is what was written, in the run, in both checkpoints, and after any end."""

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

from fedlit import FedBC, FederatedTrainer, ServerCallback
from fedlit.cli.main import main
from fedlit.client import states_location
from fedlit.client.row_layout import RowLayout
from fedlit.client.row_store import RowStore
from fedlit.client.states import ClientStates
from fedlit.errors import ConfigError, DamagedRowsError, RunError
from fedlit.experiments.conformance.problem import LOCAL, everything, largest_gap
from fedlit.ranks import Ranks
from fedlit.results.folder import RunFolder
from fedlit.trainer.checkpoint import find_checkpoint
from tests.cases import CASES, made
from tests.cli.test_main import fills_up
from tests.client.test_states import COHORTS, defaults, rows_of
from tests.conftest import TINY, Call
from tests.problems import run, tiny_data, tiny_net
from tests.trainer.test_resume import LONG, SEQUENTIAL, assert_same_bits, finish, outcome, rounds_saved, stopped

Refusal = Callable[..., str]
Rows = dict[int, float]
FEW = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)


def rows(clients: list[int], mark: float) -> dict[str, Tensor]:
    """A model of each client that tells who wrote it and when."""
    values = torch.tensor([client + mark for client in clients], dtype=torch.float64)
    return {"local.a": values[:, None].expand(-1, 3), "local.b": values.float()[:, None, None].expand(-1, 2, 2)}


def new_store(folder: Path) -> RowStore:
    return RowStore.create(folder, RowLayout.of(rows([0], 0.0)), Ranks())


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system takes no advice about files")
def test_memory_lets_go_of_rows_once_they_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path)
    done: list[Any] = []

    def seen(call: Callable[..., None]) -> Callable[..., None]:
        return lambda fd, *given: done.append(given) or call(fd, *given)  # type: ignore[func-returns-value]

    monkeypatch.setattr(os, "fsync", seen(os.fsync))
    monkeypatch.setattr(os, "posix_fadvise", seen(os.posix_fadvise))
    store.write([0, 1], rows([0, 1], 0.5))
    store.index()
    assert done == [(), (0, 0, os.POSIX_FADV_DONTNEED)]
    assert torch.equal(store.read([1, 0])["local.a"][:, 0], torch.tensor([1.5, 0.5], dtype=torch.float64))


def content(store: RowStore) -> Rows:
    """What each client's row holds."""
    read = store.read(store.clients)
    assert torch.equal(read["local.a"][:, 0].float(), read["local.b"][:, 1, 1])
    return dict(zip(store.clients, read["local.a"][:, 2].tolist(), strict=True))


# ---- the store -------------------------------------------------------------------------------------------------------


class StoreMachine(RuleBasedStateMachine):
    """A store beside a dictionary, with two checkpoints on disk that may fail, and a process that dies."""

    folder: Path

    @initialize()
    def begin(self) -> None:
        self.store = new_store(self.folder)
        self.held: Rows = {}
        self.before: Rows | None = None
        self.mark = 0.0
        self.on_disk: list[tuple[dict[str, Any], Rows]] = []  # last.ckpt, previous.ckpt

    @rule(clients=FEW)
    def write(self, clients: list[int]) -> None:
        self.mark += 100.0
        self.before = dict(self.held)
        self.store.write(clients, rows(clients, self.mark))
        self.held |= {client: client + self.mark for client in clients}

    @rule()
    def commit(self) -> None:
        self.store.commit()
        self.before = None

    @rule()
    def discard(self) -> None:
        self.store.discard()
        self.held, self.before = self.held if self.before is None else self.before, None

    @precondition(lambda self: self.before is None)
    @rule(stage=st.sampled_from(["nothing", "previous", "last", "told"]))
    def checkpoint(self, stage: str) -> None:
        """Whole, or it fails: before previous.ckpt is replaced, before last.ckpt is, before that is told."""
        new = (self.store.index(), dict(self.held))
        if stage == "previous":
            self.on_disk = [*self.on_disk[:1], *self.on_disk[:1]]
        elif stage != "nothing":
            self.on_disk = [new, *self.on_disk[:1]]
        if stage == "told":
            self.store.saved()

    @precondition(lambda self: self.on_disk)
    @rule(which=st.integers(0, 1))
    def die(self, which: int) -> None:
        """The process is killed, and another goes on from one of the checkpoints, which is last.ckpt from then on."""
        index, held = self.on_disk[min(which, len(self.on_disk) - 1)]
        self.store = RowStore.load(self.folder, index, Ranks())
        self.held, self.before = dict(held), None
        self.on_disk = [(index, held), *self.on_disk]

    @invariant()
    def rows_are_those_of_the_dictionary(self) -> None:
        assert content(self.store) == self.held

    @invariant()
    def both_checkpoints_have_their_own_rows(self) -> None:
        for index, held in self.on_disk[:2]:
            assert content(RowStore.load(self.folder, index, Ranks())) == held


@pytest.mark.parametrize("examples", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_store_is_a_dictionary_and_every_checkpoint_keeps_its_rows(tmp_path: Path, examples: int) -> None:
    machine = type("Machine", (StoreMachine,), {"folder": tmp_path})
    run_state_machine_as_test(machine, settings=settings(deadline=None, max_examples=examples, stateful_step_count=25))


def test_slots_are_used_again_when_no_checkpoint_needs_them(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    sizes = []
    for number in range(40):
        store.write([0, 1, 2], rows([0, 1, 2], 100.0 * number))
        store.commit()
        if number % 4 == 3:
            store.index()
            store.saved()
        sizes.append(store.path.stat().st_size)
    assert sizes[-1] == sizes[15]
    assert sizes[-1] <= 4096 * (1 + 3 * 4)  # a header; this round's rows, the last one's, and two checkpoints'


def test_row_that_a_checkpoint_needs_is_not_overwritten(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.write([0], rows([0], 100.0))
    store.commit()
    index = store.index()
    store.saved()
    for mark in (200.0, 300.0):  # the first replaces the row, the second would be written where it was
        store.write([0, 1], rows([0, 1], mark))
        store.commit()
    assert content(RowStore.load(tmp_path, index, Ranks())) == {0: 100.0}


def test_who_goes_on_from_the_checkpoint_before_leaves_the_rows_of_the_last_one(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    before = store.index()
    store.write([0], rows([0], 100.0))
    store.commit()
    last = store.index()
    RowStore.load(tmp_path, before, Ranks()).write([0], rows([0], 200.0))
    assert content(RowStore.load(tmp_path, last, Ranks())) == {0: 100.0}


def test_rows_of_another_form_are_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with pytest.raises(RunError, match=r"rows of local\.a \[3\], .*now keep local\.a \[3\].*trainer\.states to memory"):
        store.write([0], {"local.a": torch.zeros(1, 3)})


def test_after_a_failed_sync_no_checkpoint_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path)
    store.write([0], rows([0], 0.0))
    with monkeypatch.context() as patch:
        fills_up(patch, "fsync", ".bin", 0)
        with pytest.raises(RunError, match=r"rows-.*\.bin cannot be written: the disk is full"):
            store.index()
    with pytest.raises(RunError, match="could not be written"):  # the system may have forgotten it
        store.index()


# ---- states ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.data(), COHORTS)
def test_states_on_disk_are_those_in_memory_wherever_they_move(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, cohorts: list[list[int]]
) -> None:
    folder, everyone = tmp_path_factory.mktemp("states"), list(range(31))
    memory, moving = ClientStates(), ClientStates()
    for number, clients in enumerate(cohorts, start=1):
        place = data.draw(st.sampled_from(["stay", "disk", "memory"]))
        if place == "disk":
            moving.keep_on_disk(folder, Ranks())
        elif place == "memory":
            moving.keep_in_memory()
        ending = data.draw(st.sampled_from(["commit", "discard"]))
        for states in (memory, moving):
            states.update(clients, rows_of(clients, 100.0 * number))
            getattr(states, ending)()
        assert moving.touched == memory.touched
        names, first = list(defaults(everyone)), partial(defaults, everyone)
        assert_same_bits(moving.rows(everyone, names, first), memory.rows(everyone, names, first))
    assert_same_bits(moving.state_dict(), memory.state_dict())


def test_update_of_nobody_leaves_rows_on_disk(tmp_path: Path) -> None:
    states = ClientStates()
    states.keep_on_disk(tmp_path, Ranks())
    states.update([1], rows_of([1], 100.0))
    states.update([], rows_of([], 200.0))
    assert states.row("local.w", 1).tolist() == [[101.0] * 2] * 2
    assert states.column("local.w").shape == (1, 2, 2)


def test_checkpoint_of_the_run_folder_holds_the_numbers_and_not_the_models(tmp_path: Path) -> None:
    states = ClientStates()
    states.keep_on_disk(tmp_path, Ranks())
    states.update([1, 4], rows_of([1, 4], 100.0))
    with states.saved_apart():
        state = states.state_dict()
    assert list(state["rows"]) == ["dual"]
    loaded = ClientStates()
    loaded.load_state_dict(state, tmp_path)
    assert_same_bits(loaded.state_dict(), states.state_dict())


# ---- every algorithm -------------------------------------------------------------------------------------------------


def assert_same_run(one: Any, other: Any) -> None:
    assert largest_gap(everything(one), everything(other)) == 0
    assert [without_times(row) for row in one.loop.history.rows] == [
        without_times(row) for row in other.loop.history.rows
    ]


def without_times(row: dict[str, float]) -> dict[str, str]:
    return {name: repr(value) for name, value in row.items() if not name.startswith("time/")}


KEPT = (
    *("FedBC, from its own model", "SCAFFOLD I", "Ditto", "pFedMe, all train", "FedBCD", "FedPer (bias)"),
    *("FedDyn, measured over all", "FedAvg, momentum kept", "FedBC, sync cloud", "SCAFFOLD, buffer"),
)


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in KEPT), ("FedBC", {"finetune_lr": 0.1})], ids=[*KEPT, "finetuned"]
)
def test_run_on_disk_that_is_resumed_has_the_bits_of_one_in_memory(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    def play(**place: Any) -> FederatedTrainer:
        return run(made(name, tiny_net(), **LOCAL), **({"rounds": 4} | CASES[name].trainer | options | place))

    on_disk: dict[str, Any] = {"states": "disk", "run": tmp_path / "run", "resume": True}
    play(rounds=2, **on_disk)
    assert_same_run(play(**on_disk), play(states="memory"))


class FailsOnce(ServerCallback):
    """When the rows of round 3 are written, and not settled."""

    decides = False

    def __init__(self) -> None:
        self.round = 0

    def on_server_step_end(self, trainer: Any, client: Any, cohort: Any) -> None:
        self.round += 1
        if self.round == 3:
            raise ZeroDivisionError


def test_failed_round_leaves_the_rows_of_the_last_finished_one(tmp_path: Path) -> None:
    def play(folder: str, **options: Any) -> Any:
        client = FedBC(tiny_net(), start_from="local", **LOCAL)
        return run(client, states="disk", run=tmp_path / folder, resume=True, **options)

    with pytest.raises(ZeroDivisionError):
        play("failed", callbacks=[FailsOnce()])
    assert rounds_saved(tmp_path / "failed") == 2
    assert_same_run(play("failed"), play("whole"))


def continued(checkpoint: Path, **options: Any) -> FederatedTrainer:
    """FedBC from a checkpoint on, with the options of `run`."""
    given: dict[str, Any] = {"rounds": 5, "clients_per_round": 3, "engine": "sequential", "precision": "64-true"}
    trainer = FederatedTrainer(**given, **options, initial_weights="net", enable_progress_bar=False)
    trainer.fit(FedBC(tiny_net(), **LOCAL), datamodule=tiny_data(), ckpt_path=checkpoint)
    return trainer


def test_checkpoint_beside_the_run_folders_own_holds_all_rows(tmp_path: Path) -> None:
    first = run(FedBC(tiny_net(), **LOCAL), states="disk", run=tmp_path / "run", rounds=2)
    first.save_checkpoint(tmp_path / "own.ckpt")
    shutil.rmtree(tmp_path / "run")
    whole = run(FedBC(tiny_net(), **LOCAL))
    assert_same_run(continued(tmp_path / "own.ckpt"), whole)


def test_another_run_goes_on_from_a_checkpoint_with_rows_on_disk_and_leaves_them(tmp_path: Path) -> None:
    run(FedBC(tiny_net(), **LOCAL), states="disk", run=tmp_path / "first", rounds=2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "first" / "checkpoints").iterdir()}
    last = tmp_path / "first" / "checkpoints" / "last.ckpt"
    assert_same_run(continued(last, states="disk", run=tmp_path / "second"), run(FedBC(tiny_net(), **LOCAL)))
    assert {path.name: path.read_bytes() for path in last.parent.iterdir()} == before


def test_checkpoint_that_memory_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(FedBC(tiny_net(), **LOCAL), states="disk", run=tmp_path / "run", rounds=1)
    monkeypatch.setattr(states_location, "memory_bytes", lambda: 100)
    with pytest.raises(RunError, match="would hold the rows of all clients"):
        first.save_checkpoint(tmp_path / "own.ckpt")


# ---- where rows are --------------------------------------------------------------------------------------------------


def test_auto_takes_the_disk_beyond_a_share_of_memory_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedlit")
    monkeypatch.setattr(states_location, "memory_bytes", lambda: 1_000)
    trainer = run(FedBC(tiny_net(), **LOCAL), run=tmp_path / "run", rounds=1)
    assert trainer.loop.states.file is not None
    assert re.search(
        r"states: disk \(rows of 3 clients may take .* more than an eighth of the .* of memory\)", caplog.text
    )


def test_auto_stays_in_memory_below_that_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedlit")
    trainer = run(FedBC(tiny_net(), **LOCAL), run=tmp_path / "run", rounds=1)
    assert trainer.loop.states.file is None
    assert "states:" not in caplog.text


def test_auto_says_why_it_cannot_take_the_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedlit")
    monkeypatch.setattr(states_location, "memory_bytes", lambda: 1_000)
    run(FedBC(tiny_net(), **LOCAL), rounds=1)
    assert re.search(r"states: memory, although .*: this run has no folder. Give one with trainer.run", caplog.text)


def test_disk_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="trainer.states is disk, but this run has no folder. Give one with"):
        run(FedBC(tiny_net(), **LOCAL), states="disk")


def test_disk_on_several_machines_is_refused() -> None:
    assert "several machines" in str(states_location.why_not_on_disk(Path("run"), machines=2))


# ---- on the command line ---------------------------------------------------------------------------------------------

OWN = f"{LONG} {SEQUENTIAL} --model.start_from local"
DISK = f"{OWN} --trainer.states disk"


def came_to(folder: Path) -> dict[str, Any]:
    """All that a run came to, its rows included, wherever they are."""
    found = outcome(folder)
    states = ClientStates()
    states.load_state_dict(found["rows"], folder / "checkpoints")
    return found | {"rows": states.state_dict()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What a command comes to with rows in memory when nobody stops it; each is run once."""

    @cache
    def run_to_its_end(words: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("whole") / "run"
        finish(f"{words} --trainer.states memory --wandb disabled --run {folder}")
        return came_to(folder)

    return run_to_its_end


def test_a_run_killed_with_rows_on_disk_ends_with_the_bits_of_one_in_memory(
    tmp_path: Path, whole: Callable[[str], dict[str, Any]]
) -> None:
    words = f"{DISK} --run {tmp_path / 'run'}"
    assert stopped(words, tmp_path / "run", 6, signal.SIGKILL) == -signal.SIGKILL
    finish(f"{words} --resume")
    assert_same_bits(came_to(tmp_path / "run"), whole(OWN))


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("lines", [1, 2, 3, 5, 7, 9, 11])
def test_a_run_killed_at_any_moment_with_rows_on_disk_ends_with_the_same_bits(
    tmp_path: Path, lines: int, every: int, whole: Callable[[str], dict[str, Any]]
) -> None:
    words = f"{DISK} --trainer.checkpoint_every {every} --run {tmp_path / 'run'} --resume"
    for more in (0, 2):
        assert stopped(words, tmp_path / "run", min(lines + more, 12), signal.SIGKILL) == -signal.SIGKILL
    finish(words)
    assert_same_bits(came_to(tmp_path / "run"), whole(OWN))


def test_rows_move_between_memory_and_disk_at_resume_and_nothing_stays_behind(
    call: Call, whole: Callable[[str], dict[str, Any]]
) -> None:
    folder = Path("run")
    for rounds, states in ((2, "memory"), (4, "disk"), (6, "memory"), (8, "disk"), (9, "memory"), (12, "disk")):
        assert call(f"{OWN} --run run --resume --trainer.rounds {rounds} --trainer.states {states}").code == 0
        find_checkpoint(RunFolder(folder))
        assert find_previous(folder) in (rounds - 1, rounds - 2)
    assert len(list(folder.glob("checkpoints/rows-*.bin"))) == 1
    assert_same_bits(came_to(folder), whole(OWN))


def find_previous(folder: Path) -> int:
    """Rounds of previous.ckpt, whose rows are read whole."""
    loop = torch.load(folder / "checkpoints" / "previous.ckpt", weights_only=True)["loops"]["fit_loop"]
    ClientStates().load_state_dict(loop["clients"], folder / "checkpoints")
    if "stored" in loop["clients"]:
        RowStore.load(folder / "checkpoints", loop["clients"]["stored"], Ranks()).check()
    rounds = loop["rounds"]
    assert isinstance(rounds, int)
    return rounds


def test_export_writes_the_same_models_from_disk_and_from_memory(call: Call) -> None:
    for states in ("memory", "disk"):
        assert call(f"fit {TINY} --trainer.states {states} --run {states} --wandb disabled").code == 0
        assert call(f"export {states}").code == 0
    one, other = (torch.load(f"{states}/export/personal.pt", weights_only=True) for states in ("memory", "disk"))
    assert_same_bits(one, other)


def test_a_finished_run_is_exported_from_a_folder_that_cannot_be_written(call: Call, tmp_path: Path) -> None:
    assert call(f"fit {TINY} --trainer.states disk").code == 0
    flags = []
    real = os.open

    def watched(path: Any, how: int, *args: Any, **kwargs: Any) -> int:
        flags.extend([how] * str(path).endswith(".bin"))
        return real(path, how, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        assert call(f"export run --out {tmp_path / 'out'}").code == 0
    assert set(flags) == {os.O_RDONLY}


def test_a_run_started_anew_leaves_no_rows_of_the_old_one(call: Call) -> None:
    assert call(f"fit {TINY} --trainer.states disk").code == 0
    [old] = Path("run/checkpoints").glob("rows-*.bin")
    assert call(f"fit {TINY} --trainer.states memory --overwrite").code == 0
    assert not old.exists()


# ---- damaged ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds with rows on disk, to be copied."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.raises(SystemExit):
        main(f"fit {TINY} --run {folder} --wandb disabled --trainer.states disk".split())
    return folder


def flip(file: Path, where: int) -> None:
    with file.open("r+b") as rows:
        rows.seek(where)
        [byte] = rows.read(1)
        rows.seek(where)
        rows.write(bytes([byte ^ 1]))


def slots(name: str) -> set[int]:
    loop = torch.load(Path("run/checkpoints") / name, weights_only=True)["loops"]["fit_loop"]
    return set(loop["clients"]["stored"]["slots"].tolist())


def file_of_rows() -> Path:
    [file] = Path("run/checkpoints").glob("rows-*.bin")
    return file


def damage_a_row_of(slots: set[int]) -> None:
    flip(file_of_rows(), 4096 * (1 + min(slots)) + 7)  # a header, then one page for each row of this small model


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda: damage_a_row_of(slots("last.ckpt") & slots("previous.ckpt")), "the row of client . is not what was"),
        (lambda: flip(file_of_rows(), 3), "its beginning is not that of client rows"),
        (lambda: flip(file_of_rows(), 30), "its beginning is not that of client rows"),
        (lambda: os.truncate(file_of_rows(), 5000), "the row of client . is not in it"),
        (lambda: os.truncate(file_of_rows(), 0), "its beginning is not that of client rows"),
        (lambda: file_of_rows().unlink(), r"it cannot be read \(No such file or directory\)"),
    ],
    ids=["row", "magic", "layout", "short", "empty", "gone"],
)
@pytest.mark.parametrize("words", ["fit {} --trainer.states disk --resume --trainer.rounds 5", "export run"])
def test_damaged_rows_are_refused_with_the_file_and_what_to_do(
    finished: Path, refusal: Refusal, damage: Callable[[], None], said: str, words: str
) -> None:
    shutil.copytree(finished, "run")
    file = file_of_rows()
    damage()
    message = refusal(words.format(TINY))
    assert str(file) in message
    assert re.search(f"is damaged: {said}.*Otherwise restore the file from a copy, or start the run anew", message)


def test_damaged_rows_of_the_last_checkpoint_alone_fall_back_to_the_one_before(
    call: Call, caplog: pytest.LogCaptureFixture, whole: Callable[[str], dict[str, Any]]
) -> None:
    assert call(f"{DISK} --run run --trainer.rounds 6").code == 0
    damage_a_row_of(slots("last.ckpt") - slots("previous.ckpt"))
    assert call(f"{DISK} --run run --resume").code == 0
    assert re.search(
        r"last\.ckpt is damaged \(rows-.*\.bin: the row of client . is not what was written\); continuing from "
        r"previous\.ckpt, after round 5",
        caplog.text,
    )
    assert_same_bits(came_to(Path("run")), whole(OWN))


def test_damage_that_is_met_in_a_round_ends_the_run_with_one_paragraph(tmp_path: Path) -> None:
    class Damages(ServerCallback):
        decides = False

        def on_server_step_end(self, trainer: Any, client: Any, cohort: Any) -> None:
            file = trainer.loop.states.file
            for slot in range(1, 40 if cohort.number == 2 else 1):
                flip(file, 4096 * slot + 7) if file.stat().st_size > 4096 * slot + 7 else None

    with pytest.raises(DamagedRowsError, match=r"rows-.*\.bin is damaged: the row of client . is not what was written"):
        run(FedBC(tiny_net(), start_from="local", **LOCAL), states="disk", run=tmp_path / "run", callbacks=[Damages()])


# ---- a disk that becomes full ----------------------------------------------------------------------------------------

MANY = "--data.num_clients 30 --trainer.clients_per_round 6 --trainer.rounds 8 --model.start_from local"


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """The system refuses to let a file of this process grow further."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_that_cannot_be_written_end_the_run_and_nothing_is_lost(
    call: Call, whole: Callable[[str], dict[str, Any]]
) -> None:
    words = f"fit {TINY} {MANY}"
    with files_up_to(80_000):
        answer = call(f"{words} --trainer.states disk")
    assert answer.code == 2
    assert re.fullmatch(rf"fedlit: .*rows-.*\.bin cannot be written: .*{os.strerror(errno.EFBIG)}.*\n", answer.err)
    done = rounds_saved(Path("run"))
    assert 1 <= done < 8
    assert find_previous(Path("run")) == done - 1
    assert call(f"{words} --trainer.states disk --resume").code == 0
    assert_same_bits(came_to(Path("run")), whole(words.replace("--run run", "")))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 KB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_full_disk_ends_the_run_and_with_more_room_it_goes_on_to_the_same_bits(
    call: Call, small_disk: Path, whole: Callable[[str], dict[str, Any]]
) -> None:
    words = f"fit {TINY} {MANY}".replace("--run run", f"--run {small_disk / 'run'}")
    answer = call(f"{words} --trainer.states disk")
    assert answer.code == 2
    assert re.fullmatch(
        "fedlit: .*the disk is full. Free some space and continue with --resume.*untouched.*\n", answer.err
    )
    assert 1 <= rounds_saved(small_disk / "run") < 8
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    assert call(f"{words} --trainer.states disk --resume").code == 0
    assert_same_bits(came_to(small_disk / "run"), whole(f"fit {TINY} {MANY}".replace("--run run", "")))
