"""A worker is killed in a real federation and starts again, then a SuperNode; and the same events without Flower."""

import os
import signal
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from fedlit.cli.data_export import export_clients, names_of_clients
from fedlit.cli.flower_run import train
from fedlit.client.messages import Message
from fedlit.config.flower_cli import FlowerCLI
from fedlit.data.client_file import ClientFile
from fedlit.experiments.conformance.problem import largest_gap
from fedlit.flower.superlink import submitted
from fedlit.flower.trial import Trial, trial
from fedlit.remote.in_process import InProcessLink
from fedlit.remote.link import Answers
from fedlit.remote.loop import RemoteLoop
from fedlit.remote.node import Node
from fedlit.remote.nodes import Nodes, meet
from fedlit.remote.told_data import ToldData

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("flwr") is None, reason='Flower is not installed: pip install "fedlit[flower]"'),
]
WORDS = [
    *("--wandb", "disabled", "--data", "Synthetic", "--data.num_clients", "3", "--trainer.rounds", "3"),
    *("--trainer.clients_per_round", "3", "--trainer.eval_every", "3", "--trainer.enable_progress_bar", "false"),
    *("--model", "FedBC", "--model.start_from", "local", "--model.dual_lr", "0.1", "--model.lr", "0.05"),
    *("--model.net", "fedlit.Softmax", "--model.net.num_features", "60", "--model.net.num_classes", "10"),
]
MISSING = {2: 1, 3: 2}
"""Round -> the client that is missing in it."""


class Accidents(Callback):
    """What happens before each round."""

    def __init__(self, place: Trial) -> None:
        self.place = place

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        number = trainer.loop.rounds_done + 1  # type: ignore[attr-defined]  # FederatedTrainer's
        workers, nodes = self.place.workers, self.place.programs.started
        if number == 2:
            os.kill(workers[1], signal.SIGKILL)
            os.waitpid(workers[1], 0)
        if number == 3:
            workers[1] = self.place.fork_worker(1)
            os.killpg(nodes[-1].process.pid, signal.SIGKILL)
            nodes.pop().process.wait()


class Replay(InProcessLink):
    """The same nodes are missing in the same rounds."""

    def ask(self, messages: Mapping[str, Message]) -> Answers:
        rounds = {message.get("run_round", message.get("number")) for message in messages.values()}
        gone = {f"client-{MISSING[number]}" for number in rounds & MISSING.keys()}
        answers = super().ask({name: message for name, message in messages.items() if name not in gone})
        return Answers(answers.came, dict.fromkeys(gone & messages.keys(), "is gone"))


def test_who_was_killed_goes_on_with_its_rows_and_a_replay_has_the_same_bits(tmp_path: Path) -> None:
    with trial(3) as place:
        cli = FlowerCLI([*WORDS, "--run", str(tmp_path / "real")])
        files = export_clients(cli.datamodule, 0, place.data)
        names = names_of_clients(cli.datamodule)
        listening = place.start_nodes(names, tmp_path / "rows", secure=False)
        cli.trainer.callbacks.append(Accidents(place))
        with submitted(place.programs, listening, place.folder, 150) as link:
            assert train(cli, link, link.wait_for_nodes(3, 300, place.programs.check)) == 0
        again = FlowerCLI([*WORDS, "--run", str(tmp_path / "replay")])
        nodes = {}
        for name, file in zip(names, files, strict=True):
            own = ClientFile(file)
            own.setup()
            nodes[name] = Node(name, own, tmp_path / "again" / name, lambda described: new_model())
        replay = Replay(nodes)
        told = meet(replay, names)
        again.trainer.use_loop(partial(RemoteLoop, nodes=Nodes(replay, names), model={}))
        again.trainer.fit(again.model, datamodule=ToldData(told))
    ours, theirs = (dict(one.trainer.loop.server.model) for one in (cli, again))
    assert largest_gap(ours, theirs) == 0
    rows = {f"{file.parent.parent.name}/{file.name}": file.read_bytes() for file in tmp_path.glob("rows/*/*/*.rows")}
    replayed = {f"{f.parent.parent.name}/{f.name}": f.read_bytes() for f in tmp_path.glob("again/*/*/*.rows")}
    assert rows.keys() == replayed.keys()
    assert rows == replayed
    assert all(torch.isfinite(value).all() for value in ours.values())


def new_model() -> object:
    """The algorithm of the config."""
    return FlowerCLI([*WORDS, "--run", "unused"]).model
