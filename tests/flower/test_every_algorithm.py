"""Algorithms on a real SuperLink with five SuperNodes, five rounds each: all that they come to has the bits of fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedlit.cli.data_export import export_clients, names_of_clients
from fedlit.cli.fit import fit
from fedlit.cli.flower_run import train
from fedlit.config.flower_cli import FlowerCLI
from fedlit.flower.link import FlowerLink
from fedlit.flower.superlink import submitted
from fedlit.flower.trial import trial
from fedlit.remote.loop import RemoteLoop
from tests.flower.compared import difference, held_by_nodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(find_spec("flwr") is None, reason='Flower is not installed: pip install "fedlit[flower]"'),
]
COMMON = [
    *("--wandb", "disabled", "--data", "Synthetic", "--data.num_clients", "5", "--trainer.rounds", "5"),
    *("--trainer.clients_per_round", "3", "--trainer.eval_every", "5", "--trainer.enable_progress_bar", "false"),
    *("--trainer.engine", "sequential", "--model.lr", "0.05", "--model.local_epochs", "1"),
]
NET = ["--model.net", "fedlit.Softmax", "--model.net.num_features", "60", "--model.net.num_classes", "10"]
ALGORITHMS = {
    "FedAvg": ["--model", "FedAvg", *NET],
    "FedBC": ["--model", "FedBC", *NET, "--model.dual_lr", "0.1"],
    "FedBC, from its own model": ["--model", "FedBC", *NET, "--model.dual_lr", "0.1", "--model.start_from", "local"],
    "SCAFFOLD": ["--model", "Scaffold", *NET],
    "pFedMe": ["--model", "PFedMe", *NET, "--model.inner_steps", "3"],
    "Ditto": ["--model", "Ditto", *NET],
    "Per-FedAvg": ["--model", "PerFedAvg", *NET],
    "FedBCD": ["--model", "FedBCD", *NET],
    "FedPer": ["--model", "FedAvg", *NET, "--model.keep_local", "linear.bias"],
    "Exp-α": ["--model", "FedAvg", *NET, "--trainer.weights", "exp_alpha"],
    "FedAdam": ["--model", "FedAvg", *NET, "--trainer.server_optimizer", "FedAdam"],
}


@dataclass(frozen=True)
class Running:
    """A federation that is up, for one run after the other."""

    link: FlowerLink
    names: list[str]
    rows: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One SuperLink, five SuperNodes and one ServerApp: runs of fedlit are told apart by their names, not by Flower."""
    folder = tmp_path_factory.mktemp("federation")
    with trial(5) as place:
        data = FlowerCLI([*ALGORITHMS["FedAvg"], *COMMON, "--run", str(folder / "none")]).datamodule
        export_clients(data, 0, place.data)
        listening = place.start_nodes(names_of_clients(data), folder / "nodes", secure=False)
        with submitted(place.programs, listening, place.folder, 300) as link:
            yield Running(link, link.wait_for_nodes(5, 300, place.programs.check), folder / "nodes")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_federation_has_the_bits_of_the_simulation(name: str, running: Running, tmp_path: Path) -> None:
    words, real, simulated = [*ALGORITHMS[name], *COMMON], tmp_path / "real", tmp_path / "simulated"
    cli = FlowerCLI([*words, "--run", str(real)])
    assert train(cli, running.link, running.names) == 0
    assert fit([*words, "--run", str(simulated)]) == 0
    loop = cli.trainer.loop
    assert isinstance(loop, RemoteLoop)
    assert difference(real, simulated, held_by_nodes(running.rows, running.names, loop.run_id)) == []
