"""A run that ends anywhere, by kill, signal, damage or at a checkpoint of any hook, continues to the same bits."""

import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fedlit import FedBC, FederatedTrainer, ServerCallback, Softmax, Synthetic
from fedlit.cli.main import main
from fedlit.errors import ResumeError
from fedlit.results.records import read_clients, read_metrics
from fedlit.server.optimizers import ServerOptimizer
from tests.conftest import TINY, Call, files
from tests.forked import forked
from tests.problems import CLASSES, FEATURES, tiny_data

Refusal = Callable[..., str]
Uninterrupted = Callable[[str], dict[str, Any]]

ROUNDS = 12
LONG = (
    f"fit --config synthetic_fedbc.yaml --trainer.rounds {ROUNDS} --trainer.checkpoint_every 1 --wandb disabled "
    "--data.num_clients 6 --data.size_sigma 1 --trainer.clients_per_round 3 --model.local_epochs 2 "
    "--trainer.enable_progress_bar false"
)
SEQUENTIAL = "--trainer.engine sequential"
EAGER = "--trainer.engine vectorized --trainer.compiled false"
COMPILED = "--trainer.engine vectorized --trainer.compiled true"
FIT_SECONDS = 300


def assert_same_bits(one: Any, other: Any, where: str = "") -> None:
    """Equal down to the last bit: tensors, numbers (NaN equals NaN), and what holds them."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_same_bits(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for k, pair in enumerate(zip(one, other, strict=True)):
            assert_same_bits(*pair, f"{where}[{k}]")
    else:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=where)


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run came to, without its times."""
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    loop = checkpoint["loops"]["fit_loop"]
    return {
        "metrics": [without_times(row) for row in read_metrics(folder / "metrics.csv")],
        "clients": {name: column.to_numpy() for name, column in zip(*table(folder), strict=True)},
        "weights": dict(checkpoint["state_dict"]),
        "rows": loop["clients"],
        "optimizer": checkpoint["optimizer_states"],
        "best": loop["best"],
        "rounds": loop["rounds"],
    }


def table(folder: Path) -> tuple[list[str], list[Any]]:
    records = read_clients(folder)
    return records.column_names, records.columns


def without_times(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith("time/")}


def stopped(words: str, folder: Path, lines: int, by: signal.Signals) -> int:
    """Run fedlit in a process of its own, signal it when metrics.csv has so many lines; returns how it ended."""
    process = forked(words)
    metrics, deadline = folder / "metrics.csv", time.monotonic() + FIT_SECONDS
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline, "the run does not come so far"
        time.sleep(0.002)
    process.send_signal(by)
    return process.wait(FIT_SECONDS)


def rounds_saved(folder: Path) -> int:
    rounds = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["loops"]["fit_loop"]["rounds"]
    assert isinstance(rounds, int)
    return rounds


def finish(words: str) -> None:
    """Run the command line in this process to its end."""
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words))
    assert ended.value.code == 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """What a command comes to when nobody stops it; each is run once."""

    @cache
    def run(words: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("whole") / "run"
        finish(f"{words} --wandb disabled --run {folder}")
        return outcome(folder)

    return run


# killed on the command line


@pytest.mark.parametrize("engine", [SEQUENTIAL, EAGER], ids=["sequential", "vectorized"])
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, engine: str, uninterrupted: Uninterrupted) -> None:
    folder, words = tmp_path / "run", f"{LONG} {engine} --run {tmp_path / 'run'}"
    assert stopped(words, folder, 6, signal.SIGKILL) == -signal.SIGKILL
    assert 3 <= rounds_saved(folder) < ROUNDS
    finish(f"{words} --resume")
    assert_same_bits(outcome(folder), uninterrupted(f"{LONG} {engine}"))


