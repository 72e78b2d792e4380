"""report.html: one page that needs nothing from elsewhere but the pictures beside it.

A click on a number shows the runs it was computed from: a `popover`, which browsers open without a script.
"""

from collections.abc import Iterator
from html import escape
from itertools import count
from pathlib import Path
from urllib.parse import quote

from fedlit.report.differences import Pair
from fedlit.report.grids import Entry, Grid, Heading
from fedlit.report.page import Report, Section
from fedlit.report.tables import Cell, Value

STYLE = Path(__file__).with_name("page.css")


def html(report: Report) -> str:
    """The whole page."""
    page = _Page(report)
    title = escape(report.title)
    runs = sum(len(section.runs.rows) for section in report.sections)
    groups = sum(len(section.groups) for section in report.sections)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>",
            f"<style>\n{STYLE.read_text(encoding='utf-8')}</style></head>",
            f"<body><main><header><h1>{title}</h1>",
            f"<p>{runs} runs in {groups} groups. Click a number to see the runs behind it.</p></header>",
            *remarks(report),
            *contents(report),
            *(line for section in report.sections for line in page.section(section)),
            '<section id="metrics"><h2>What was measured</h2>',
            *page.grid(report.metrics),
            "</section>",
            '<footer>The same tables: <a href="report.md">Markdown</a>, <a href="tables.tex">LaTeX</a>; every number',
            'with its runs: <a href="cells.json">cells.json</a>.</footer></main></body></html>',
            "",
        ]
    )


def remarks(report: Report) -> Iterator[str]:
    """What a reader must know before any number."""
    if report.remarks:
        yield '<aside class="remarks" role="note"><h2>Before you compare</h2><ul>'
        yield from (f"<li>{escape(remark)}</li>" for remark in report.remarks)
        yield "</ul></aside>"


def contents(report: Report) -> Iterator[str]:
    """Links to everything."""
    yield "<nav><ul>"
    for section in report.sections:
        links = [(grid.name, grid.title) for grid in section.grids]
        links += [(f"{section.name}-figures", "Figures")] * bool(section.figures)
        links += [(section.runs.name, section.runs.title)]
        yield f'<li><a href="#{section.name}">{escape(section.data)}</a>: '
        yield " · ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in links) + "</li>"
    yield '<li><a href="#metrics">What was measured</a></li></ul></nav>'


class _Page:
    """Numbers the cells of a page."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.numbers = count(1)

    def section(self, section: Section) -> Iterator[str]:
        """One data set."""
        yield f'<section id="{section.name}"><h2>{escape(section.data)}</h2>'
        for grid in section.grids:
            yield f'<h3 id="{grid.name}">{escape(grid.title)}</h3>'
            yield from self.grid(grid)
        if section.figures:
            yield f'<h3 id="{section.name}-figures">Figures</h3><div class="figures">'
            for figure in section.figures:
                place = escape(quote((section.figure_folder / figure.name).as_posix()))
                title = escape(figure.title)
                yield f'<figure><a href="{place}.png"><img src="{place}.png" alt="{title}" loading="lazy"></a>'
                yield f"<figcaption><b>{title}.</b> {escape(figure.caption)} "
                yield f'<a href="{place}.pdf">PDF</a></figcaption></figure>'
            yield "</div>"
        yield f'<h3 id="{section.runs.name}">{escape(section.runs.title)}</h3>'
        yield from self.grid(section.runs)
        yield "</section>"

    def grid(self, grid: Grid) -> Iterator[str]:
        """A table with its caption and notes."""
        yield f"<p>{escape(grid.caption)}</p>"
        if grid.rows:
            yield f'<div class="scroll sticky" role="region" aria-label="{escape(grid.title)}" tabindex="0">'
            yield "<table><thead><tr>"
            yield from (heading(one) for one in grid.headings)
            yield "</tr></thead><tbody>"
            for entries in grid.rows:
                fields = zip(grid.headings, entries, strict=True)
                yield "<tr>" + "".join(self.field(one, entry) for one, entry in fields) + "</tr>"
            yield "</tbody></table></div>"
        if grid.notes:
            yield "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in grid.notes) + "</ul>"

    def field(self, heading: Heading, entry: Entry) -> str:
        """One field of a table."""
        text = escape(entry.text)
        if entry.link is not None:
            text = self.link(entry.link, text)
        if entry.bold:
            text = f"<b>{text}</b>"
        if entry.cell is not None:
            text = self.source(entry.cell, text)
        return f'<td class="text">{text}</td>' if heading.is_text else f"<td>{text}</td>"

    def source(self, cell: Cell, text: str) -> str:
        """A number that shows its runs when it is clicked."""
        name = f"c{next(self.numbers)}"
        head = ["run folder", "seed", "data seed", "value"]
        if any(isinstance(one, Pair) for one in cell.values):
            head += ["less", "its value", "difference"]
        rows = [self.source_row(one) for one in cell.values]
        spread = "" if cell.std is None else f", standard deviation {cell.std:.6g}"
        return (
            f'<button popovertarget="{name}">{text}</button><div popover id="{name}" class="source">'
            f"<p><b>{escape(cell.row)}</b>, {escape(cell.column)}: mean {cell.mean:.6g}{spread}, n = {cell.n}. "
            "Numbers as in the run folders.</p>"
            f'<div class="scroll"><table><tr>{"".join(source_heading(one) for one in head)}</tr>{"".join(rows)}</table>'
            "</div></div>"
        )

    def source_row(self, one: Value) -> str:
        """One run's part in a number."""
        own = one.own if isinstance(one, Pair) else one.value
        fields = f'<td class="text">{self.link(one.run)}</td>'
        fields += "".join(f"<td>{number}</td>" for number in (*one.seed, f"{own:.6g}"))
        if isinstance(one, Pair):
            fields += f'<td class="text">{self.link(one.reference.run)}</td>'
            fields += f"<td>{one.reference.value:.6g}</td><td>{one.value:.6g}</td>"
        return f"<tr>{fields}</tr>"

    def link(self, run: Path, text: str | None = None) -> str:
        """A link to a run folder, as it is reached from the page."""
        place = self.report.paths[run]
        return f'<a href="{escape(quote(place))}">{text or escape(place)}</a>'


def heading(one: Heading) -> str:
    """The head of a column, with the metric's name below its words."""
    name = f"<code>{escape(one.name)}</code>" if one.name else ""
    return f'<th scope="col"{" class=text" if one.is_text else ""}>{escape(one.text)}{name}</th>'


def source_heading(text: str) -> str:
    """The head of a column of runs."""
    return f'<th class="text">{text}</th>' if text in ("run folder", "less") else f"<th>{text}</th>"
