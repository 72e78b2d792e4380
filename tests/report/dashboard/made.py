"""Run folders made by hand, as many and as long as a test needs: files as `fedlit fit` leaves them, numbers drawn."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from fedlit.files import write_text
from fedlit.metrics.catalogue import CLOCK, METRICS
from fedlit.results.folder import RunFolder

Floats = NDArray[np.float64]


def make_run(
    folder: Path,
    algorithm: str = "FedBC",
    seed: int = 0,
    rounds: int = 5,
    clients: int = 4,
    data: dict[str, Any] | None = None,
    partition: str = "same",
    **options: Any,
) -> Path:
    """One finished run; `options` are the model's, `data` are those of Synthetic."""
    files = RunFolder(folder)
    files.create(
        {
            "seed_everything": seed,
            "trainer": {"rounds": rounds},
            "model": {"class_path": f"fedlit.{algorithm}", "init_args": options},
            "data": {"class_path": "fedlit.Synthetic", "init_args": {"seed": 0} | (data or {})},
        }
    )
    draw = np.random.default_rng([seed, *algorithm.encode()])
    write_text(files.metrics, metrics_text(draw, rounds))
    parquet.write_table(client_table(draw, rounds, clients), files.clients)
    files.summary.write_text(json.dumps({"finished": True}))
    files.partition.write_text(json.dumps({"hash": partition}))
    return folder


def metrics_text(draw: np.random.Generator, rounds: int) -> str:
    """metrics.csv: every metric but the clock in every round, noisy curves that no compression makes small."""
    names = [name for name in METRICS if name != CLOCK]
    rising = 1 - 0.9 * np.exp(-np.arange(rounds + 1) / (0.2 * rounds + 1))
    values = np.clip(rising[:, None] * draw.uniform(0.5, 0.9, len(names)), 0, 1)
    values *= draw.uniform(0.9, 1, values.shape)
    text = io.StringIO()
    columns = np.column_stack([np.arange(rounds + 1), values])
    np.savetxt(text, columns, delimiter=",", fmt=["%d"] + ["%.10g"] * len(names), header=",".join(["round", *names]))
    return text.getvalue().removeprefix("# ")


def client_table(draw: np.random.Generator, rounds: int, clients: int) -> pyarrow.Table:
    """clients.parquet with every column filled; a tenth of the clients, at least one, is in each cohort."""
    rows = (rounds + 1) * clients
    sizes = draw.integers(20, 4000, clients)
    cohort = np.tile(np.arange(clients) < max(1, clients // 10), rounds + 1)
    shares: Floats = draw.uniform(size=(rows, 7))
    names = ("weight", "dual", "tolerance", "acc_global", "acc_local", "acc_personal", "loss")
    columns = dict(zip(names, shares.T, strict=True))
    columns["weight"] = np.where(cohort, columns["weight"], np.nan)
    return pyarrow.table(
        {
            "round": np.repeat(np.arange(rounds + 1), clients),
            "client": np.tile(np.arange(clients), rounds + 1),
            "group": np.tile(np.where(np.arange(clients) % 2, "odd", "even"), rounds + 1),
            "size": np.tile(sizes, rounds + 1),
            **columns,
        }
    )
