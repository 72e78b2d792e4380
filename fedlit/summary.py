"""summary.json: what a run came to, and what it ran on."""

import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from fedlit.catalogue import METRICS, STATES
from fedlit.history import Best, History
from fedlit.metrics import first_round_at

_PACKAGES = ("fedlit", "torch", "pytorch-lightning", "numpy")
_TABLE = (
    *("global/acc", "local/acc", "min_user/acc", "max_user/acc"),
    *("users/acc_min", "users/acc_max", "users/acc_var"),
)


def summarise(history: History, best: Best, rounds: int, thresholds: Sequence[float]) -> dict[str, Any]:
    """Final and best values; selection is by validation accuracy where there is validation data, never by test."""
    metric = "val/acc" if "val/acc" in history.columns else "global/acc"
    measured, values = history.series(metric)
    half = [value for r, value in zip(measured, values, strict=True) if r <= rounds / 2]
    summary: dict[str, Any] = {"final": history.last()}
    if best.round is not None:
        row = history.rows[history.rounds.index(best.round)]
        summary["best"] = {"round": best.round, **{name: row[name] for name in history.columns if name in row}}
    for threshold in thresholds:
        summary[f"rounds_to/{threshold:.2f}"] = first_round_at(threshold, measured, values)
    summary["halftime/acc"] = half[-1] if half else None
    return summary | {"states": shown_states(history.columns)}


def shown_states(columns: Sequence[str]) -> dict[str, Any]:
    """The words for the states whose curves these columns are, for readers that do not have the algorithm's class."""
    own = {name: shown for name, shown in STATES.items() if shown.curves and set(shown.curves) <= set(columns)}
    return {name: asdict(shown) for name, shown in own.items()}


def versions() -> dict[str, str]:
    """What the run ran on."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def git_commit() -> str | None:
    """The commit of the working folder, if it is a git checkout."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=Path.cwd())
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def result_table(summary: dict[str, Any]) -> Table:
    """The small table at the end of a run."""
    table = Table(title=f"after {summary['rounds']} rounds", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("name", style="dim")
    for name in _TABLE:
        if name in summary["final"]:
            value = summary["final"][name]
            number = f"{value:.4f}" if name.endswith("_var") else f"{100 * value:.2f} %"
            table.add_row(METRICS[name].label, number, name)
    return table
