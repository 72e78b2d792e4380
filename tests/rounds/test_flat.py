"""One server in rounds: what it sends, and when it has its reports."""

from typing import Any

import pytest
import torch

from fedlit import Clock, Constant, FedAvg, Latency, ServerCallback
from fedlit.params import Params, clone
from tests.problems import largest_difference, run, tiny_net

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4}


class Received(ServerCallback):
    """What a cohort has received, when it is sent and after the server has stepped."""

    decides = False

    def __init__(self) -> None:
        self.sent: list[Params] = []
        self.later: list[Params] = []

    def on_cohort_start(self, trainer: Any, client: Any, cohort: Any) -> None:
        self.sent.append(clone(cohort.received))

    def on_server_step_end(self, trainer: Any, client: Any, cohort: Any) -> None:
        self.later.append(clone(cohort.received))


def test_the_received_model_does_not_move_with_the_servers_step() -> None:
    seen = Received()
    run(FedAvg(tiny_net(), **LOCAL), rounds=3, callbacks=[seen])
    assert largest_difference(seen.sent[0], seen.sent[1]) > 1e-3, "the server steps"
    pairs = zip(seen.sent, seen.later, strict=True)
    assert all(torch.equal(sent[name], later[name]) for sent, later in pairs for name in sent)


def test_every_round_begins_where_the_last_one_ended() -> None:
    even = Clock(Latency(arrival=Constant(2.0), compute=Constant(0.5), per="round"))
    rows = run(FedAvg(tiny_net(), **LOCAL), rounds=3, clock=even).loop.history.rows
    assert [row["time/sim_s"] for row in rows] == pytest.approx([0.0, 2.5, 5.0, 7.5])
