"""A table of a page in the form that a paper has: rows, columns, and our number in each cell. It needs no paper."""

from collections.abc import Callable, Iterator, Sequence

from fedlit.experiments.reproduce.result import Result
from fedlit.experiments.reproduce.table import TableFile
from fedlit.metrics.catalogue import metric
from fedlit.report.markdown import escape, row

MOST_COLUMNS = 12
"""A wider table is a list."""


def fits(table: TableFile, results: Sequence[Result]) -> bool:
    """Whether the table has no paper whose numbers stand beside ours, and the page is wide enough."""
    columns = {one.cell.column.name for one in results}
    return table.paper is None and table.printed is None and len(columns) <= MOST_COLUMNS


def has_picture(table: TableFile, results: Sequence[Result]) -> bool:
    """Whether it is drawn, too: it is a grid, and has numbers."""
    return fits(table, results) and any(one.mean is not None for one in results)


def grid_lines(results: Sequence[Result], text: Callable[[Result], str], absent: str) -> Iterator[str]:
    """The table; the best number of each column is bold."""
    rows, columns = (
        list(dict.fromkeys(names))
        for names in ((one.cell.row.name for one in results), (one.cell.column.name for one in results))
    )
    cells = {(one.cell.row.name, one.cell.column.name): one for one in results}
    best = {id(one) for name in columns for one in best_of([cells[key] for key in cells if key[1] == name])}
    yield row(["", *(escape(name) for name in columns)])
    yield row(["---", *["---:" for _ in columns]])
    for name in rows:
        found = [cells.get((name, column)) for column in columns]
        texts = [absent if one is None else escape(text(one)) for one in found]
        bold = [f"**{shown}**" if id(one) in best else shown for one, shown in zip(found, texts, strict=True)]
        yield row([escape(name), *bold])


def best_of(column: Sequence[Result]) -> list[Result]:
    """The cells of a column with the best mean; none where fewer than two have one, or neither way is better."""
    known = [(one.mean, one) for one in column if one.mean is not None]
    way = {metric(one.reading.metric).best for one in column}
    if len(known) < 2 or way not in ({"max"}, {"min"}):
        return []
    top = (max if way == {"max"} else min)(mean for mean, _ in known)
    return [one for mean, one in known if mean == top]
