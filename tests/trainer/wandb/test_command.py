"""W&B on the command line: resumed, failed, interrupted and swept runs, read back from their offline files."""

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import wandb

from fedlit.config.files import resolve_configs
from fedlit.config.fit_cli import FitCLI
from fedlit.results.records import read_metrics
from tests.conftest import TINY, Answer, Call
from tests.trainer.wandb.offline import Offline, offline_runs

OFFLINE = f"fit {TINY} --wandb offline"


@pytest.fixture
def track(call: Call) -> Call:
    """`call`, then the end of W&B, which comes with the end of the process on the command line."""

    def run(words: str) -> Answer:
        answer = call(words)
        assert wandb.run is None, "the run is finished, whatever the process does next"
        wandb.teardown()  # only now is the file complete, and the working folder forgotten
        return answer

    return run


def only_run(folder: str = "run") -> Offline:
    (found,) = offline_runs(Path(folder))
    return found


def exit_codes(run: Offline) -> list[int]:
    return [ended.exit_code for ended in run.of("exit")]


# resume


def test_a_resumed_run_continues_its_wandb_run(track: Call) -> None:
    assert track(OFFLINE).code == 0
    time.sleep(1)  # W&B names an offline run's folder after the second it starts in
    assert track(f"{OFFLINE} --resume --trainer.rounds 5").code == 0
    first, second = offline_runs(Path("run"))
    assert first.run.run_id == second.run.run_id
    assert [row["round"] for run in (first, second) for row in run.history if "train/lr" in row] == [1, 2, 3, 4, 5]
    assert second.run.resume, "'wandb sync' appends it to the first"
    assert second.table("users/table")["columns"][0] == "client"
    assert second.logged("about/metrics") == [], "the run has its glossary already"


def test_a_run_that_starts_anew_is_another_wandb_run(track: Call) -> None:
    assert track(OFFLINE).code == 0
    assert track(f"{OFFLINE} --overwrite --resume").code == 0
    assert len({run.run.run_id for run in offline_runs(Path("run"))}) == 2


# how a run ends


MINE = """\
import os, signal, subprocess, time
from pytorch_lightning import Callback
from fedlit import FedAvg


class Interrupted(Callback):
    def on_train_epoch_end(self, trainer, client):
        trainer.loop.stop_request.asked = trainer.loop.rounds_done == 2


class WandbDies(Callback):
    def on_train_epoch_end(self, trainer, client):
        if trainer.loop.rounds_done == 1:
            shown = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,comm="], capture_output=True, text=True).stdout
            found = [line.split() for line in shown.splitlines() if "wandb-core" in line]
            (own,) = [int(pid) for pid, parent, *_ in found if int(parent) == os.getpid()]
            os.kill(own, signal.SIGKILL)
            time.sleep(0.2)


class Saving(FedAvg):
    def __init__(self, **options):
        super().__init__(**options)
        self.save_hyperparameters("lr")
"""


@pytest.fixture
def mine(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a user's own classes, in the working folder."""
    path = workplace / "mine.py"
    path.write_text(MINE)
    monkeypatch.syspath_prepend(str(workplace))
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # other tests have a file of this name too
    return path


def test_an_interrupted_run_is_not_marked_as_finished(track: Call, mine: Path) -> None:
    assert track(f"{OFFLINE} --trainer.callbacks mine.Interrupted").code == 130
    assert exit_codes(only_run()) == [130]


def test_a_diverged_run_is_marked_as_failed_and_has_its_users(track: Call) -> None:
    answer = track(f"{OFFLINE} --trainer.divergence_factor 1.0000001 --model.lr 1000 --model.clip null")
    assert answer.code == 1, answer.err
    run = only_run()
    assert exit_codes(run) == [1]
    assert len(run.table("users/table")["data"]) == 4


def test_training_goes_on_when_wandb_dies_and_one_line_says_so(
    track: Call, mine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert track(f"{OFFLINE} --trainer.callbacks mine.WandbDies").code == 0
    (line,) = [message for message in caplog.messages if "W&B" in message]
    assert "gets nothing more of this run" in line
    assert [row["round"] for row in read_metrics(Path("run/metrics.csv"))] == [0, 1, 2, 3]


def test_wandb_that_cannot_start_ends_the_run_before_any_round(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**settings: object) -> None:
        raise wandb.errors.CommError("no answer\nfrom the server")

    monkeypatch.setattr(wandb, "init", unreachable)
    answer = call(OFFLINE)
    assert answer.code == 2
    assert "W&B cannot start (no answer from the server). Give --wandb offline, or --wandb disabled." in answer.err
    assert not Path("run/metrics.csv").exists()


# config, group, options


def test_what_a_module_saves_as_hyperparameters_is_not_repeated_in_the_config(track: Call, mine: Path) -> None:
    assert track(f"{OFFLINE} --model mine.Saving").code == 0
    names = [name for name, _ in only_run().config]
    assert [name for name in names if name.split(".")[-1] == "lr"] == ["model.lr"]
    assert len(names) == len(set(names))


def test_a_run_of_a_sweeps_agent_has_the_sweeps_parameters_once(track: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wandb agent` hands a run its parameters and its id through the environment."""
    Path("drawn.yaml").write_text(
        "wandb_version: 1\nmodel.lr:\n  value: 0.03\ntrainer.clients_per_round:\n  value: 2\n"
    )
    agent = {"WANDB_SWEEP_ID": "abcd1234", "WANDB_RUN_ID": "trial001", "WANDB_SWEEP_PARAM_PATH": "drawn.yaml"}
    for name, value in agent.items():
        monkeypatch.setenv(name, value)
    assert track(f"{OFFLINE} --model.lr=0.03 --trainer.clients_per_round=2").code == 0
    run = only_run()
    names = [name for name, _ in run.config]
    assert (run.run.run_id, run.run.sweep_id) == ("trial001", "abcd1234")
    assert (dict(run.config)["model.lr"], dict(run.config)["model"]) == (0.03, "FedBC")
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("words", "group", "experiment"),
    [
        (TINY, None, "synthetic_fedbc"),
        (f"{TINY} --config mine.yaml", None, "synthetic_fedbc+mine"),
        (f"{TINY} --experiment ablation", "from-outside", "ablation"),
        (TINY, "from-outside", "from-outside"),
        (
            "--model FedAvg --model.net fedlit.Softmax --model.net.num_features 60 --model.net.num_classes 10 "
            "--data Synthetic",
            None,
            "synthetic_fedavg",
        ),
    ],
)
def test_experiment_is_what_is_asked_for_or_the_configs_name(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, words: str, group: str | None, experiment: str
) -> None:
    Path("mine.yaml").write_text("seed_everything: 3\n")
    if group is not None:
        monkeypatch.setenv("WANDB_RUN_GROUP", group)
    cli = FitCLI(resolve_configs(shlex.split(f"{words} --wandb disabled")))
    config = cli.trainer.config
    assert config is not None
    assert cli.experiment(config) == experiment


@pytest.mark.parametrize("words", ["--wandb disabled", ""])
def test_artifact_without_wandb_is_refused(refusal: Callable[..., str], words: str) -> None:
    assert "--wandb_artifact keeps checkpoints in W&B, which is off" in refusal(f"fit {TINY} --wandb_artifact {words}")


def test_without_the_option_no_checkpoint_leaves_the_run_folder(track: Call) -> None:
    assert track(OFFLINE).code == 0
    assert [artifact.type for artifact in only_run().of("artifact")] == ["run_table", "run_table"]