def test_a_run_killed_before_its_first_checkpoint_starts_from_the_beginning(
    tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    folder, words = tmp_path / "run", f"{LONG} {SEQUENTIAL} --trainer.checkpoint_every 100 --run {tmp_path / 'run'}"
    assert stopped(words, folder, 4, signal.SIGKILL) == -signal.SIGKILL
    assert list(folder.glob("checkpoints/*.ckpt")) == []
    finish(f"{words} --resume")
    assert_same_bits(outcome(folder), uninterrupted(f"{LONG} {SEQUENTIAL}"))


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_an_interrupted_run_ends_at_a_rounds_end_and_continues_to_the_same_bits(
    tmp_path: Path, by: signal.Signals, uninterrupted: Uninterrupted
) -> None:
    folder, words = tmp_path / "run", f"{LONG} {SEQUENTIAL} --trainer.checkpoint_every 100 --run {tmp_path / 'run'}"
    assert stopped(words, folder, 4, by) == 130
    assert 2 <= read_metrics(folder / "metrics.csv")[-1]["round"] == rounds_saved(folder) < ROUNDS
    finish(f"{words} --resume")
    assert_same_bits(outcome(folder), uninterrupted(f"{LONG} {SEQUENTIAL}"))


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 3, 5, 7, 9])
@pytest.mark.parametrize("engine", [SEQUENTIAL, COMPILED], ids=["sequential", "compiled"])
def test_a_run_killed_at_any_moment_ends_with_the_same_bits(
    tmp_path: Path, engine: str, lines: int, uninterrupted: Uninterrupted
) -> None:
    folder, words = tmp_path / "run", f"{LONG} {engine} --run {tmp_path / 'run'}"
    assert stopped(words, folder, lines, signal.SIGKILL) == -signal.SIGKILL
    finish(f"{words} --resume")
    assert_same_bits(outcome(folder), uninterrupted(f"{LONG} {engine}"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [SEQUENTIAL, COMPILED], ids=["sequential", "compiled"])
def test_a_run_killed_five_times_ends_with_the_same_bits(
    tmp_path: Path, engine: str, uninterrupted: Uninterrupted
) -> None:
    folder, words = tmp_path / "run", f"{LONG} {engine} --run {tmp_path / 'run'} --resume"
    for lines in (2, 4, 6, 8, 10):
        assert stopped(words, folder, lines, signal.SIGKILL) == -signal.SIGKILL
    finish(words)
    assert_same_bits(outcome(folder), uninterrupted(f"{LONG} {engine}"))


# continued on the command line


def test_more_rounds_continue_the_run(call: Call, uninterrupted: Uninterrupted) -> None:
    assert call(f"fit {TINY}").code == 0
    assert call(f"fit {TINY} --trainer.rounds 5 --resume").code == 0
    assert_same_bits(outcome(Path("run")), uninterrupted(f"fit {TINY} --trainer.rounds 5"))


def test_a_checkpoint_is_read_once_at_resume(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(f"fit {TINY} --trainer.rounds 1").code == 0
    read, load = [], torch.load

    def counted(file: Any, *args: Any, **options: Any) -> Any:
        read.append(file)
        return load(file, *args, **options)

    monkeypatch.setattr(torch, "load", counted)
    assert call(f"fit {TINY} --trainer.rounds 2 --resume").code == 0
    assert read == [Path("run/checkpoints/last.ckpt")]


def test_resuming_a_finished_run_changes_none_of_its_files(call: Call) -> None:
    assert call(f"fit {TINY}").code == 0
    before = files(Path("run"))
    answer = call(f"fit {TINY} --resume")
    assert answer.code == 0
    assert "after 3 rounds" in answer.out
    assert "resumed after round 3 of 3, so nothing is left to train" in Path("run/log.txt").read_text()
    after = files(Path("run"))
    assert after.pop("log.txt").startswith(before.pop("log.txt"))
    assert after == before


def test_resume_in_an_empty_folder_starts_a_run(call: Call) -> None:
    assert call(f"fit {TINY} --resume").code == 0
    assert rounds_saved(Path("run")) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model.lr 0.02", "model.lr was 0.01, is 0.02"),
        ("--data.size_factor 2", "data.size_factor was 1, is 2"),
        ("--trainer.clients_per_round 3", "trainer.clients_per_round was 2, is 3"),
        ("--trainer.eval_every 2", "trainer.eval_every was 1, is 2"),
        ("--seed_everything 1", "seed_everything was 0, is 1"),
        ("--model FedAvg", "model.class_path was fedlit.FedBC, is fedlit.FedAvg"),
        (
            "--trainer.engine vectorized --trainer.compiled false",
            "trainer.engine is vectorized, but .* used sequential",
        ),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(call: Call, refusal: Refusal, words: str, said: str) -> None:
    assert call(f"fit {TINY} --trainer.rounds 1").code == 0
    message = refusal(f"fit {TINY} {words} --resume")
    assert re.search(said, message)
    assert "--run DIR" in message


# damaged


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit_of_the_weights(path: Path) -> None:
    content = bytearray(path.read_bytes())
    weights = torch.load(path, weights_only=True)["state_dict"]["net.linear.weight"]
    content[content.index(weights.numpy().tobytes()) + 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, empty, flip_a_bit_of_the_weights])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    call: Call, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], uninterrupted: Uninterrupted
) -> None:
    assert call(f"fit {TINY}").code == 0
    damage(Path("run/checkpoints/last.ckpt"))
    assert call(f"fit {TINY} --trainer.rounds 5 --resume").code == 0
    assert "last.ckpt is damaged; continuing from previous.ckpt, after round 2." in caplog.text
    assert "last.ckpt is damaged" in Path("run/log.txt").read_text()
    assert_same_bits(outcome(Path("run")), uninterrupted(f"fit {TINY} --trainer.rounds 5"))


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_kept(call: Call, refusal: Refusal) -> None:
    assert call(f"fit {TINY}").code == 0
    truncate(Path("run/checkpoints/last.ckpt"))
    truncate(Path("run/checkpoints/previous.ckpt"))
    message = refusal(f"fit {TINY} --trainer.rounds 5 --resume")
    assert "last.ckpt and previous.ckpt" in message
    assert "--overwrite" in message


