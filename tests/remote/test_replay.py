"""events.jsonl, and a simulation that repeats from it what happened among nodes. Nodes are in this process."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from torch import Tensor

from fedlit import Client, FedAvg, FedBC, FedBCD, Scaffold
from fedlit.client.messages import Message
from fedlit.errors import DataError, ProcessError, ResumeError
from fedlit.experiments.conformance.federation import Federated, federation
from fedlit.experiments.conformance.problem import TINY, everything, largest_gap, new_trainer
from fedlit.remote.gathering import TRAINED_IN, trained_in
from fedlit.remote.in_process import InProcessLink
from fedlit.remote.link import Answers
from fedlit.remote.loop import RemoteLoop
from fedlit.remote.nodes import Nodes, meet
from fedlit.remote.replay import ReplayLoop
from fedlit.remote.told_data import ToldData
from fedlit.results.events import Events, RoundEvents, event_line, read_events
from fedlit.results.records import read_metrics
from fedlit.trainer.trainer import FederatedTrainer
from tests.remote.test_failures import make, play

ALGORITHMS: dict[str, Callable[[], Client]] = {
    "FedBC": partial(make, FedBC, dual_lr=1.0, start_from="local"),
    "SCAFFOLD": partial(make, Scaffold),
    "FedBCD": partial(make, FedBCD),
    "FedPer": partial(make, FedAvg, keep_local="linear.bias"),
}
OPTIONS: dict[str, Any] = {"clients_per_round": 3, "sampler": "uniform"}


def accidents(message: Message, answer: Message) -> Message | None:
    """What happens to node-1: it is silent in rounds 1 and 2, answers nonsense in 3, and does not measure after 2."""
    kind, number = message["kind"], message.get("run_round", message.get("number"))
    if (kind, number) in (("train", 1), ("train", 2), ("evaluate", 2)):
        return None
    return {"model": 3} if (kind, number) == ("train", 3) else answer


def replayed(client: Callable[[], Client], events: Events, folder: Path, **options: Any) -> FederatedTrainer:
    given: dict[str, Any] = {"rounds": 4, "run": str(folder)} | OPTIONS | options
    trainer = new_trainer(**given)
    trainer.use_loop(partial(ReplayLoop, events=events))
    trainer.fit(client(), datamodule=TINY.data())
    return trainer


def counted(real: Federated) -> dict[str, Tensor]:
    """All that a federation came to; of each node the rows that the server counts, which may not be its newest."""
    states, held = real.trainer.loop.states, everything(real.trainer)
    rows = {k: node.run.rows.read(trained_in(states, k)) for k, node in enumerate(real.nodes.values()) if node.run}
    at_nodes = {f"{name} of {k}": value[0] for k, own in rows.items() for name, value in own.items()}
    return at_nodes | {name: value for name, value in held.items() if not name.startswith(TRAINED_IN)}


def measured(folder: Path) -> list[dict[str, str]]:
    rows = read_metrics(folder / "metrics.csv")
    return [{name: repr(value) for name, value in row.items() if not name.startswith("time/")} for row in rows]


def users(folder: Path) -> str:
    return repr(parquet.read_table(folder / "clients.parquet").to_pydict())


class Gone(InProcessLink):
    """Nobody measures the model of one round."""

    number, run = 3, ""

    def ask(self, messages: Mapping[str, Message]) -> Answers:
        self.run = next(iter(messages.values())).get("run", "")
        is_asked = any(one["kind"] == "evaluate" and one["number"] == self.number for one in messages.values())
        return Answers({}, dict.fromkeys(messages, "is gone")) if is_asked else super().ask(messages)


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., tuple[Federated, Path]]:
    """A federation with accidents, and the folder of its run."""

    def run(client: Callable[[], Client], **options: Any) -> tuple[Federated, Path]:
        folder = tmp_path / "real"
        return play(client, tmp_path / "nodes", accidents, **({"run": str(folder)} | OPTIONS | options)), folder

    return run


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_replay_has_the_bits_of_the_federation(
    name: str, recorded: Callable[..., tuple[Federated, Path]], tmp_path: Path
) -> None:
    client = ALGORITHMS[name]
    real, folder = recorded(client)
    events = read_events(folder / "events.jsonl")
    assert any(one.missing == {1} for one in events.rounds), "something happened"
    assert 1 in events.of(2).measured["evaluate"].missing
    again = replayed(client, events, tmp_path / "again")
    assert largest_gap(counted(real), everything(again)) == 0
    assert measured(tmp_path / "again") == measured(folder)
    assert users(tmp_path / "again") == users(folder)
    untouched = new_trainer(rounds=4, **OPTIONS)
    untouched.fit(client(), datamodule=TINY.data())
    assert largest_gap(dict(untouched.loop.server.model), dict(again.loop.server.model)) > 1e-6


def test_a_line_says_who_was_asked_who_answered_and_why_others_did_not(
    recorded: Callable[..., tuple[Federated, Path]],
) -> None:
    _, folder = recorded(partial(make, FedAvg), clients_per_round=4)
    first, *rounds = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert first["clients"] == {"node-0": [7, 0, 2, 0], "node-1": [10, 1, 3, 0], "node-2": [14, 1, 4, 0]} | {
        "node-3": [18, 2, 6, 0]
    }
    assert [one["round"] for one in rounds] == [0, 1, 2, 3, 4]
    assert rounds[0]["servers"] == []
    [server] = rounds[2]["servers"]
    assert [*server["answered"]] == ["0", "2", "3"]
    assert server["missing"] == {"1": "did not answer within 60 s"}
    assert rounds[2]["evaluate"]["missing"] == {"1": "did not answer within 60 s"}
    assert rounds[3]["servers"][0]["missing"]["1"].startswith("sent an answer that is not used: ")
    assert [*rounds[4]["servers"][0]["answered"]] == ["0", "1", "2", "3"]


def test_a_round_that_is_undone_leaves_no_line_and_the_resumed_run_goes_on_with_the_file(tmp_path: Path) -> None:
    """Nobody measures the model of round 3: it had trained, and is undone."""
    client, folder = partial(make, FedAvg), tmp_path / "run"
    link = Gone(federation(client, TINY, tmp_path / "nodes").nodes)
    told = meet(link, link.present())

    def start(resume: bool) -> None:
        trainer = new_trainer(rounds=4, run=str(folder), resume=resume, **OPTIONS)
        trainer.use_loop(partial(RemoteLoop, nodes=Nodes(link, list(told)), model={}))
        trainer.fit(client(), datamodule=ToldData(told))

    with pytest.raises(ProcessError, match="No node has sent its scores after round 3"):
        start(resume=False)
    before = (folder / "events.jsonl").read_text()
    assert [one.round for one in read_events(folder / "events.jsonl").rounds] == [0, 1, 2]
    with (folder / "events.jsonl").open("a") as file:  # as a kill leaves it, after a line and before a checkpoint
        file.write(event_line(RoundEvents(3, 99.0).plain(), link.run) + '{"round": 4, "ti')
    link.number = 0
    start(resume=True)
    assert (folder / "events.jsonl").read_text().startswith(before)
    assert read_events(folder / "events.jsonl").last == 4


def test_a_simulation_and_a_replay_cannot_continue_each_other(
    recorded: Callable[..., tuple[Federated, Path]], tmp_path: Path
) -> None:
    client = partial(make, FedAvg)
    _, folder = recorded(client)
    events = read_events(folder / "events.jsonl")
    replayed(client, events, tmp_path / "again", rounds=2)
    with pytest.raises(ResumeError, match="repeats a federation from its events .* Resume it with the command"):
        new_trainer(rounds=4, run=tmp_path / "again", resume=True, **OPTIONS).fit(client(), datamodule=TINY.data())
    other = replace(events, recorded=replace(events.recorded, run="another"))
    with pytest.raises(ResumeError, match="begun with other events"):
        replayed(client, other, tmp_path / "again", resume=True)
    again = replayed(client, events, tmp_path / "again", resume=True)
    whole = replayed(client, events, tmp_path / "whole")
    assert largest_gap(dict(again.loop.server.model), dict(whole.loop.server.model)) == 0


# ---- bad input -------------------------------------------------------------------------------------------------------


def changed(line: int, old: str, new: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [text.replace(old, new) if k == line else text for k, text in enumerate(lines)]


def two_lines(head: dict[str, Any]) -> list[str]:
    return [event_line({**head, "run": "a"}).strip(), event_line(RoundEvents(0).plain(), "a").strip()]


DAMAGED: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "a number": (changed(2, '"missing": {"1"', '"missing": {"2"'), "damaged in line 3"),
    "cut": (lambda lines: [*lines[:-1], lines[-1][:40]], "damaged in line 6"),
    "a line is gone": (lambda lines: [*lines[:2], *lines[3:]], "do not have all rounds in their order"),
    "a line is there twice": (lambda lines: [*lines[:3], *lines[2:]], "do not have all rounds in their order"),
    "no first line": (lambda lines: lines[1:], "damaged in line 1"),
    "a line of another run": (
        lambda lines: [*lines[:-1], event_line(RoundEvents(4).plain(), "other").strip()],
        "damaged in line 6",
    ),
    "another form": (lambda lines: [event_line({"events": 1}).strip(), lines[0]], "damaged in line 2"),
    "another version": (lambda lines: two_lines({"events": 9}), "from another version"),
    "no fields": (lambda lines: two_lines({"events": 1}), "another form than fedlit writes"),
    "nothing": (lambda lines: [], "end before the first round"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_with_its_line(name: str, recorded: Callable[..., tuple[Federated, Path]]) -> None:
    _, folder = recorded(partial(make, FedAvg), clients_per_round=4)
    path, (damage, why) = folder / "events.jsonl", DAMAGED[name]
    path.write_text("\n".join(damage(path.read_text().splitlines())))
    with pytest.raises(DataError, match=why):
        read_events(path)


def test_other_clients_are_refused(recorded: Callable[..., tuple[Federated, Path]], tmp_path: Path) -> None:
    client = partial(make, FedAvg)
    _, folder = recorded(client)
    events = read_events(folder / "events.jsonl")
    sizes = {**events.recorded.clients, "node-2": [14, 1, 3, 0]}
    with pytest.raises(DataError, match="node-2 had other samples than client 2 has here: train 14, val 1, test 3"):
        replayed(client, replace(events, recorded=replace(events.recorded, clients=sizes)), tmp_path / "sizes")
    fewer = replace(events.recorded, clients={"node-0": [7, 0, 2, 0]})
    with pytest.raises(DataError, match="of a federation of 1 clients, but these data have 4"):
        replayed(client, replace(events, recorded=fewer), tmp_path / "fewer")
    with pytest.raises(DataError, match="in round 1 they have the clients .* are drawn. Give the config"):
        replayed(client, events, tmp_path / "seed", seed=3)
