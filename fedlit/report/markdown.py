"""report.md: GitHub Markdown. Below each table stands, folded, which runs its numbers come from."""

import re
from collections.abc import Iterator
from urllib.parse import quote

from fedlit.report.differences import Pair
from fedlit.report.grids import Entry, Grid
from fedlit.report.page import Report, Section
from fedlit.report.tables import Value

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$!])")


def markdown(report: Report) -> str:
    """The whole file."""
    lines = [f"# {escape(report.title)}", ""]
    if report.remarks:
        lines += ["> [!WARNING]", *(f"> - {escape(remark)}" for remark in report.remarks), ""]
    for section in report.sections:
        lines += section_lines(report, section)
    lines += ["## What was measured", "", *grid_lines(report, report.metrics)]
    lines += ["Every cell with its runs is in [cells.json](cells.json); paths are relative to this file."]
    return "\n".join(lines) + "\n"


def section_lines(report: Report, section: Section) -> Iterator[str]:
    """One data set."""
    yield from (f"## {escape(section.data)}", "")
    for grid in section.grids:
        yield from (f"### {escape(grid.title)}", "")
        yield from grid_lines(report, grid)
        yield from source_lines(report, grid)
    if section.figures:
        yield from ("### Figures", "")
    for figure in section.figures:
        path = quote((section.figure_folder / figure.name).as_posix())
        yield f"![{escape(figure.title)}]({path}.png)"
        yield from ("", f"**{escape(figure.title)}.** {escape(figure.caption)} [PDF]({path}.pdf)", "")
    yield from (f"### {escape(section.runs.title)}", "")
    yield from grid_lines(report, section.runs)


def grid_lines(report: Report, grid: Grid) -> Iterator[str]:
    """A table with its caption and notes."""
    yield from (escape(grid.caption), "")
    if grid.rows:
        yield row([escape(heading.text) for heading in grid.headings])
        yield row(["---" if heading.is_text else "---:" for heading in grid.headings])
        yield from (row([entry_text(report, entry) for entry in entries]) for entries in grid.rows)
        yield ""
    yield from (f"- {escape(note)}" for note in grid.notes)
    if grid.notes:
        yield ""


def row(fields: list[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(fields)} |"


def entry_text(report: Report, entry: Entry) -> str:
    """A field: bold, a link, or plain."""
    text = escape(entry.text)
    if entry.link is not None:
        return link(text, report.paths[entry.link])
    return f"**{text}**" if entry.bold else text


def source_lines(report: Report, grid: Grid) -> Iterator[str]:
    """Folded: a line for each cell with every run behind it."""
    cells = [entry.cell for entries in grid.rows for entry in entries if entry.cell is not None]
    if not cells:
        return
    yield from ("<details><summary>The runs behind each number</summary>", "")
    yield from (row(["row", "column", "runs"]), row(["---", "---", "---"]))
    for cell in cells:
        yield row([escape(cell.row), escape(cell.column), "; ".join(source(report, one) for one in cell.values)])
    yield from ("", "</details>", "")


def source(report: Report, one: Value) -> str:
    """One run's part: its folder and its value, or both values of a pair."""
    folder = link(escape(report.paths[one.run]), report.paths[one.run])
    if isinstance(one, Pair):
        other = report.paths[one.reference.run]
        return f"{folder} {one.own:.6g} less {link(escape(other), other)} {one.reference.value:.6g}"
    return f"{folder} {one.value:.6g}"


def link(text: str, path: str) -> str:
    """A link to a folder beside the report; the path is percent-encoded, so that nothing in it can end the link."""
    return f"[{text}]({quote(path)})"


def escape(text: str) -> str:
    """Text that stays text: no markup, no HTML, no table border, on one line."""
    plain = " ".join(text.split())
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)
