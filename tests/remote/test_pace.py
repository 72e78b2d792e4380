"""A cloud at a real pace: arrivals decide which servers step, and a replay has the same bits. Delays are chosen."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from fedlit import SGD, Client, Cloud, FedAvg, FedBC, FedBCD, Scaffold
from fedlit.client.messages import Message
from fedlit.clock import Clock, Latency
from fedlit.errors import ConfigError, DataError, ProcessError, ResumeError
from fedlit.experiments.conformance.federation import Federated, federation
from fedlit.experiments.conformance.problem import TINY, everything, largest_gap, new_trainer
from fedlit.remote.link import Answer
from fedlit.remote.loop import RemoteLoop
from fedlit.remote.node import Node
from fedlit.remote.nodes import Nodes, meet
from fedlit.remote.replay import ReplayLoop
from fedlit.remote.told_data import ToldData
from fedlit.results.events import Pace, read_events
from fedlit.results.records import read_metrics
from fedlit.trainer.trainer import FederatedTrainer
from tests.remote.delayed import DelayedLink
from tests.remote.test_failures import make
from tests.remote.test_replay import counted, users

ROUNDS = 7
ASYNC = Cloud(servers=3, first=2, iterations=2)
ALGORITHMS: dict[str, tuple[Callable[[], Client], Cloud]] = {
    "FedBCD": (partial(make, FedBCD), ASYNC),
    "FedBCD, rigorous": (partial(make, FedBCD), Cloud(servers=3, first=2, protocol="rigorous")),
    "SCAFFOLD": (partial(make, Scaffold), ASYNC),
    "FedBC": (partial(make, FedBC, dual_lr=1.0, start_from="local"), Cloud(servers=2)),
}


def options(cloud: Cloud) -> dict[str, Any]:
    """Of a run under this cloud."""
    timed = {"clock": Clock(Latency()), "sampler": "earliest"}
    return {"rounds": ROUNDS, "clients_per_round": 1, "cloud": cloud, "server_optimizer": SGD(lr=0.5), **timed}


def real(
    client: Callable[[], Client], cloud: Cloud, link: DelayedLink, folder: Path, pace: Pace = "real", **more: Any
) -> Federated:
    """A federation at a real pace, on this link."""
    told = meet(link, link.present())
    trainer = new_trainer(**(options(cloud) | more), run=str(folder))
    trainer.use_loop(partial(RemoteLoop, nodes=Nodes(link, list(told)), model={}, pace=pace))
    trainer.fit(client(), datamodule=ToldData(told))
    return Federated(trainer, link.nodes, link)  # type: ignore[arg-type]  # the link counts nothing here


def replay(client: Callable[[], Client], cloud: Cloud, events: Path, folder: Path, **more: Any) -> FederatedTrainer:
    trainer = new_trainer(**(options(cloud) | more), run=str(folder))
    trainer.use_loop(partial(ReplayLoop, events=read_events(events)))
    trainer.fit(client(), datamodule=TINY.data())
    return trainer


def nodes(client: Callable[[], Client], folder: Path) -> DelayedLink:
    return DelayedLink(federation(client, TINY, folder).nodes)


def steps(folder: Path) -> list[list[int]]:
    """The servers that stepped in each round."""
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()[2:]]
    return [[one["server"] for one in line["servers"]] for line in lines]


def measured(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without what a clock on the wall says; the time of a real pace is the run's own."""
    walls = ("time/train_s", "time/eval_s", "time/round_s")
    rows = read_metrics(folder / "metrics.csv")
    return [{name: repr(value) for name, value in row.items() if name not in walls} for row in rows]


def assert_same_run(found: Federated, again: FederatedTrainer, folder: Path, other: Path) -> None:
    assert largest_gap(counted(found), everything(again)) == 0
    assert measured(folder) == measured(other)
    assert users(folder) == users(other)
    tables = [parquet.read_table(one / "servers.parquet").to_pydict() for one in (folder, other)]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_arrivals_decide_who_steps_and_a_replay_has_the_same_bits(name: str, tmp_path: Path) -> None:
    client, cloud = ALGORITHMS[name]
    folder, other = tmp_path / "real", tmp_path / "again"
    found = real(client, cloud, nodes(client, tmp_path / "nodes"), folder)
    again = replay(client, cloud, folder / "events.jsonl", other)
    assert_same_run(found, again, folder, other)
    assert again.loop.federation.time > ROUNDS, "seconds of the link's clock"
    simulated = new_trainer(**options(cloud), engine="sequential")
    simulated.fit(client(), datamodule=TINY.data())
    is_sync = cloud.servers_per_step == cloud.servers
    gap = largest_gap(dict(simulated.loop.server.model), dict(again.loop.server.model))
    assert (gap == 0) is is_sync, "the simulated clock has another order; if all step together there is only one"


def test_a_server_does_not_wait_for_another_one(tmp_path: Path) -> None:
    """The clients of server 0 are the fast ones: it steps with whichever of the others comes first, or waits."""
    client = partial(make, FedAvg)
    link = nodes(client, tmp_path / "nodes")
    link.delay = lambda name, times: {"node-0": 1.0, "node-1": 1.0, "node-2": 5.0, "node-3": 1.6}[name]
    real(client, Cloud(servers=3, first=2), link, tmp_path / "real")
    # servers 0 and 2 step at about 1.6, 3.2 and 4.8; server 1 has its report at about 5, and is first then
    assert steps(tmp_path / "real") == [[0, 2], [0, 2], [0, 2], [0, 1], [0, 2], [0, 2], [0, 2]]
    times = [float(row["time/sim_s"]) for row in read_metrics(tmp_path / "real" / "metrics.csv")]
    assert times == sorted(times)
    asked = link.asked
    assert asked["node-2"] == 2, "it was asked once before the fourth event, and once after it"


