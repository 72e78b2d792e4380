"""partition.png: who holds how much of which class. Legible for a few clients and for a thousand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def draw_partition(described: Mapping[str, Any], path: Path) -> None:
    """Bars of the clients' sizes above a heat map client × class; clients from the largest to the smallest.

    Args:
        described: what `FederatedDataModule.describe` returns.
        path: where the PNG goes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # a second of import, and no display is needed
    from matplotlib.figure import Figure

    counts = np.array([client["classes"] for client in described["clients"]], dtype=float)
    order = np.argsort(-counts.sum(1), kind="stable")
    counts = counts[order]
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = Figure(figsize=(min(14.0, max(7.0, 0.22 * len(counts))), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    bars, heat = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    places = np.arange(len(counts))
    bars.bar(places, counts.sum(1), width=1.0 if len(counts) > 60 else 0.8, color="#0969da")
    bars.set_yscale("log" if counts.sum(1).max() > 20 * max(counts.sum(1).min(), 1) else "linear")
    bars.set_ylabel("training samples")
    bars.set_title(f"{described['name']}: {described['num_clients']} clients, {int(counts.sum()):,} training samples")
    image = heat.imshow(share.T, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest", origin="lower")
    heat.set_ylabel("class")
    heat.set_yticks(range(0, described["num_classes"], max(1, described["num_classes"] // 10)))
    heat.set_xlabel("client id, largest first" if len(counts) <= 60 else "clients, largest first")
    if len(counts) <= 60:
        heat.set_xticks(places, [str(client) for client in order], fontsize=8, rotation=90 if len(counts) > 20 else 0)
    figure.colorbar(image, ax=heat, label="share of the client's samples", pad=0.01)
    figure.savefig(path, format="png", dpi=110)