def test_a_run_whose_config_is_damaged_is_refused_and_kept(call: Call, refusal: Refusal) -> None:
    assert call(f"fit {TINY}").code == 0
    Path("run/config.yaml").write_text("trainer: [1\nmodel: x: y")
    assert "config.yaml is not YAML" in refusal(f"fit {TINY} --resume")


# from a checkpoint, in Python


class Momentum(ServerOptimizer):
    """A server optimiser that has something to remember."""

    def build(self, params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.7, momentum=0.5)


def train(
    callbacks: list[Any] | None = None,
    ckpt_path: Path | None = None,
    lr: float = 0.05,
    size_min: int = 12,
    **options: Any,
) -> FederatedTrainer:
    defaults: dict[str, Any] = {"rounds": 5, "clients_per_round": 2, "engine": "sequential", "seed": 1}
    trainer = FederatedTrainer(
        **(defaults | options), callbacks=callbacks or [], server_optimizer=Momentum(), enable_progress_bar=False
    )
    data = Synthetic(num_clients=4, size_mean=1.0, size_sigma=0.0, size_min=size_min)
    client = FedBC(Softmax(60, 10), lr=lr, dual_lr=0.01, start_from="local", local_epochs=2)
    trainer.fit(client, datamodule=data, ckpt_path=ckpt_path)
    return trainer


def state(trainer: FederatedTrainer) -> dict[str, Any]:
    loop = trainer.loop
    return {
        "weights": dict(loop.client.net.state_dict()),
        "rows": loop.states.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "metrics": [without_times(row) for row in loop.history.numbered()],
        "best": loop.best.state_dict(),
        "rounds": loop.rounds_done,
    }


