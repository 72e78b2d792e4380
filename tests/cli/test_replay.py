"""`fedlit fit --replay`: the command, over a federation whose nodes are in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedlit.cli.data_export import export_clients, names_of_clients
from fedlit.cli.flower_run import train
from fedlit.config.flower_cli import FlowerCLI
from fedlit.data.client_file import ClientFile
from fedlit.remote.node import Node
from tests.conftest import Call
from tests.remote.delayed import DelayedLink
from tests.remote.test_pace import measured

WORDS = (
    "--wandb disabled --data Synthetic --data.num_clients 5 --trainer.rounds 4 --trainer.clients_per_round 1 "
    "--trainer.sampler earliest --trainer.clock.latency.arrival Exponential --trainer.clock.latency.arrival.mean 2 "
    "--trainer.cloud.servers 3 --trainer.cloud.first 2 --trainer.enable_progress_bar false --trainer.eval_every 2 "
    "--model FedBCD --model.lr 0.05 --model.local_epochs 1 --model.net fedlit.Softmax --model.net.num_features 60 "
    "--model.net.num_classes 10"
)


@pytest.fixture
def federation(workplace: Path) -> Path:
    """The events of an asynchronous FedBCD cloud of three servers and five nodes, at a real pace."""
    cli = FlowerCLI([*WORDS.split(), "--run", "real"])
    files, names = export_clients(cli.datamodule, 0, Path("data")), names_of_clients(cli.datamodule)
    nodes = {}
    for name, file in zip(names, files, strict=True):
        own = ClientFile(file)
        own.setup()
        nodes[name] = Node(name, own, Path("rows") / name, lambda described: FlowerCLI([*WORDS.split()]).model)
    assert train(cli, DelayedLink(nodes), names, "real") == 0
    return Path("real/events.jsonl")


def test_a_replay_has_the_metrics_of_the_federation_and_a_folder_of_its_own(federation: Path, call: Call) -> None:
    answer = call(f"fit {WORDS} --replay {federation}")
    assert answer.code == 0, answer
    [folder] = Path("runs").iterdir()
    assert folder.name.endswith("-replay")
    assert measured(folder) == measured(Path("real"))


def test_what_does_not_fit_the_events_is_refused_before_anything_is_written(
    federation: Path, refusal: Callable[..., str]
) -> None:
    run = f"fit {WORDS} --replay {federation}"
    assert "other settings: model.lr was 0.05, is 0.1. Give the config" in refusal(f"{run} --model.lr 0.1")
    assert (
        "trainer.rounds is 9, but --replay real/events.jsonl has 4 rounds. Give --trainer.rounds 4 or less"
        in refusal(f"{run} --trainer.rounds 9")
    )
    assert "trainer.engine is vectorized, but --replay has the bits" in refusal(f"{run} --trainer.engine vectorized")
    assert "The events nothing.jsonl cannot be read" in refusal(f"fit {WORDS} --replay nothing.jsonl")
    federation.write_text(federation.read_text().replace('"time_s"', '"time_S"'))
    assert "are damaged in line 2" in refusal(run)
    assert not Path("runs").exists()
