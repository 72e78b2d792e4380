"""When W&B is on, and in which mode; nothing here uses the network."""

from pathlib import Path

import pytest

from fedlit.tracking.modes import wandb_mode
from tests.conftest import TINY, Call, files
from tests.tracking.offline import offline_runs


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


def test_wandb_mode_of_the_environment_is_respected(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert call(f"fit {TINY}").code == 0
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