class SavesIn(ServerCallback):
    """Saves a checkpoint in one hook, at the third occasion."""

    def __init__(self, hook: str, path: Path) -> None:
        self.path, self.occasions = path, 0
        setattr(self, hook, self.save)

    def save(self, trainer: FederatedTrainer, *args: Any) -> None:
        self.occasions += 1
        if self.occasions == 3:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize(
    ("hook", "rounds"),
    [
        ("on_train_epoch_start", 2),
        ("on_train_batch_start", 2),
        ("on_cohort_start", 3),
        ("on_cohort_trained", 3),
        ("on_pseudo_gradient", 3),
        ("on_before_optimizer_step", 3),
        ("on_server_step_end", 3),
        ("on_users_measured", 2),
        ("on_round_metrics", 2),
        ("on_validation_start", 3),
        ("on_validation_end", 3),
        ("on_train_batch_end", 3),
        ("on_train_epoch_end", 3),
    ],
)
def test_a_checkpoint_of_any_hook_continues_to_the_same_bits(tmp_path: Path, hook: str, rounds: int) -> None:
    path = tmp_path / "saved.ckpt"
    whole = train([SavesIn(hook, path)])
    assert torch.load(path, weights_only=True)["loops"]["fit_loop"]["rounds"] == rounds, "that of a round's end"
    assert_same_bits(state(train(ckpt_path=path)), state(whole))


@pytest.mark.parametrize("eval_every", [1, 2])
def test_every_checkpoint_of_lightnings_own_callback_continues_to_the_same_bits(
    tmp_path: Path, eval_every: int
) -> None:
    keep_all = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, monitor="val/loss")
    whole = train([keep_all], eval_every=eval_every)
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) == {1: 5, 2: 3}[eval_every]
    for path in paths:
        assert_same_bits(state(train(ckpt_path=path, eval_every=eval_every)), state(whole))


def test_checkpoints_hold_tensors_and_plain_data_only(tmp_path: Path) -> None:
    train(run=tmp_path / "run", checkpoint_every=2)
    paths = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [path.name for path in paths] == ["best.ckpt", "last.ckpt", "previous.ckpt"]
    for path in paths:
        assert isinstance(torch.load(path, weights_only=True), dict)


def test_a_checkpoint_is_not_continued_by_another_engine(tmp_path: Path) -> None:
    train([SavesIn("on_train_epoch_end", tmp_path / "saved.ckpt")])
    with pytest.raises(ResumeError, match="trainer.engine is vectorized, but the run to resume used sequential"):
        train(ckpt_path=tmp_path / "saved.ckpt", engine="vectorized", compiled=False)


def test_the_engine_is_kept_at_resume_when_it_is_left_to_choose(tmp_path: Path) -> None:
    whole = train([SavesIn("on_train_epoch_end", tmp_path / "saved.ckpt")], engine="vectorized", compiled=False)
    resumed = train(ckpt_path=tmp_path / "saved.ckpt", engine="auto")
    assert (resumed.summary["engine"], resumed.summary["compiled"]) == ("vectorized", False)
    assert_same_bits(state(resumed), state(whole))


