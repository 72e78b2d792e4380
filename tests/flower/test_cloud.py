"""Asynchronous FedBCD on a real federation: five nodes, two and three servers, on the simulated clock and at a real
pace. The simulation has the same bits, from the clock or from events.jsonl."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from pyarrow import parquet
from torch import Tensor

from fedlit.cli.data_export import export_clients, names_of_clients
from fedlit.cli.fit import fit
from fedlit.cli.flower_run import train
from fedlit.config.flower_cli import FlowerCLI
from fedlit.flower.superlink import submitted
from fedlit.flower.trial import trial
from fedlit.remote.gathering import trained_in
from fedlit.remote.node_rows import NodeRows
from fedlit.results.events import Pace, read_events
from fedlit.results.records import read_metrics
from fedlit.trainer.restore import Restored
from tests.flower.compared import difference

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("flwr") is None, reason='Flower is not installed: pip install "fedlit[flower]"'),
]
COMMON = [
    *("--wandb", "disabled", "--data", "Synthetic", "--data.num_clients", "5", "--trainer.rounds", "5"),
    *("--trainer.clients_per_round", "1", "--trainer.sampler", "earliest", "--trainer.eval_every", "5"),
    *("--trainer.clock.latency.arrival", "Exponential", "--trainer.clock.latency.arrival.mean", "2"),
    *("--model", "FedBCD", "--model.lr", "0.05", "--model.local_epochs", "1", "--trainer.enable_progress_bar", "false"),
    *("--model.net", "fedlit.Softmax", "--model.net.num_features", "60", "--model.net.num_classes", "10"),
]
CLOUDS: dict[str, tuple[Pace, list[str]]] = {
    "three servers, at a real pace": ("real", ["--trainer.cloud.servers", "3", "--trainer.cloud.first", "2"]),
    "two servers, on the clock": ("clock", ["--trainer.cloud.servers", "2"]),
    "two servers, at a real pace": ("real", ["--trainer.cloud.servers", "2"]),
}


def counted(run: Path, rows: Path, names: list[str]) -> dict[str, Tensor]:
    """Of each node the rows that the run counts; at a real pace a node may have trained since."""
    states, held = Restored.of(run).states, dict[str, Tensor]()
    run_id = read_events(run / "events.jsonl").recorded.run
    for client in states.touched:
        own = NodeRows(rows / names[client] / run_id).read(trained_in(states, client))
        held |= {f"{name} of {client}": value[0] for name, value in own.items()}
    return held


def test_a_cloud_of_nodes_has_the_bits_of_the_simulation(tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    with trial(5) as place:
        data = FlowerCLI([*COMMON, "--run", str(tmp_path / "none")]).datamodule
        export_clients(data, 0, place.data)
        names = names_of_clients(data)
        rows = tmp_path / "nodes"
        listening = place.start_nodes(names, rows, secure=False)
        with submitted(place.programs, listening, place.folder, 300) as link:
            present = link.wait_for_nodes(5, 300, place.programs.check)
            for name, (pace, cloud) in CLOUDS.items():
                real, simulated = tmp_path / f"{name} real", tmp_path / f"{name} simulated"
                assert train(FlowerCLI([*COMMON, *cloud, "--run", str(real)]), link, present, pace) == 0
                replay = ["--replay", str(real / "events.jsonl")] if pace == "real" else []
                words = [*COMMON, *cloud, *replay, "--trainer.engine", "sequential", "--run", str(simulated)]
                assert fit(words) == 0
                found[name] = difference(real, simulated, counted(real, rows, names))
                tables = [parquet.read_table(run / "servers.parquet").to_pydict() for run in (real, simulated)]
                assert tables[0] == tables[1]
                times = [[row["time/sim_s"] for row in read_metrics(run / "metrics.csv")] for run in (real, simulated)]
                assert times[0] == times[1], "seconds of the clock, or real ones that were recorded"
                print(name, found[name], [[*one.trained] for one in read_events(real / "events.jsonl").rounds])
    assert found == {name: [] for name in CLOUDS}
