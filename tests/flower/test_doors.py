"""Who gets through: requests to a SuperLink by where they come from, and answers by their size."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("flwr") is None, reason='Flower is not installed: pip install "fedlit[flower]"'
)
HERE = ("10.0.0.1", 9092)
"""Address of the server."""


def status_of(path: str, caller: tuple[str, int] | None) -> int:
    """What a request is answered with; 200 if it got through."""
    from fedlit.flower.guarded_superlink import NodesAlone

    answers: list[int] = []

    async def let_through(scope: object, receive: object, send: object) -> None:
        answers.append(200)

    async def send(message: dict[str, object]) -> None:
        answers.extend([int(str(message["status"]))] if "status" in message else [])

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [],
        "client": caller,
        "server": HERE,
    }
    asyncio.run(NodesAlone(let_through)(scope, receive, send))
    return answers[0]


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/V1/FLEET/", ""],
)
def test_what_is_not_for_nodes_is_refused_unless_the_caller_is_on_the_same_machine(path: str) -> None:
    for stranger in (("10.0.0.9", 40000), ("::ffff:10.0.0.9", 40000), ("fe80::1", 40000), None):
        assert status_of(path, stranger) == 403
    for near in (("127.0.0.1", 40000), ("::1", 40000), ("::ffff:127.0.0.1", 40000), HERE):
        assert status_of(path, near) == 200


def test_nodes_get_through_from_everywhere() -> None:
    assert status_of("/v1/fleet/pull-messages", ("10.0.0.9", 40000)) == 200
    assert status_of("/v1/fleet", ("10.0.0.9", 40000)) == 403, "nobody has asked for that"


def test_an_answer_that_is_much_larger_than_the_message_is_not_taken() -> None:
    from fedlit.flower.server_app import oversized

    assert oversized(bytes(100), 10) is None
    assert oversized(bytes(2**26 + 81), 10) == "sent 67,108,945 bytes, and at most 67,108,944 are taken"


# ---- the relay of a node ---------------------------------------------------------------------------------------------


def answered(plain: dict[str, str] | None, tmp_path: Path) -> Any:
    """The reply of a relay without a worker to a message with these records; of another app if they are None."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from fedlit.flower.node_relay import Relay
    from fedlit.flower.records import records_of

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3  # of who makes a message
    records = RecordDict({"theirs": ConfigRecord({"x": 1})}) if plain is None else records_of(plain)
    relay = Relay("127.0.0.1:1", b"secret", "clinic-a", str(tmp_path / "none.sock"))
    return relay.replied(Message(records, 1, "query"), "flwr-clientapp", Event(), 0.0)


def test_a_relay_tells_its_name_and_that_it_has_no_worker(tmp_path: Path) -> None:
    from fedlit.flower.records import plain_of

    assert plain_of(answered({"kind": "who"}, tmp_path).content) == {"name": "clinic-a"}
    failed = plain_of(answered({"kind": "message"}, tmp_path).content)["failed"]
    assert failed.startswith("has no worker that answers (FileNotFoundError")


def test_a_message_of_another_app_is_answered_with_an_error(tmp_path: Path) -> None:
    reply = answered(None, tmp_path)
    assert reply.has_error()
    assert reply.error.reason == "This node runs what its owner has installed, and no app that was submitted."
