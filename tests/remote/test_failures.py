"""What a federation does about nodes that are lost, come back, forget or answer nonsense. Nodes are in this process."""

import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextlib import nullcontext as does_not_raise
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer

from fedlit import Centralized, Client, FedAvg, FedBC, FedBCD, Scaffold, ServerCallback
from fedlit.client.cohort import WeighedCohort
from fedlit.client.messages import Message
from fedlit.errors import ConfigError, DataError, ProcessError, ResumeError
from fedlit.experiments.conformance.federation import Federated, federated, federation
from fedlit.experiments.conformance.problem import TINY, largest_gap, new_trainer
from fedlit.remote.in_process import InProcessLink
from fedlit.remote.link import Answers
from fedlit.remote.loop import RemoteLoop
from fedlit.remote.node import Node
from fedlit.remote.nodes import Nodes, meet
from fedlit.remote.told_data import ToldData

Change = Callable[[Message, Message], Message | None]


class BadLink(InProcessLink):
    """A link on which something happens: `change` gets a node's message and its answer, None stands for no answer."""

    def __init__(self, nodes: dict[str, Node], change: Change, name: str = "node-1") -> None:
        super().__init__(nodes)
        self.change, self.name = change, name

    def ask(self, messages: Mapping[str, Message]) -> Answers:
        answers = super().ask(messages)
        if self.name in answers.came:
            changed = self.change(messages[self.name], answers.came.pop(self.name))
            if changed is None:
                answers.missing[self.name] = "did not answer within 60 s"
            else:
                answers.came[self.name] = changed
        return answers


def make(kind: type[Client], **options: Any) -> Client:
    return kind(TINY.net(), **TINY.local, **options)


def play(client: Callable[[], Client], folder: Path, change: Change, **options: Any) -> Federated:
    """The tiny federation on a bad link, all of whose clients train in every round."""
    link = federation(client, TINY, folder)
    trainer = new_trainer(**({"rounds": 4, "clients_per_round": 4} | options))
    bad = BadLink(link.nodes, change)
    told = meet(link, link.present())
    trainer.use_loop(partial(RemoteLoop, nodes=Nodes(bad, list(told)), model={}))
    trainer.fit(client(), datamodule=ToldData(told))
    return Federated(trainer, link.nodes, link)


def in_round(number: int, answer: Callable[[Message], Message | None]) -> Change:
    """Something happens to the answer of one round's training."""

    def change(message: Message, given: Message) -> Message | None:
        return answer(given) if message["kind"] == "train" and message.get("run_round") == number else given

    return change


class Reporting(ServerCallback):
    """Notes who was in each round's cohort."""

    def __init__(self) -> None:
        self.cohorts: list[list[int]] = []

    def on_server_step_end(self, trainer: Trainer, client: Client, cohort: WeighedCohort) -> None:
        self.cohorts.append(cohort.clients)


