"""`fedlit workspace`: printed, written, refused, and sent to a server that stands in for W&B's."""

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Call

Refusal = Callable[..., str]


def without_ids(text: str) -> str:
    """Panels get an id by chance."""
    return re.sub(r'"__id__": "\w+"', '"__id__": ""', text)


def test_the_specification_is_printed_and_written_without_an_account(call: Call) -> None:
    printed = call("workspace --print")
    assert printed.code == 0
    assert call("workspace --json view.json").code == 0
    assert without_ids(printed.out) == without_ids(Path("view.json").read_text())
    assert "section" in json.loads(printed.out)


def test_a_task_has_panels_of_its_own_measures(call: Call, refusal: Refusal) -> None:
    printed = call("workspace --print --task regression").out
    assert "users/mse_max" in printed
    assert "acc" not in re.findall(r"users/(\w+?)_", printed)
    assert "Did you mean 'regression'" in refusal("workspace --print --task regresion")


def test_without_an_entity_it_is_refused(refusal: Refusal) -> None:
    assert "--entity NAME" in refusal("workspace")


def test_without_credentials_it_is_refused_and_nobody_is_asked(refusal: Refusal) -> None:
    assert "wandb login" in refusal("workspace --entity team")


def test_without_the_package_the_error_says_how_to_install_it(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    assert "pip install 'fedlit[workspace]'" in refusal("workspace --print")


class Server(BaseHTTPRequestHandler):
    """Knows a user, and takes views; `accepts` turns it into one that refuses them."""

    views: list[dict[str, Any]] = []
    accepts = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body) if body.startswith(b"{") else {"query": ""}  # W&B's own figures come packed
        self.answer(asked["query"], asked.get("variables") or {})

    def answer(self, query: str, variables: dict[str, Any]) -> None:
        content: dict[str, Any] = {"data": {"viewer": {"id": "1", "username": "me", "entity": "me", "flags": "{}"}}}
        if "upsertView" in query and self.accepts:
            self.views.append(variables)
            content = {"data": {"upsertView": {"view": {"id": "7", "name": "nw-abc-v"}, "inserted": True}}}
        elif "upsertView" in query:
            content = {"errors": [{"message": "permission denied"}]}
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        """Silence."""


@pytest.fixture
def server(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Server]]:
    """A local server that W&B's client takes for its own, and credentials for it."""
    kind = type("OwnServer", (Server,), {"views": []})
    running = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{running.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    yield kind
    running.shutdown()
    running.server_close()


def test_the_workspace_is_sent_as_it_is_printed_and_its_address_shown(call: Call, server: type[Server]) -> None:
    answer = call("workspace --entity team --project study --name 'Who loses'")
    assert answer.code == 0, answer.err
    assert re.search(r"http://127.0.0.1:\d+/team/study\?nw=abc", answer.out)
    (view,) = server.views
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("team", "study", "Who loses")
    printed = json.loads(call("workspace --print").out)
    assert without_ids(json.dumps(json.loads(view["spec"]))) == without_ids(json.dumps(printed))


def test_a_server_that_refuses_the_workspace_is_told_in_one_paragraph(refusal: Refusal, server: type[Server]) -> None:
    server.accepts = False
    assert "W&B did not take the workspace for team/study" in refusal("workspace --entity team --project study")