def test_a_run_folder_of_python_is_resumed(tmp_path: Path) -> None:
    train(run=tmp_path / "run", rounds=2)
    train(run=tmp_path / "run", resume=True)
    train(run=tmp_path / "whole")
    assert_same_bits(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


@pytest.mark.parametrize(
    "changed",
    [{"lr": 0.02}, {"size_min": 13}, {"seed": 2}, {"clients_per_round": 3}, {"eval_every": 2}, {"weights": "uniform"}],
    ids=["client", "data", "seed", "cohort", "evaluation", "weights"],
)
def test_a_run_folder_of_python_is_not_resumed_with_other_settings(tmp_path: Path, changed: dict[str, Any]) -> None:
    train(run=tmp_path / "run", rounds=1)
    before = files(tmp_path)
    with pytest.raises(ResumeError, match="holds a run with other settings"):
        train(run=tmp_path / "run", resume=True, **changed)
    assert files(tmp_path) == before


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_within_a_round_ends_the_run_after_that_round(tmp_path: Path, by: signal.Signals) -> None:
    class Interrupts(ServerCallback):
        decides = False

        def on_cohort_trained(self, trainer: Any, client: Any, cohort: Any) -> None:
            os.kill(os.getpid(), by if cohort.round == 2 else 0)

    trainer = train([Interrupts()], run=tmp_path / "run")
    assert (trainer.interrupted, trainer.summary["rounds"], trainer.summary["finished"]) == (True, 3, False)
    train(run=tmp_path / "run", resume=True)
    train(run=tmp_path / "whole")
    assert_same_bits(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


def test_resume_is_exact_in_double_precision_for_a_net_that_was_built_in_single(tmp_path: Path) -> None:
    """Lightning restores a net before it converts it; z must not pass through single precision on the way."""

    def trainer(rounds: int, **options: Any) -> FederatedTrainer:
        common: dict[str, Any] = {"clients_per_round": 3, "precision": "64-true", "enable_progress_bar": False}
        return FederatedTrainer(rounds=rounds, **common, **options)

    def client() -> FedBC:
        return FedBC(Softmax(FEATURES, CLASSES), lr=0.05, batch_size=4, dual_lr=0.5)

    whole = trainer(6)
    whole.fit(client(), datamodule=tiny_data())
    trainer(3, run=tmp_path).fit(client(), datamodule=tiny_data())
    resumed = trainer(6, run=tmp_path, resume=True)
    resumed.fit(client(), datamodule=tiny_data())
    assert all(torch.equal(whole.loop.server.z[name], value) for name, value in resumed.loop.server.z.items())
    rows, again = (run.loop.states.state_dict()["rows"] for run in (whole, resumed))
    assert all(torch.equal(value, again[name]) for name, value in rows.items())


@pytest.mark.parametrize("option", ["--resume", "--resume --wandb disabled"])
def test_fewer_rounds_than_are_done_are_refused_and_nothing_is_touched(
    call: Call, refusal: Refusal, option: str
) -> None:
    assert call(f"fit {TINY}").code == 0
    said = refusal(f"fit {TINY} --trainer.rounds 2 {option}")
    assert "run holds a run with 3 finished rounds, but trainer.rounds is 2. Give 3 or more" in said


def test_fewer_rounds_than_are_done_are_refused_from_python(tmp_path: Path) -> None:
    train(run=tmp_path / "run", rounds=3)
    before = files(tmp_path)
    with pytest.raises(ResumeError, match="3 finished rounds, but trainer.rounds is 1"):
        train(run=tmp_path / "run", rounds=1, resume=True)
    assert files(tmp_path) == before


def test_a_second_signal_ends_the_run_at_once_and_the_last_checkpoint_stays_good(tmp_path: Path) -> None:
    class Twice(ServerCallback):
        decides = False

        def on_cohort_trained(self, trainer: Any, client: Any, cohort: Any) -> None:
            for _ in range(2 * (cohort.round == 2)):
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train([Twice()], run=tmp_path / "run", checkpoint_every=1)
    assert signal.getsignal(signal.SIGINT) == before
    train(run=tmp_path / "run", resume=True, checkpoint_every=1)
    train(run=tmp_path / "whole")
    assert_same_bits(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


AT_THE_END = """\
import os, signal
from fedlit import ServerCallback


class Impatient(ServerCallback):
    def on_cohort_start(self, trainer, client, cohort):
        if trainer.loop.rounds_done == {after}:
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(("after", "code"), [(2, 0), (1, 130)], ids=["in the last round", "in the round before"])
def test_a_run_that_did_all_its_rounds_was_not_interrupted(call: Call, after: int, code: int) -> None:
    Path("impatient.py").write_text(AT_THE_END.format(after=after))
    sys.modules.pop("impatient", None)
    answer = call(f"fit {TINY} --trainer.callbacks impatient.Impatient")
    assert answer.code == code, answer.err
    assert ("interrupted" in answer.err) == (code == 130)
    assert json.loads(Path("run/summary.json").read_text())["finished"] == (code == 0)
