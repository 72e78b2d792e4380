"""FedBC's figure 1 with numbers: two clients in the plane, and where FedAvg and FedBC lead the server.

Each client fits a line through its own samples, f_i(w) = mean (a·w - b)². They curve in different directions, so the
minimiser of f_1 + f_2 is not the mean of the clients' minimisers. With many local steps x_i comes near its client's own
minimiser, and FedAvg's z near their mean. FedBC's λ_i grows while |x_i - z|² is above γ, and holds x_i nearer to z: the
smaller γ, the nearer z comes to the minimiser of the sum.

    python examples/beyond_consensus.py FILE.png
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

from fedlit import Client, FedAvg, FedBC, FederatedTrainer, ServerCallback, TensorData, WeighedCohort

Floats = NDArray[np.float64]

ROUNDS, START = 60, [-0.5, 2.0]
MINIMISERS = np.array([[-1.0, 0.0], [1.0, 1.5]])
CURVATURES = np.array([[2.0, 0.2], [0.2, 1.0]])
"""Of each client along the two axes: what one knows well the other hardly knows."""
GAMMAS = (0.1, 0.01)
LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 2, "local_steps": 25, "task": "regression"}


def samples() -> tuple[Floats, Floats]:
    """(clients, samples, 2) inputs a, (clients, samples) targets b: a sample for each axis."""
    inputs = np.stack([np.diag(np.sqrt(2 * own)) for own in CURVATURES])  # the mean over two samples halves it again
    return inputs, np.einsum("csk,ck->cs", inputs, MINIMISERS)


def optimum() -> Floats:
    """The minimiser of f_1 + f_2."""
    best: Floats = (CURVATURES * MINIMISERS).sum(0) / CURVATURES.sum(0)
    return best


class Path2D(ServerCallback):
    """Notes z after every round."""

    def __init__(self) -> None:
        self.points: list[list[float]] = []

    def on_server_step_end(self, trainer: Any, client: Client, cohort: WeighedCohort) -> None:
        """One more point."""
        self.points.append(self.server.z["weight"].flatten().tolist())


def path(client: Client) -> Floats:
    """(rounds + 1, 2) z from the start on."""
    inputs, targets = samples()
    data = TensorData(
        inputs.reshape(-1, 2), targets.reshape(-1, 1), np.repeat([0, 1], 2), test_fraction=0.0, val_fraction=0.0
    )
    seen = Path2D()
    trainer = FederatedTrainer(
        rounds=ROUNDS,
        clients_per_round=2,
        eval_every=ROUNDS,
        engine="sequential",
        initial_weights="net",
        callbacks=[seen],
        enable_progress_bar=False,
    )
    trainer.fit(client, datamodule=data)
    return np.array([START, *seen.points])


def line() -> nn.Module:
    """w, from the same start in every run."""
    net = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([START]))
    return net


def paths() -> dict[str, Floats]:
    """Algorithm -> its path."""
    found = {"FedAvg": path(FedAvg(line(), **LOCAL))}
    for gamma in GAMMAS:
        client = FedBC(line(), dual_lr=1.0, tolerance_init=gamma, tolerance_lr=0.0, **LOCAL)
        found[f"FedBC, γ = {gamma:g}"] = path(client)
    return found


def draw(found: dict[str, Floats], file: Path) -> None:
    """The paths above the level lines of f_1 + f_2."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    x, y = np.meshgrid(np.linspace(-1.6, 1.5, 120), np.linspace(-0.4, 2.3, 120))
    whole = sum(c[0] * (x - m[0]) ** 2 + c[1] * (y - m[1]) ** 2 for c, m in zip(CURVATURES, MINIMISERS, strict=True))
    axes.contour(x, y, whole, levels=12, colors="#d0d7de", linewidths=0.8)
    for (name, points), colour in zip(found.items(), ("#bf5700", "#54aeff", "#0a3069"), strict=True):
        axes.plot(*points.T, "-o", color=colour, markersize=3, linewidth=1.2, label=f"z, {name}")
    axes.plot(*MINIMISERS.T, "s", color="#57606a", label="minimisers of f₁ and f₂")
    axes.plot(*optimum(), "*", color="#1a7f37", markersize=14, label="minimiser of f₁ + f₂")
    axes.set(xlabel="w₁", ylabel="w₂", title="Two clients: where the server goes")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    found = paths()
    for name, points in found.items():
        print(f"{name}: after {ROUNDS} rounds {np.linalg.norm(points[-1] - optimum()):.3f} from the minimiser")
    draw(found, Path(sys.argv[1] if len(sys.argv) > 1 else "beyond_consensus.png"))
