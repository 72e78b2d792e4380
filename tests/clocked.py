"""Runs on a virtual clock with several servers, for tests of what reads them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from fedlit.run import RunFolder, read_metrics

COLUMNS = ("cloud/consensus", "cloud/staleness", "cloud/waiting", "time/sim_s")


def with_clock(run_folder: Path, *, servers: int = 4, first: int = 2, seed: int = 0) -> Path:
    """A real run folder with what a clock and several servers add: four columns of metrics.csv, and servers.parquet.

    No command writes these yet. This is the only place where tests make them: replace it by a run of several servers
    on a clock. In every event the `first` servers to finish step together; the others keep training or waiting.
    """
    files = RunFolder(run_folder)
    rows = read_metrics(files.metrics)
    draw = np.random.default_rng(seed)
    cloud = Cloud(servers, draw)
    records = []
    for row in rows:
        stepping = cloud.step(first) if row["round"] else np.zeros(servers, dtype=bool)
        own = cloud.measure(stepping, float(row.get("global/acc", 0.5)))
        row |= dict(zip(COLUMNS, cloud.columns(own, stepping), strict=True))
        records.append({"round": np.full(servers, int(row["round"])), "server": np.arange(servers)} | own)
    names = dict.fromkeys(name for row in rows for name in row if name != "round")
    files.start_metrics(list(names), rows)
    files.close()
    joined = {name: np.concatenate([record[name] for record in records]) for name in records[0]}
    parquet.write_table(pyarrow.table(joined), run_folder / "servers.parquet")
    return run_folder


class Cloud:
    """Servers whose rounds last as long as an exponential variable says."""

    def __init__(self, servers: int, draw: np.random.Generator) -> None:
        self.draw = draw
        self.now = 0.0
        self.events = 0
        self.start = np.zeros(servers)
        self.finish = draw.exponential(2.0, servers) + 1
        self.shown = (self.start, self.finish)
        self.rounds = np.zeros(servers, dtype=int)
        self.waited = np.zeros(servers)
        self.last = np.zeros(servers, dtype=int)
        self.staleness = 0.0

    def step(self, first: int) -> Any:
        """The first servers to finish wait for the last of them and begin anew; returns who they are, (servers,)."""
        stepping = np.argsort(np.argsort(self.finish)) < first
        self.now = float(self.finish[stepping].max())
        self.events += 1
        self.staleness = float((self.events - self.last - 1)[stepping].mean())
        self.last[stepping] = self.events
        self.rounds = self.rounds + stepping
        self.waited = self.waited + np.where(stepping, self.now - self.finish, 0)
        self.shown = (self.start, self.finish)
        self.start = np.where(stepping, self.now, self.start)
        self.finish = np.where(stepping, self.now + self.draw.exponential(2.0, len(stepping)) + 1, self.finish)
        return stepping

    def measure(self, stepping: Any, accuracy: float) -> dict[str, Any]:
        """The columns of servers.parquet for this event."""
        count = len(stepping)
        return {
            "time_s": np.full(count, self.now),
            "rounds": self.rounds,
            "start_s": self.shown[0],
            "finish_s": self.shown[1],
            "waited_s": self.waited,
            "acc": np.clip(accuracy + self.draw.normal(0, 0.03, count), 0, 1),
            "distance": self.draw.uniform(0.5, 1.5, count) / (1 + self.events),
            "clients": np.full(count, 2),
            "stepped": stepping,
        }

    def columns(self, own: dict[str, Any], stepping: Any) -> tuple[float, float, float, float]:
        """The columns of metrics.csv, in the order of COLUMNS."""
        waiting = float(self.waited.sum() / (self.now * len(stepping))) if self.now else 0.0
        return float(own["distance"].mean()), self.staleness, waiting, self.now
