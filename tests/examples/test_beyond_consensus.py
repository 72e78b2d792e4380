"""FedBC's figure 1 with numbers: where the servers of the example come to."""

from pathlib import Path

import numpy as np

from examples.beyond_consensus import CURVATURES, MINIMISERS, draw, optimum, paths


def test_fedavg_ends_between_the_clients_and_fedbc_near_the_minimiser_of_their_sum(tmp_path: Path) -> None:
    found = paths()
    far = {name: float(np.linalg.norm(points[-1] - optimum())) for name, points in found.items()}
    assert far["FedBC, γ = 0.01"] < 0.15 < 0.2 < far["FedBC, γ = 0.1"] < 0.3 < 0.6 < far["FedAvg"]
    draw(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_the_minimiser_of_the_sum_has_no_slope() -> None:
    assert np.allclose((CURVATURES * (optimum() - MINIMISERS)).sum(0), 0, atol=1e-15)
