"""A node alone: what it tells, what it refuses of a server, and its files."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlit import FedBC
from fedlit.client.messages import Message, pack, unpack
from fedlit.errors import MessageError
from fedlit.experiments.conformance.federation import federated
from fedlit.experiments.conformance.problem import TINY
from fedlit.remote.node import Node
from fedlit.remote.node_rows import NodeRows
from tests.trainer.test_resume import assert_same_bits

CLIENT = partial(FedBC, TINY.net(), dual_lr=1.0, **TINY.local)


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Node, Message]:
    """A node after a run, and a request that it can answer."""
    run = federated(lambda: FedBC(TINY.net(), dual_lr=1.0, **TINY.local), TINY, tmp_path, clients_per_round=4)
    node, loop = run.nodes["node-1"], run.trainer.loop
    [cohort] = loop.parts.gatherer.cohorts([loop.server])
    from fedlit.remote.gathering import training_request

    request = training_request(loop.client, cohort, 1, loop.states, loop.server.initial)
    return node, {**request, "kind": "train", "run": node.run.plan.run if node.run else ""}


def changed(message: Message, part: str, **values: Any) -> Message:
    stacked = message["stacked"]
    return message | {"stacked": stacked | {part: stacked[part] | values}}


def test_it_answers_a_request_that_fits(asked: tuple[Node, Message]) -> None:
    node, request = asked
    answer = node.answer(request)
    assert set(answer["model"]) == {"linear.weight", "linear.bias"}
    assert answer["state"] == {}, "λ_i and γ_i are the server's"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: changed(m, "received", **{"linear.weight": torch.zeros(1, 4, 5)}), "'linear.weight' has shape"),
        (lambda m: changed(m, "received", backdoor=torch.zeros(1, 2)), "'backdoor' is unknown"),
        (lambda m: changed(m, "state", dual=torch.zeros(1, dtype=torch.float32)), "'dual' has shape () and type"),
        (lambda m: changed(m, "state", tolerance=torch.zeros(1)), "'tolerance' is unknown"),
        (lambda m: m | {"clients": [3]}, "was asked to train the clients [3], but it is client 1"),
        (lambda m: m | {"kind": "run"}, "of the kind 'run'"),
        (lambda m: m | {"plan": {"run": "../../etc"}}, "from another version of fedlit"),
    ],
)
def test_it_refuses_what_does_not_fit(asked: tuple[Node, Message], change: Any, why: str) -> None:
    node, request = asked
    kept = node.run.rows.rounds if node.run else []
    assert why in node.answer(change(request))["failed"]
    assert node.run is not None
    assert node.run.rows.rounds == kept, "nothing was trained"


def test_a_name_of_a_run_cannot_lead_out_of_the_folder(asked: tuple[Node, Message]) -> None:
    node, request = asked
    assert node.run is not None
    plan = node.run.plan.message() | {"run": "../elsewhere"}
    assert "got a run with the name" in node.answer(request | {"plan": plan})["failed"]


def test_it_asks_for_a_run_that_it_does_not_know(asked: tuple[Node, Message]) -> None:
    node, request = asked
    assert node.answer(request | {"run": "another"}) == {"unknown_run": True}


# ---- files -----------------------------------------------------------------------------------------------------------


def rows(value: float) -> dict[str, torch.Tensor]:
    return {"dual": torch.tensor([value]), "local.w": torch.full((1, 2), value, dtype=torch.float64)}


def test_rows_are_read_back_and_old_ones_go(tmp_path: Path) -> None:
    store = NodeRows(tmp_path / "run")
    assert store.read(None) == {}
    for round, base in ((1, None), (4, 1), (5, 4), (9, 5)):
        store.write(round, rows(round), base)
    assert store.rounds == [4, 5, 9]
    assert torch.equal(store.read(9)["local.w"], rows(9)["local.w"])


def test_rows_of_a_round_that_was_undone_are_replaced(tmp_path: Path) -> None:
    store = NodeRows(tmp_path)
    store.write(1, rows(1), None)
    store.write(2, rows(2), 1)
    store.write(3, rows(3), 1)  # round 2 was undone, and so was the choice of this client for it
    assert store.rounds == [1, 3]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    store = NodeRows(tmp_path)
    store.write(1, rows(1), None)
    content = bytearray(store.path(1).read_bytes())
    content[-20] ^= 1
    store.path(1).write_bytes(content)
    with pytest.raises(MessageError, match="has damaged rows"):
        store.read(1)


# ---- messages --------------------------------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent() -> None:
    same = torch.arange(4.0).expand(3, 4)
    message = {
        "numbers": [1, 2.5, float("inf"), True, None, "λ"],
        "state": {0: {"betas": (0.9, 0.99)}, "empty": {}},
        "tensors": [torch.randn(2, 3, dtype=torch.float64), torch.tensor(7), torch.zeros(0, 2), torch.tensor([True])],
        "one": torch.tensor(2.0).expand(1),
        "same": same,
    }
    got = unpack(pack(message))
    assert_same_bits(got, message)
    assert torch.equal(unpack(pack({"narrow": torch.ones(3).bfloat16() / 3}))["narrow"], torch.ones(3).bfloat16() / 3)
    assert got["same"].stride(0) == 0, "one row is sent where all are the same"
    assert len(pack({"same": same})) < len(pack({"same": same.contiguous()}))


@pytest.mark.parametrize("cut", [0, 8, 15, 16, 40, -5, -17])
def test_a_message_that_is_cut_is_refused(cut: int) -> None:
    packed = pack({"a": torch.arange(9.0), "b": [1, "two", None], "c": torch.ones(3).expand(4, 3)})
    with pytest.raises(MessageError, match="cannot be read"):
        unpack(packed[:cut].clone())


@pytest.mark.parametrize(
    ("known", "other"),
    [(b"float32", b"storage"), (b"[9]", b"[999]"), (b"[9]", b"[-9]"), (b'"items"', b'"itams"'), (b"null", b"nul1")],
)
def test_a_message_with_another_head_is_refused(known: bytes, other: bytes) -> None:
    content = pack({"a": torch.arange(9.0)}).numpy().tobytes()
    length = int.from_bytes(content[:8], "little")
    head = content[16 : 16 + length].replace(known, other)
    changed = len(head).to_bytes(8, "little") + bytes(8) + head.ljust(-(-len(head) // 16) * 16, b"\0")
    rest = content[16 + -(-length // 16) * 16 :]
    with pytest.raises(MessageError, match="cannot be read"):
        unpack(torch.frombuffer(bytearray(changed + rest), dtype=torch.uint8))
