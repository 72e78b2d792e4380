"""The files of a report: report.html, report.md, tables.tex, cells.json and the figures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlit.files import write_json, write_text
from fedlit.report.differences import Difference, Pair
from fedlit.report.html import html
from fedlit.report.latex import latex
from fedlit.report.markdown import markdown
from fedlit.report.page import Report, build_report
from fedlit.report.tables import Cell, Value
from fedlit.results.folder import make_folder
from fedlit.results.runs import Run


def write_report(
    runs: Sequence[Run],
    out: Path,
    *,
    against: str | None = None,
    metrics: Sequence[str] = (),
    last: int = 1,
    reference: str | None = None,
    searches: Sequence[Path] = (),
) -> list[Path]:
    """Write tables and figures of these runs into a folder; returns the files.

    Args:
        runs: what `fedlit.results.runs.find_runs` returns.
        out: the folder; made if it does not exist, and files of an earlier report in it are replaced.
        against: name of a paper's table, or the path of a CSV file with algorithm, metric, mean and perhaps std.
        metrics: names of the columns; a sensible set unless given.
        last: how many of the last evaluated rounds are averaged.
        reference: label of the group that others are compared with; FedAvg or the first unless given.
        searches: folders of sweeps or of tables made again, in which the runs' hyper-parameters were searched.
    """
    report = build_report(
        runs, out, against=against, metrics=metrics, last=last, reference=reference, searches=searches
    )
    return write_files(report)


def write_files(report: Report, progress: Callable[[str], None] | None = None) -> list[Path]:
    """Draw the figures and write everything; `progress` is called with the name of each figure before it is drawn."""
    make_folder(report.folder, "--out DIR")
    report = with_figures(report, progress)
    texts = {"report.html": html(report), "report.md": markdown(report), "tables.tex": latex(report)}
    for name, text in texts.items():
        write_text(report.folder / name, text)
    write_json(report.folder / "cells.json", cells(report))
    figures = [
        report.folder / section.figure_folder / f"{figure.name}.{kind}"
        for section in report.sections
        for figure in section.figures
        for kind in ("png", "pdf")
    ]
    return [*(report.folder / name for name in (*texts, "cells.json")), *figures]


def with_figures(report: Report, progress: Callable[[str], None] | None = None) -> Report:
    """The report with all that its runs can show, drawn into its folder."""
    from fedlit.report.figures import draw_figures  # matplotlib takes a second to import

    sections = [
        replace(section, figures=draw_figures(section.groups, report.folder / section.figure_folder, progress))
        for section in report.sections
    ]
    return replace(report, sections=sections)


def cells(report: Report) -> list[dict[str, Any]]:
    """Every number of the tables with the runs it was computed from; what is not finite is null."""
    return [
        {"table": grid.name, **describe(report, entry.cell)}
        for grid in report.grids
        for entries in grid.rows
        for entry in entries
        if entry.cell is not None
    ]


def describe(report: Report, cell: Cell) -> dict[str, Any]:
    """One cell as plain data."""
    described: dict[str, Any] = {
        "row": cell.row,
        "column": cell.column,
        "mean": finite(cell.mean),
        "std": finite(cell.std),
        "n": cell.n,
        "values": [describe_value(report, one) for one in cell.values],
    }
    if isinstance(cell, Difference):
        described["interval"] = [finite(end) for end in cell.interval] if cell.interval else None
        described["wilcoxon"] = {"p": cell.p, "holm": cell.holm, "tests": cell.tests} if cell.p is not None else None
    return described


def describe_value(report: Report, one: Value) -> dict[str, Any]:
    """One run's part; a pair has both runs."""
    run_seed, data_seed = one.seed
    described = {"run": report.paths[one.run], "seed": run_seed, "data_seed": data_seed, "value": finite(one.value)}
    if not isinstance(one, Pair):
        return described
    other = {"run": report.paths[one.reference.run], "value": finite(one.reference.value)}
    return {**described, "own": finite(one.own), "reference": other}


def finite(value: float | None) -> float | None:
    """JSON has no nan and no infinity."""
    return value if value is not None and math.isfinite(value) else None
