"""FedBC against FedAvg on the default synthetic task, paired over five seeds of data and run.

`pytest tests/algorithms/test_fedbc_gain.py -s` prints the table of docs/algorithms/fedbc.md.
"""

from statistics import mean
from typing import Any

import pytest
import yaml

from fedlit import FedAvg, FedBC, FederatedTrainer, Softmax, Synthetic
from fedlit.config.files import shipped_configs

SEEDS = range(5)


def last_ten_rounds(algorithm: str, seed: int, weights: str | None = None) -> dict[str, float]:
    """Means over the last ten rounds of the shipped config's run."""
    config: dict[str, Any] = yaml.safe_load(shipped_configs()[f"synthetic_{algorithm}.yaml"].read_text())
    options = config["model"]["init_args"] | {"net": None}
    trainer = FederatedTrainer(**config["trainer"], seed=seed, weights=weights, enable_progress_bar=False)
    net = Softmax(60, 10)
    client = {"fedavg": FedAvg, "fedbc": FedBC}[algorithm](**(options | {"net": net}))
    trainer.fit(client, datamodule=Synthetic(**(config["data"]["init_args"] | {"seed": seed})))
    return {name: mean(trainer.loop.history.series(name)[1][-10:]) for name in ("global/acc", "users/acc_var")}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fedbc_beats_fedavg_by_two_points_and_is_fairer() -> None:
    runs = {
        "FedAvg": [last_ten_rounds("fedavg", seed) for seed in SEEDS],
        "FedAvg, equal weights": [last_ten_rounds("fedavg", seed, "uniform") for seed in SEEDS],
        "FedBC": [last_ten_rounds("fedbc", seed) for seed in SEEDS],
    }
    for name, found in runs.items():
        each = "  ".join(f"{100 * run['global/acc']:.1f} ({run['users/acc_var']:.3f})" for run in found)
        accuracy, variance = (mean(run[key] for run in found) for key in ("global/acc", "users/acc_var"))
        print(f"\n{name:<22} {100 * accuracy:.2f} %  variance {variance:.4f}   by seed: {each}")
    gain = mean(a["global/acc"] - b["global/acc"] for a, b in zip(runs["FedBC"], runs["FedAvg"], strict=True))
    fairer = mean(a["users/acc_var"] - b["users/acc_var"] for a, b in zip(runs["FedBC"], runs["FedAvg"], strict=True))
    assert gain >= 0.02
    assert fairer < 0
