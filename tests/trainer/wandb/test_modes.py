"""When W&B is on, and in which mode; nothing here uses the network."""

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedlit.trainer.wandb.modes import checked_mode, reachable, wandb_mode
from tests.conftest import TINY, Call, files
from tests.trainer.wandb.offline import offline_runs


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


# credentials, but no network


@pytest.fixture
def nobody() -> str:
    """An address of this machine at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_without_a_network_the_run_is_offline_and_one_line_says_how_to_send_it(
    call: Call, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nobody: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", nobody)
    began = time.monotonic()
    assert call(f"fit {TINY}").code == 0
    assert time.monotonic() - began < 30, "W&B itself would wait two minutes"
    (line,) = [message for message in caplog.messages if "W&B" in message]
    assert nobody in line
    assert "wandb sync run/wandb/offline-run-*" in line
    assert len(offline_runs(Path("run"))) == 1


def test_whoever_asks_for_online_gets_it_without_a_question(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, nobody: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", nobody)
    assert checked_mode("online", Path("run")) == "online"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert checked_mode(None, Path("run")) == "online"


def test_a_server_that_refuses_is_reachable_and_one_that_is_silent_is_not(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert reachable(f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("fedlit.trainer.wandb.modes._PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not reachable(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_key_for_ones_own_server_is_found_in_netrc(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine wandb.example.org\n  login user\n  password " + "k" * 40 + "\n")
    assert wandb_mode(None) == "disabled"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert wandb_mode(None) == "online"
