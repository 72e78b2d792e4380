"""Any algorithm under the Async-cloud or on a flat clock, by its config and options of the command line alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pyarrow import parquet

from fedlit.results.records import read_metrics
from tests.conftest import Call

Refusal = Callable[..., str]

QUICK = (
    "--data.num_clients 9 --data.size_sigma 0 --data.size_mean 1 --data.size_min 20 --trainer.clients_per_round 2 "
    "--trainer.rounds 2 --trainer.eval_every 1 --model.local_steps 2 --trainer.engine sequential "
    "--trainer.enable_progress_bar false"
)
CLOCK = "--trainer.sampler earliest --trainer.clock.latency.arrival Exponential --trainer.clock.latency.arrival.mean 2"
CLOUD = (
    f"{CLOCK} --trainer.cloud.servers 3 --trainer.cloud.first 2 "
    "--trainer.server_optimizer SGD --trainer.server_optimizer.lr 0.5"
)
CONFIGS = ["synthetic_fedavg.yaml", "synthetic_fedbc.yaml", "synthetic_pfedme.yaml"]


@pytest.mark.parametrize("config", CONFIGS)
def test_an_algorithm_runs_under_the_async_cloud_by_options_alone(
    call: Call, config: str, recwarn: pytest.WarningsRecorder
) -> None:
    assert call(f"fit --config {config} {QUICK} {CLOUD} --run cloud").code == 0
    assert [str(warned.message) for warned in recwarn if "serialize" in str(warned.message)] == []
    rows = read_metrics(Path("cloud/metrics.csv"))
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert 0 == rows[0]["time/sim_s"] < rows[1]["time/sim_s"] < rows[2]["time/sim_s"]
    assert rows[2]["cloud/consensus"] > 0
    servers = parquet.read_table("cloud/servers.parquet").to_pylist()
    assert [sum(row["stepped"] for row in servers if row["round"] == number) for number in (1, 2)] == [2, 2]


@pytest.mark.parametrize("config", CONFIGS)
def test_an_algorithm_runs_on_a_flat_clock_by_options_alone(call: Call, config: str) -> None:
    assert call(f"fit --config {config} {QUICK} {CLOCK} --run flat").code == 0
    rows = read_metrics(Path("flat/metrics.csv"))
    assert 0 == rows[0]["time/sim_s"] < rows[1]["time/sim_s"] < rows[2]["time/sim_s"]
    assert not [name for name in rows[2] if name.startswith("cloud/")]
    assert not Path("flat/servers.parquet").exists()


def without_times(path: str) -> list[dict[str, float]]:
    measured = ("time/train_s", "time/eval_s", "time/round_s")
    return [{name: row[name] for name in row if name not in measured} for row in read_metrics(Path(path))]


def test_config_of_a_cloud_says_how_servers_mix_and_makes_the_same_run(call: Call) -> None:
    assert call(f"fit --config synthetic_fedbc.yaml {QUICK} {CLOUD} --run one").code == 0
    cloud = yaml.safe_load(Path("one/config.yaml").read_text())["trainer"]["cloud"]["init_args"]
    assert cloud["mixing"] == {"class_path": "fedlit.Complete", "init_args": {}}
    assert call("fit --config one/config.yaml --run two").code == 0
    assert without_times("two/metrics.csv") == without_times("one/metrics.csv")
    assert call("fit --config one/config.yaml --trainer.rounds 3 --run one --resume").code == 0
    assert len(read_metrics(Path("one/metrics.csv"))) == 4


@pytest.mark.parametrize(
    ("mixing", "written"),
    [
        ("Ring", {"class_path": "fedlit.Ring", "init_args": {}}),
        (
            "RandomPairs --trainer.cloud.mixing.probability 0.3",
            {"class_path": "fedlit.RandomPairs", "init_args": {"probability": 0.3}},
        ),
    ],
)
def test_mixing_is_chosen_by_name(call: Call, mixing: str, written: dict[str, object]) -> None:
    assert (
        call(f"fit --config synthetic_fedavg.yaml {QUICK} {CLOUD} --trainer.cloud.mixing {mixing} --run run").code == 0
    )
    assert yaml.safe_load(Path("run/config.yaml").read_text())["trainer"]["cloud"]["init_args"]["mixing"] == written


def write_trace(seconds: float) -> None:
    rows = [f"{number},{client},{seconds + client / 10}" for number in (1, 2, 3) for client in range(9)]
    Path("arrivals.csv").write_text("\n".join(["round,client,seconds", *rows]) + "\n")


TRACED = f"--config synthetic_fedavg.yaml {QUICK} --trainer.sampler earliest --trainer.clock.latency.arrival Trace"


def test_a_trace_is_known_by_its_content(call: Call, refusal: Refusal) -> None:
    words = f"fit {TRACED} --trainer.clock.latency.arrival.file arrivals.csv"
    for seconds in (1.0, 1.0, 2.0):
        write_trace(seconds)
        assert call(f"{words} --resume").code == 0
    folders = sorted(Path("runs").iterdir())
    assert len(folders) == 2, "the same content is the same run, another is another"
    configs = [folder / "config.yaml" for folder in folders]
    arrivals = [yaml.safe_load(path.read_text())["trainer"]["clock"]["latency"]["arrival"] for path in configs]
    assert len({arrival["init_args"]["sha256"] for arrival in arrivals}) == 2
    write_trace(3.0)
    assert "it is not the file that the run began with" in refusal(f"fit --config {configs[0]} --run again")


def test_a_trace_that_is_too_short_or_missing_leaves_no_folder(refusal: Refusal) -> None:
    write_trace(1.0)
    words = f"fit {TRACED} --trainer.clock.latency.arrival.file"
    assert "too short: round 4" in refusal(f"{words} arrivals.csv --trainer.rounds 4 --run run")
    assert "missing.csv cannot be read" in refusal(f"{words} missing.csv --run run")
