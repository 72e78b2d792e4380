"""Latencies: how long clients really took, as a trace that the simulated clock replays to the same events."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from fedlit.client.cohort import Cohort
from fedlit.files import write_text
from fedlit.results.folder import RunFolder


class Latencies:
    """Seconds by a server's round and client.

    What is recorded is a client's seconds after it has shown up: the clock adds its arrival, which is drawn.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], float] = {}

    def add(self, cohort: Cohort, arrivals: np.ndarray, seconds: np.ndarray) -> None:
        """A server's round lasted as its cohort says, and (clients,) each client had so many seconds of its own.

        What the round took beyond its slowest client, on the way and in waiting processes, counts for every client.
        """
        counts = (cohort.reports & cohort.trained).numpy()
        slowest = seconds[counts].max() if counts.any() else seconds.max()
        recorded = np.maximum(seconds + (cohort.duration_s - slowest) - arrivals, 0.0)
        for client, own in zip(cohort.clients, recorded.tolist(), strict=True):
            self._rows[cohort.round, client] = own

    def write(self, folder: RunFolder, *, has_clock: bool) -> None:
        """latencies.csv, and replay.yaml, which lets a config follow it."""
        lines = [f"{round + 1},{client},{seconds!r}\n" for (round, client), seconds in sorted(self._rows.items())]
        table = folder.path / "latencies.csv"
        write_text(table, "round,client,seconds\n" + "".join(lines))
        replay = {"trainer": {"clock": {"latency": replayed(table, has_clock=has_clock)}}}
        write_text(folder.path / "replay.yaml", yaml.safe_dump(replay, sort_keys=False))


def replayed(table: Path, *, has_clock: bool) -> dict[str, Any]:
    """Options of a Latency that gives these seconds; arrivals stay the config's, and are 0 where it has no clock."""
    nothing = {"class_path": "Constant", "init_args": {"value": 0.0}}
    return {
        **({} if has_clock else {"arrival": nothing}),
        "compute": {"class_path": "Trace", "init_args": {"file": str(table.resolve())}},
        "per": "round",
        "processing": "product",
        "network": nothing,
        "speed": None,
    }