@pytest.mark.parametrize(
    "client",
    [partial(make, FedBC, dual_lr=1.0, start_from="local"), partial(make, Scaffold), partial(make, FedBCD)],
    ids=["FedBC", "SCAFFOLD", "FedBCD"],
)
def test_a_node_that_is_silent_for_a_round_goes_on_with_the_rows_that_count(
    client: Callable[[], Client], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It had trained, and its answer was lost: the next message names the rows of the round before."""
    caplog.set_level(logging.WARNING, "fedlit")
    watching = Reporting()
    silent = play(client, tmp_path / "silent", in_round(2, lambda answer: None), callbacks=[watching])
    assert watching.cohorts == [[0, 1, 2, 3], [0, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert "node-1 did not answer within 60 s" in caplog.text
    killed = play(client, tmp_path / "killed", in_round(2, lambda answer: {"failed": "was killed"}))
    assert largest_gap(silent.everything(), killed.everything()) == 0
    assert [run.rows.rounds for node in silent.nodes.values() if (run := node.run)][1] == [1, 3, 4]


def without_bias(answer: Message) -> Message:
    return answer | {"model": {"linear.weight": answer["model"]["linear.weight"]}}


def of_another_shape(answer: Message) -> Message:
    return answer | {"model": {name: value[:, :1] for name, value in answer["model"].items()}}


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (without_bias, "in its model, 'linear.bias' is missing"),
        (of_another_shape, "in its model, 'linear.weight' has shape"),
        (lambda answer: {"model": 3}, "'steps_taken' is missing"),
        (lambda answer: answer | {"model": 3}, "'model' is something else"),
        (lambda answer: answer | {"model": dict.fromkeys(answer["model"], 3)}, "is not a tensor"),
        (lambda answer: answer | {"losses": torch.zeros(2)}, "in its loss, 'losses' has shape"),
        (lambda answer: answer | {"steps_taken": torch.zeros(1)}, "in its steps, 'steps' has shape"),
        (lambda answer: answer | {"state": {"dual": torch.zeros(1)}}, "in its states, 'dual' is unknown"),
        (lambda answer: answer | {"measured": {"risk_trained": torch.zeros(1)}}, "'risk_trained' is unknown"),
    ],
)
def test_an_answer_of_another_form_is_not_used(
    damage: Callable[[Message], Message], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = partial(make, FedAvg)
    found = play(client, tmp_path / "bad", in_round(2, damage))
    silent = play(client, tmp_path / "silent", in_round(2, lambda answer: None))
    assert "node-1 sent an answer that is not used: " in caplog.text
    assert why in caplog.text
    gap = largest_gap(dict(found.trainer.loop.server.model), dict(silent.trainer.loop.server.model))
    assert gap == 0


def test_a_round_in_which_nobody_answers_is_undone_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    client, folder = partial(make, Scaffold), tmp_path / "run"
    whole = federated(client, TINY, tmp_path / "whole").everything()
    nodes = federation(client, TINY, tmp_path / "nodes").nodes
    told = meet(InProcessLink(nodes), list(nodes))

    def start(link: InProcessLink, resume: bool) -> Federated:
        trainer = new_trainer(rounds=4, clients_per_round=3, run=str(folder), resume=resume)
        trainer.use_loop(partial(RemoteLoop, nodes=Nodes(link, list(told)), model={}))
        trainer.fit(client(), datamodule=ToldData(told))
        return Federated(trainer, nodes, federation(client, TINY, tmp_path / "none"))

    class Gone(InProcessLink):
        def ask(self, messages: Mapping[str, Message]) -> Answers:
            message = next(iter(messages.values()))
            if message["kind"] == "evaluate" and message["number"] == 3:  # all have trained and kept their rows
                return Answers({}, dict.fromkeys(messages, "is gone"))
            return super().ask(messages)

    with pytest.raises(ProcessError, match="No node has sent its scores after round 3"):
        start(Gone(nodes), resume=False)
    for node in nodes.values():
        node.run = None  # every node is started again
    resumed = start(InProcessLink(nodes), resume=True)
    assert largest_gap(whole, resumed.everything()) == 0


def test_a_node_that_lost_its_rows_is_left_out_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def lose(message: Message, answer: Message) -> Message:
        if message["kind"] == "train" and message["run_round"] == 2:
            shutil.rmtree(tmp_path / "1")
            (tmp_path / "1" / message["run"]).mkdir(parents=True)
        return answer

    play(partial(make, FedBC, dual_lr=1.0, start_from="local"), tmp_path, lose)
    assert "node-1 has no rows of round 2" in caplog.text


def test_other_nodes_cannot_continue_a_run(tmp_path: Path) -> None:
    client, checkpoint = partial(make, FedAvg), tmp_path / "run.ckpt"
    federated(client, TINY, tmp_path / "nodes").trainer.save_checkpoint(checkpoint)
    link = federation(client, TINY, tmp_path / "others")
    for node in link.nodes.values():
        node.name = node.name.replace("node", "clinic")
    renamed = InProcessLink({node.name: node for node in link.nodes.values()})
    told = meet(renamed, renamed.present())
    trainer = new_trainer(rounds=6, clients_per_round=3)
    trainer.use_loop(partial(RemoteLoop, nodes=Nodes(renamed, list(told)), model={}))
    with pytest.raises(ResumeError, match="began with the nodes node-0"):
        trainer.fit(client(), datamodule=ToldData(told), ckpt_path=checkpoint)
    assert trainer.loop.rounds_done == 0, "nothing was restored that an error could save"


def test_what_cannot_run_apart_is_refused_with_the_part_and_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Centralized, which trains one client on everybody's data"):
        federated(partial(make, Centralized), TINY, tmp_path / "pooled", clients_per_round=1)
    with pytest.raises(ConfigError, match="trainer.extra_metrics asks for global/train_loss"):
        federated(partial(make, FedAvg), TINY, tmp_path / "extra", extra_metrics=["global/train_loss"])
    with pytest.raises(ConfigError, match="several values, .* nodes fine-tune in one way"):
        federated(partial(make, FedAvg), TINY, tmp_path / "tuned", finetune_lr=[0.1, 0.2])


@pytest.mark.parametrize(("lost", "outcome"), [(1, "met"), (2, "refused")])
def test_a_node_whose_first_answer_is_lost_is_asked_once_more(tmp_path: Path, lost: int, outcome: str) -> None:
    asked: list[list[str]] = []

    class Losing(InProcessLink):
        def ask(self, messages: Mapping[str, Message]) -> Answers:
            asked.append(list(messages))
            answers = super().ask(messages)
            if len(asked) <= lost:
                del answers.came["node-1"]
                answers.missing["node-1"] = "did not answer"
            return answers

    link = Losing(federation(partial(make, FedAvg), TINY, tmp_path).nodes)
    expected: dict[str, AbstractContextManager[Any]] = {
        "met": does_not_raise(),
        "refused": pytest.raises(ProcessError, match="node-1 did not answer"),
    }
    with expected[outcome]:
        assert list(meet(link, link.present())) == sorted(link.present())
    assert asked[1:] == [["node-1"]]


def test_nodes_with_samples_of_another_form_are_refused(tmp_path: Path) -> None:
    link = federation(partial(make, FedAvg), TINY, tmp_path)
    told = meet(link, link.present())
    told["node-2"]["form"]["x"] = torch.zeros(1, 7)
    with pytest.raises(DataError, match="node-2 has samples of another form than node-0: x float32"):
        ToldData(told)


def test_two_nodes_with_one_name_are_refused(tmp_path: Path) -> None:
    link = federation(partial(make, FedAvg), TINY, tmp_path)
    with pytest.raises(ConfigError, match="Two nodes have the name 'node-1'"):
        meet(link, ["node-0", "node-1", "node-1"])


def test_a_node_with_the_key_of_another_is_refused(tmp_path: Path) -> None:
    link = federation(partial(make, FedAvg), TINY, tmp_path)
    link.nodes["node-1"].name = "node-7"
    with pytest.raises(ConfigError, match="The node with the key of node-1 was started as --name node-7"):
        meet(link, link.present())


def test_a_node_with_more_classes_than_the_net_has_outputs_is_refused(tmp_path: Path) -> None:
    client = partial(make, FedAvg)
    link = federation(client, TINY, tmp_path)
    told = meet(link, link.present())
    told["node-2"]["classes"] = 7
    trainer = new_trainer(rounds=1, clients_per_round=3)
    trainer.use_loop(partial(RemoteLoop, nodes=Nodes(link, list(told)), model={}))
    with pytest.raises(ConfigError, match="has 7 classes. Give the net at least 7 outputs"):
        trainer.fit(client(), datamodule=ToldData(told))