def test_a_server_waits_for_all_its_nodes(tmp_path: Path) -> None:
    client = partial(make, FedAvg)
    link = nodes(client, tmp_path / "nodes")
    link.delay = lambda name, times: {"node-0": 1.0, "node-1": 3.0, "node-2": 2.0, "node-3": 1.5}[name]
    real(client, Cloud(servers=2), link, tmp_path / "real", clients_per_round=2)
    asked = [one.trained for one in read_events(tmp_path / "real" / "events.jsonl").rounds[1:]]
    assert [[one.clients for one in servers.values()] for servers in asked] == [[[0, 1], [2, 3]]] * ROUNDS
    first = read_events(tmp_path / "real" / "events.jsonl").of(1)
    assert [*first.trained[1].answered] == [3, 2], "in the order of their answers"
    assert first.time_s == pytest.approx(3.0, abs=0.1)
    assert first.finish_s[1] == pytest.approx(2.0, abs=0.1)


@dataclass
class Failing(DelayedLink):
    """A node that does not answer when it is asked to train for some times."""

    failing: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def answer_to(self, posting: int, name: str, message: Message) -> Answer:
        is_training = message["kind"] == "train" and "plan" not in message
        if is_training and self.asked.get(name, 0) in self.failing.get(name, ()):
            return Answer(posting, name, None, "did not answer within 60 s", self.now())
        return super().answer_to(posting, name, message)


@dataclass
class Forgetful(DelayedLink):
    """A node that knows no run, whatever it is told."""

    def ask_one(self, node: Node, message: Message) -> Message:
        knows = node.name != "node-2" or message["kind"] == "hello"
        return super().ask_one(node, message) if knows else {"unknown_run": True}


def test_a_node_that_never_knows_the_run_is_missing(tmp_path: Path) -> None:
    client = partial(make, FedAvg)
    link = Forgetful(federation(client, TINY, tmp_path / "nodes").nodes)
    real(client, ASYNC, link, tmp_path / "real")
    assert steps(tmp_path / "real") == [[0, 2]] * ROUNDS


def test_a_server_none_of_whose_nodes_answered_asks_again_while_the_others_go_on(tmp_path: Path) -> None:
    client, folder, other = partial(make, FedBCD), tmp_path / "real", tmp_path / "again"
    link = Failing(federation(client, TINY, tmp_path / "nodes").nodes, failing={"node-2": [2, 3]})
    found = real(client, ASYNC, link, folder)
    assert link.asked["node-2"] > 3
    assert_same_run(found, replay(client, ASYNC, folder / "events.jsonl", other), folder, other)


def test_too_few_servers_with_reports_end_the_run_and_it_goes_on_later(tmp_path: Path) -> None:
    client, folder, other = partial(make, FedBCD), tmp_path / "real", tmp_path / "again"
    gone = dict.fromkeys(("node-2", "node-3"), range(2, 100))
    link = Failing(federation(client, TINY, tmp_path / "nodes").nodes, failing=gone)
    with pytest.raises(ProcessError, match="No node has sent enough for 2 servers to step .*node-2 did not answer"):
        real(client, ASYNC, link, folder)
    done = read_events(folder / "events.jsonl").last
    assert 0 < done < ROUNDS
    link.failing = {}
    with pytest.raises(ResumeError, match="began with --pace real, and now it is clock. Resume it with --pace real"):
        real(client, ASYNC, link, folder, "clock", resume=True)
    found = real(client, ASYNC, link, folder, resume=True)
    assert read_events(folder / "events.jsonl").last == ROUNDS
    assert_same_run(found, replay(client, ASYNC, folder / "events.jsonl", other), folder, other)


def test_a_real_pace_is_refused_where_it_decides_nothing_or_reports_are_lost_on_purpose(tmp_path: Path) -> None:
    client = partial(make, FedAvg)
    link = nodes(client, tmp_path / "nodes")
    told = meet(link, link.present())

    def start(**more: Any) -> None:
        trainer = new_trainer(**(options(ASYNC) | more))
        trainer.use_loop(partial(RemoteLoop, nodes=Nodes(link, list(told)), model={}, pace="real"))
        trainer.fit(client(), datamodule=ToldData(told))

    with pytest.raises(ConfigError, match="there is no trainer.cloud. Leave --pace out"):
        start(cloud=None)
    with pytest.raises(ConfigError, match="has a deadline or dropout, which are simulated"):
        start(clock=Clock(Latency(), dropout=0.1))


def test_events_of_another_run_are_found_by_what_they_say(tmp_path: Path) -> None:
    client = partial(make, FedAvg)
    real(client, ASYNC, nodes(client, tmp_path / "nodes"), tmp_path / "real")
    with pytest.raises(DataError, match="do not fit this run: in round 1 the servers .* stepped"):
        replay(client, Cloud(servers=3), tmp_path / "real" / "events.jsonl", tmp_path / "again")
