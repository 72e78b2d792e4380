"""What stands in a report and in which order; write.py makes files of it.

Runs of different data sets have sections of their own; within one, every group of runs is a row.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedlit.errors import require
from fedlit.metrics.catalogue import metric
from fedlit.report.differences import check_reference, choose_reference
from fedlit.report.domains import read_domains
from fedlit.report.finished import finished_alone, left_out
from fedlit.report.grids import Entry, Grid, Heading, differences_grid, domains_grid, results_grids
from fedlit.report.hyperparameters import hyperparameters_grid
from fedlit.report.paper_comparison import against_grid
from fedlit.report.paper_tables import PaperTable, read_table
from fedlit.report.tables import choose_metrics
from fedlit.results.runs import Group, Run, group_runs, mixed, named_data

if TYPE_CHECKING:
    from fedlit.report.figures import Figure

FIGURES = "figures"


@dataclass(frozen=True)
class Section:
    """The runs of one data set."""

    data: str
    name: str
    """The same in lower case without signs: part of the names of tables and folders."""
    groups: Sequence[Group]
    grids: Sequence[Grid]
    runs: Grid
    """Which runs there are."""
    figure_folder: Path = Path(FIGURES)
    """Inside the report's folder."""
    remarks: Sequence[str] = ()
    """What is missing from its tables and figures."""
    figures: Sequence["Figure"] = ()


@dataclass(frozen=True)
class Report:
    """Everything that is written; `folder` is where."""

    folder: Path
    sections: Sequence[Section]
    remarks: Sequence[str]
    """What a reader must know before any number."""
    metrics: Grid
    """What each metric is."""
    paths: dict[Path, str] = field(default_factory=dict)
    """Each run folder as it is reached from the report's."""

    @property
    def title(self) -> str:
        """`FedAvg, FedBC on Synthetic`, or how many there are."""
        algorithms = list(dict.fromkeys(group.algorithm for section in self.sections for group in section.groups))
        who = ", ".join(algorithms) if len(algorithms) <= 6 else f"{len(algorithms)} algorithms"
        return f"{who} on {', '.join(section.data for section in self.sections)}"

    @property
    def grids(self) -> list[Grid]:
        """All tables of results."""
        return [grid for section in self.sections for grid in section.grids]


@dataclass(frozen=True)
class Wanted:
    """What a user asked for."""

    metrics: Sequence[str]
    last: int
    reference: str | None
    table: PaperTable | None
    searches: Sequence[Path] = ()
    """Folders of sweeps or of tables made again, in which hyper-parameters were searched."""


def build_report(
    runs: Sequence[Run],
    out: Path,
    *,
    against: str | None = None,
    metrics: Sequence[str] = (),
    last: int = 1,
    reference: str | None = None,
    searches: Sequence[Path] = (),
) -> Report:
    """All tables and remarks, without figures; nothing is written."""
    require(last >= 1, f"--last is {last}; give 1 or more evaluated rounds.")
    table = read_table(against) if against is not None else None
    wanted = Wanted(choose_metrics(runs, metrics), last, reference, table, searches)
    by_data: dict[str, list[Run]] = {}
    for name, run in zip(named_data(runs), runs, strict=True):
        by_data.setdefault(name, []).append(run)
    whole = {data: group_runs(its_runs) for data, its_runs in by_data.items()}
    grouped = {data: finished_alone(groups) for data, groups in whole.items()}
    check_reference([group for groups in grouped.values() for group in groups], reference)
    remarks = [f"The runs are of different data: {', '.join(grouped)}. Each has its own tables."] * (len(grouped) > 1)
    paths = {run.path: os.path.relpath(run.path.resolve(), out.resolve()) for run in runs}
    sections = []
    for data, groups in grouped.items():
        columns = metrics or choose_metrics(by_data[data], ())
        section = build_section(data, groups, replace(wanted, metrics=columns))
        if len(grouped) > 1:
            section = replace(section, figure_folder=section.figure_folder / section.name)
        said = [*left_out(whole[data]), *mixed(groups), *section.remarks]
        remarks += [f"{data}: {remark}" for remark in said] if len(grouped) > 1 else said
        sections.append(section)
    return Report(out, sections, remarks, metrics_grid(wanted.metrics), paths)


def build_section(data: str, groups: Sequence[Group], wanted: Wanted) -> Section:
    """The tables of one data set."""
    name = re.sub(r"[^a-z0-9]+", "-", data.lower()).strip("-") or "data"
    metrics, last = wanted.metrics, wanted.last
    domains = read_domains(groups, last)
    grids = [
        *results_grids(name, groups, metrics, last),
        against_grid(f"{name}-against", groups, wanted.table, domains, last) if wanted.table else None,
        differences_grid(f"{name}-differences", groups, choose_reference(groups, wanted.reference), metrics, last),
        domains_grid(f"{name}-domains", groups, domains, last),
        hyperparameters_grid(f"{name}-hyperparameters", groups, wanted.searches),
    ]
    kept = [grid for grid in grids if grid is not None]
    unread = ", ".join(path.name for path in domains.unread)
    remarks = [f"Client records are missing or damaged, and so left out of all that is about users: {unread}."]
    return Section(data, name, groups, kept, runs_grid(f"{name}-runs", groups), remarks=remarks if unread else [])


def metrics_grid(metrics: Sequence[str]) -> Grid:
    """What each metric is."""
    headings = [Heading(text, is_text=True) for text in ("metric", "name", "model and data")]
    rows = [[Entry(metric(name).label), Entry(name), Entry(metric(name).definition)] for name in metrics]
    return Grid("metrics", "What was measured", "z is the server's model, x_i that of user i.", headings, rows)


def runs_grid(name: str, groups: Sequence[Group]) -> Grid:
    """Which runs there are."""
    texts = {"run folder": True, "algorithm": True, "seed": False, "data seed": False, "rounds": False}
    headings = [Heading(text, is_text=is_text) for text, is_text in texts.items()]
    headings += [Heading("finished", is_text=True), Heading("partition", is_text=True)]
    rows = [
        [
            Entry(run.path.name, link=run.path),
            Entry(group.label),
            *(Entry(str(number)) for number in (*run.seed, run.rounds[-1])),
            Entry("yes" if run.finished else "no"),
            Entry(run.partition_hash or "unknown"),
        ]
        for group in groups
        for run in group.runs
    ]
    return Grid(name, "Runs", "Every number above comes from these folders.", headings, rows)
