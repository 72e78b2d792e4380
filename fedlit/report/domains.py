"""Accuracy by the clients' own groups: domains, plays, kinds of corruption (the per-domain table of Exp-α, table 3).

Of each run: the plain mean over the clients of a domain at the last evaluated round, by z on their own test data; by
their personal models where z is not a whole model (`keep_local`). The last column is the plain mean over the domains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedlit.errors import RunError
from fedlit.report.tables import Cell, Value
from fedlit.results.runs import Group, Run

MEAN = "mean of domains"
"""The column beside the domains."""


@dataclass(frozen=True)
class Domains:
    """What the runs' clients.parquet say about their domains."""

    scores: dict[Path, dict[str, float]]
    """Run -> domain -> accuracy; runs whose clients have no groups are absent."""
    personal: list[Path]
    """Runs whose personal models were taken."""
    unread: list[Path]
    """Runs whose records are missing or damaged."""

    @property
    def names(self) -> list[str]:
        """All domains, in alphabetical order; empty where no client has one."""
        return sorted({name for scores in self.scores.values() for name in scores})

    def cell(self, group: Group, domain: str) -> Cell:
        """One domain of one group, or the mean over its domains."""
        scores = [(run, self._score(run, domain)) for run in group.runs]
        values = [Value(run.path, run.seed, value) for run, value in scores if value is not None]
        return Cell(group.label, domain, values, [run.path for run, value in scores if value is None])

    def _score(self, run: Run, domain: str) -> float | None:
        scores = self.scores.get(run.path, {})
        if domain == MEAN:
            return fmean(scores.values()) if scores else None
        return scores.get(domain)


def read_domains(groups: Sequence[Group], last: int = 1) -> Domains:
    """The accuracy of every domain in every run, over the `last` newest evaluated rounds."""
    domains = Domains({}, [], [])
    for run in (run for group in groups for run in group.runs):
        try:
            scores, is_personal = domain_scores(run, last)
        except RunError:
            domains.unread.append(run.path)
            continue
        if scores:
            domains.scores[run.path] = scores
        if scores and is_personal:
            domains.personal.append(run.path)
    return domains


def domain_scores(run: Run, last: int = 1) -> tuple[dict[str, float], bool]:
    """(domain -> the first measure, such as accuracy, at the end of the run, whether it is that of personal models)."""
    from pyarrow import compute  # type: ignore[import-untyped]  # pyarrow ships no types

    columns = run.clients.column_names
    if "group" not in columns:
        return {}, False
    named = run.clients.filter(compute.field("group") != "")
    name = run.measures[0].name
    server, personal = (f"{name}_{model}" for model in ("global", "personal"))
    is_whole = f"global/{name}" in run.metrics or f"personal/{name}" not in run.metrics  # older records score z anyway
    rows: list[dict[str, Any]] = []
    column = personal
    for column in [name for name in ((server, personal) if is_whole else (personal,)) if name in columns]:
        known = named.filter(compute.is_finite(compute.field(column)))
        newest = sorted(compute.unique(known["round"]).to_pylist())[-last:]
        rows = known.filter(compute.field("round").isin(newest)).select(["group", column]).to_pylist()
        if rows:
            break
    gathered: dict[str, list[float]] = {}
    for row in rows:
        gathered.setdefault(row["group"], []).append(row[column])
    return {name: fmean(values) for name, values in gathered.items()}, column == personal
