"""Latencies: how long clients really took, as a trace with which the simulated clock replays the same events."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from fedlit.client.cohort import Cohort
from fedlit.files import write_text
from fedlit.results.folder import RunFolder


class Latencies:
    """Seconds by a server's round and client, without the arrival, which the clock draws and adds."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], float] = {}

    def add(self, cohort: Cohort, arrivals: np.ndarray, seconds: np.ndarray) -> None:
        """Record a server's round, which took `cohort.duration_s`, and the (clients,) seconds of its clients.

        The time that the round took beyond its slowest client, for messages and waiting, is added to every client.
        """
        trained = (cohort.reports & cohort.trained).numpy()
        slowest = seconds[trained].max() if trained.any() else seconds.max()
        recorded = np.maximum(seconds + (cohort.duration_s - slowest) - arrivals, 0.0)
        for client, own_seconds in zip(cohort.clients, recorded.tolist(), strict=True):
            self._rows[cohort.round, client] = own_seconds

    def write(self, folder: RunFolder, *, has_clock: bool) -> None:
        """Write latencies.csv, and replay.yaml, the config with which a run replays it."""
        lines = [f"{round + 1},{client},{seconds!r}\n" for (round, client), seconds in sorted(self._rows.items())]
        table = folder.path / "latencies.csv"
        write_text(table, "round,client,seconds\n" + "".join(lines))
        replay = {"trainer": {"clock": {"latency": replayed(table, has_clock=has_clock)}}}
        write_text(folder.path / "replay.yaml", yaml.safe_dump(replay, sort_keys=False))


def replayed(table: Path, *, has_clock: bool) -> dict[str, Any]:
    """Options of a Latency that gives these seconds. Arrivals are those of the config, or 0 if it has no clock."""
    nothing = {"class_path": "Constant", "init_args": {"value": 0.0}}
    return {
        **({} if has_clock else {"arrival": nothing}),
        "compute": {"class_path": "Trace", "init_args": {"file": str(table.resolve())}},
        "per": "round",
        "processing": "product",
        "network": nothing,
        "speed": None,
    }
