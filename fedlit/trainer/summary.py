"""summary.json: the results of a run, and the versions it ran with."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from fedlit.evaluation.history import Best, History
from fedlit.metrics.catalogue import (
    BEST_ROUND,
    SHIPPED_MEASURES,
    STATES,
    format_value,
    measures_in,
    metric,
)
from fedlit.metrics.formatting import counted
from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.metrics.user_scores import first_round_at
from fedlit.report.min_max import min_max_metrics

MIN_MAX = ("min_user/", "max_user/", "min_max/")
"""Prefixes of what a summary has about min and max user."""
_PACKAGES = ("fedlit", "torch", "pytorch-lightning", "numpy")


def summarise(history: History, best: Best, rounds: int, thresholds: Sequence[float]) -> dict[str, Any]:
    """Final and best values; the best round is that of the first measure on validation data, never on test data.

    Thresholds are shares, and are used only if the first measure is a share.
    """
    first = best.measure
    metric = f"val/{first.name}" if f"val/{first.name}" in history.columns else f"global/{first.name}"
    measured, values = history.series(metric)
    half = [value for r, value in zip(measured, values, strict=True) if r <= rounds / 2]
    summary: dict[str, Any] = {"final": history.last()}
    if best.round is not None:
        row = history.rows[history.rounds.index(best.round)]
        summary["best"] = {"round": best.round, **{name: row[name] for name in history.columns if name in row}}
    for threshold in thresholds if first.unit == "share" else ():
        summary[f"rounds_to/{threshold:.2f}"] = first_round_at(threshold, measured, values)
    summary[f"halftime/{first.name}"] = half[-1] if half else None
    summary |= best_round(summary.get("best", {}), first) | min_max_metrics(history.rows, [first])
    return summary | {"states": shown_states(history.columns)} | own_measures(history.columns)


def best_round(row: Mapping[str, float], measure: Measure) -> dict[str, float]:
    """The best round by validation with the two values that belong together; nothing without validation data."""
    names = [group for group in ("val", "global") if f"{group}/{measure.name}" in row]
    values = {f"{BEST_ROUND}{group}_{measure.name}": row[f"{group}/{measure.name}"] for group in names}
    return {f"{BEST_ROUND}round": row["round"], **values} if row else {}


def shown_states(columns: Sequence[str]) -> dict[str, Any]:
    """Labels and curves of the states in these columns, for readers without the algorithm's class."""
    states = {name: shown for name, shown in STATES.items() if shown.curves and set(shown.curves) <= set(columns)}
    return {name: asdict(shown) for name, shown in states.items()}


def own_measures(columns: Sequence[str]) -> dict[str, Any]:
    """Labels and units of a user's own measures among these columns, for readers without the task's class."""
    measures = [measure for measure in measures_in(columns) if measure not in SHIPPED_MEASURES]
    entries = {one.name: {"label": one.label, "unit": one.unit, "best": one.best} for one in measures}
    return {"measures": entries} if entries else {}


def versions() -> dict[str, str]:
    """Versions of Python and of the main packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def git_commit() -> str | None:
    """The commit of the working folder, if it is a git checkout."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=Path.cwd())
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def result_table(summary: dict[str, Any]) -> Table:
    """The small table at the end of a run: its last values, its best round by validation, its min and max user."""
    table = Table(title=f"after {counted(summary['rounds'], 'round')}", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("name", style="dim")
    final = summary["final"]
    best, min_max = ([name for name in summary if name.startswith(groups)] for groups in (BEST_ROUND, MIN_MAX))
    for names in ([name for name in table_metrics(final) if name in final], best, min_max):
        for name in names:
            table.add_row(metric(name).label, format_value(name, (final | summary)[name]), name)
        table.add_section()
    return table


def table_metrics(final: Mapping[str, float]) -> list[str]:
    """The metrics of the table, if they were measured; those of users only for the first measure."""
    first, *others = [measure.name for measure in measures_in(final)] or [ACCURACY.name]
    return [
        *(f"{group}/{first}" for group in ("global", "local", "finetuned")),
        *("finetuned/lr", "finetuned/epochs"),
        *(f"{group}/{first}" for group in ("newcomers", "min_user", "max_user")),
        *(f"users/{first}_{name}" for name in ("min", "max", "var")),
        *(f"global/{name}" for name in others),
    ]
