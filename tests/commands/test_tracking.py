"""W&B: what arrives in a real offline run, and when it stays off. Nothing here uses the network."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # generated when it is imported

from fedlit.commands.tracking import wandb_mode
from fedlit.run import read_metrics
from tests.conftest import TINY, Answer, Call, files


@pytest.fixture
def track(call: Call) -> Call:
    """`call`, then the end of W&B, which comes with the end of the process on the command line."""

    def run(words: str) -> Answer:
        answer = call(words)
        assert wandb.run is None, "the run is finished, whatever the process does next"
        wandb.teardown()  # only now is the file complete, and the working folder forgotten
        return answer

    return run


def records(path: Path) -> Iterator[Record]:
    """What a .wandb file holds: a LevelDB log (blocks of 32 KB, pieces with checksum, length, kind) of messages."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, message = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if left >= 7:
            message += data[at + 7 : at + 7 + length]
        if left >= 7 and kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(message)
            message = b""
        at += 7 + length if left >= 7 else left


def offline_runs(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows."""
    rows = [record.history for record in records(path) if record.HasField("history")]
    return [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows]


def run_record(path: Path) -> Any:
    return next(record.run for record in records(path) if record.HasField("run"))


def test_metrics_arrive_under_their_names_with_the_round_as_step(track: Call) -> None:
    assert track(f"fit {TINY} --wandb offline").code == 0
    (path,) = offline_runs(Path("run"))
    logged = history(path)
    assert [row["trainer/global_step"] for row in logged] == [0, 1, 2, 3]
    for row, own in zip(logged, read_metrics(Path("run/metrics.csv")), strict=True):
        assert {name: row[name] for name in own if name != "round"} == pytest.approx(
            {name: value for name, value in own.items() if name != "round"}
        )
    steps = [record.metric.step_metric for record in records(path) if record.metric.glob_name == "*"]
    assert steps == ["trainer/global_step"], "W&B draws every metric over the round"


def test_wandb_config_holds_each_parameter(track: Call) -> None:
    assert track(f"fit {TINY} --wandb offline --model.lr 0.07").code == 0
    (path,) = offline_runs(Path("run"))
    run = run_record(path)
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert config["model"]["init_args"]["lr"] == 0.07
    assert config["model"]["class_path"] == "fedlit.FedBC"
    assert config["data"]["init_args"]["num_clients"] == 4
    assert config["trainer"]["clients_per_round"] == 2
    assert config["seed_everything"] == 0
    assert run.display_name == "run"


def test_a_resumed_run_continues_its_wandb_run(track: Call) -> None:
    assert track(f"fit {TINY} --wandb offline").code == 0
    time.sleep(1)  # W&B names an offline run's folder after the second it starts in
    assert track(f"fit {TINY} --wandb offline --resume --trainer.rounds 5").code == 0
    paths = offline_runs(Path("run"))
    assert len({run_record(path).run_id for path in paths}) == 1
    rounds = sorted(row["trainer/global_step"] for path in paths for row in history(path))
    assert rounds == [0, 1, 2, 3, 4, 5]


def test_a_run_that_starts_anew_is_another_wandb_run(track: Call) -> None:
    assert track(f"fit {TINY} --wandb offline").code == 0
    assert track(f"fit {TINY} --wandb offline --overwrite --resume").code == 0
    paths = offline_runs(Path("run"))
    assert len({run_record(path).run_id for path in paths}) == 2


def test_wandb_writes_into_the_run_folder_only(track: Call, workplace: Path) -> None:
    assert track(f"fit {TINY} --wandb offline").code == 0
    assert [path.name for path in workplace.iterdir()] == ["run"]


def test_without_credentials_wandb_is_off_and_one_line_says_how_to_turn_it_on(
    call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    assert call(f"fit {TINY}").code == 0
    (line,) = [message for message in caplog.messages if "W&B" in message]
    assert "wandb login" in line
    assert "--wandb offline" in line
    assert not [name for name in files(Path("run")) if "wandb" in name]


def test_disabled_wandb_says_nothing(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    assert call(f"fit {TINY} --wandb disabled").code == 0
    assert not [message for message in caplog.messages if "W&B" in message]
    assert not [name for name in files(Path("run")) if "wandb" in name]


def test_wandb_mode_of_the_environment_is_respected(track: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert track(f"fit {TINY}").code == 0
    assert len(offline_runs(Path("run"))) == 1


def test_online_without_credentials_is_refused_and_nobody_is_asked(call: Call) -> None:
    answer = call(f"fit {TINY} --wandb online")
    assert answer.code == 2
    assert "wandb login" in answer.err
    assert "--wandb offline" in answer.err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("asked", "environment", "mode"),
    [
        (None, {}, "disabled"),
        (None, {"WANDB_API_KEY": "k" * 40}, "online"),
        (None, {"WANDB_API_KEY": "k" * 40, "WANDB_MODE": "offline"}, "offline"),
        (None, {"WANDB_API_KEY": "k" * 40, "WANDB_MODE": "disabled"}, "disabled"),
        (None, {"WANDB_MODE": "online"}, "online"),
        ("offline", {"WANDB_MODE": "disabled"}, "offline"),
        ("disabled", {"WANDB_API_KEY": "k" * 40}, "disabled"),
    ],
)
def test_the_option_wins_over_the_environment_and_that_over_credentials(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None, environment: dict[str, str], mode: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wandb_mode(asked) == mode


def test_a_key_in_netrc_turns_wandb_on(workplace: Path, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password " + "k" * 40 + "\n")
    assert wandb_mode(None) == "online"


def test_a_damaged_netrc_is_no_credential(workplace: Path, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine api.wandb.ai nonsense words")
    assert wandb_mode(None) == "disabled"
