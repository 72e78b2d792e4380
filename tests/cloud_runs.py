"""Runs of several servers on a clock, for tests of what reads them."""

from pathlib import Path
from typing import Any

import pytest

from fedlit import SGD, Client, Cloud, FedAvg, FedProx
from fedlit.clock import Clock, Latency
from tests.problems import SIZES, run, tiny_data, tiny_net

EVENTS = 12


def run_in_a_cloud(
    client: Client,
    folder: Path,
    *,
    servers: int = 4,
    first: int = 2,
    clients: int = 12,
    val_fraction: float = 0,
    newcomers: float = 0,
    **trainer: Any,
) -> Path:
    """Train under the Async-cloud on the paper's clock, `first` of so many `servers` stepping together."""
    sizes = (SIZES * clients)[:clients]
    options: dict[str, Any] = {
        "rounds": EVENTS,
        "clients_per_round": 1,
        "sampler": "earliest",
        "clock": Clock(Latency()),
        "cloud": Cloud(servers=servers, first=first),
        "server_optimizer": SGD(lr=0.5),  # with 1 the servers would never learn of each other
    }
    run(
        client, tiny_data(sizes, val_fraction=val_fraction, newcomers=newcomers), run=str(folder), **(options | trainer)
    )
    return folder


@pytest.fixture(scope="session")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four servers, seeds 0 and 1: fedavg-0, fedavg-1, where all step together; fedprox-0, fedprox-1, where two do."""
    folder = tmp_path_factory.mktemp("clouds")
    for seed in (0, 1):
        run_in_a_cloud(FedAvg(tiny_net(), lr=0.3, batch_size=4), folder / f"fedavg-{seed}", first=4, seed=seed)
        run_in_a_cloud(FedProx(tiny_net(), lr=0.3, batch_size=4), folder / f"fedprox-{seed}", first=2, seed=seed)
    return folder
