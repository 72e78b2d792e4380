"""All tables that were made again, in a line each: cells compared, cells within both spreads, orders that hold.

A page has a record beside it, which holds what it came to. So a summary needs pages, and no runs.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedlit.errors import RunError
from fedlit.experiments.reproduce.result import Result, count, seconds_spent
from fedlit.experiments.reproduce.runs import Reproduction
from fedlit.metrics.formatting import duration
from fedlit.report.markdown import escape, row
from fedlit.results.runs import read_json

HEADINGS = ("table", "cells made", "read", "compared", "within", "order holds", "mean τ", "machine time")

EXPLAINED = """*Compared*: cells of ours beside a number of the paper; a second form of the same number is not counted.
*Within*: |difference| ≤ 2 √(s₁² + s₂²), of the cells with a known spread. *Order holds*: columns in which Kendall's τ
between our order of the rows and the paper's is 1. *Read*: the reading that the paper printed, where a
table's file says which one it was; the other one stands beside it on the page. *Machine time*: wall clock of all runs,
those of the search too."""

OWN_PAGE = "page"
"""The page in a folder of runs; others are named by who asks for them."""


@dataclass(frozen=True)
class Record:
    """What a page came to."""

    table: str
    rounds: int
    rounds_of_file: int
    cells: int
    """Of the whole table."""
    made: int
    """Cells with at least one number."""
    compared: int
    answered: int
    """Cells where at least one spread is known."""
    within: int
    orders: dict[str, float]
    """Column -> Kendall's τ between our order and the paper's."""
    seconds: float
    """Of all its runs, those of the search too."""
    read: str | None = None
    """The reading that the paper printed, where the table's file says which one it was; older records lack it."""

    def entries(self) -> list[str]:
        """One text for each of HEADINGS."""
        taus = list(self.orders.values())
        scaled = f" ({self.rounds} rounds)" if self.rounds != self.rounds_of_file else ""
        return [
            f"{self.table}{scaled}",
            f"{self.made} of {self.cells}",
            str(self.read or "–"),
            str(self.compared),
            f"{self.within} of {self.answered}",
            f"{sum(tau == 1 for tau in taus)} of {len(taus)} columns" if taus else "–",
            f"{sum(taus) / len(taus):+.2f}" if taus else "–",
            duration(self.seconds),
        ]

    def text(self) -> str:
        """As the file holds it."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def record_of(made: Reproduction, results: Sequence[Result]) -> Record:
    """Of the cells that were asked for."""
    counts = count(results)
    return Record(
        table=made.table.name,
        rounds=made.rounds,
        rounds_of_file=made.table.rounds,
        cells=len(made.table.cells),
        made=sum(bool(one.values) for one in results),
        compared=counts.compared,
        answered=counts.answered,
        within=counts.within,
        orders={column: tau for column, (tau, _) in counts.orders.items()},
        seconds=seconds_spent(made),
        read=" or ".join(dict.fromkeys(one.reading.label for one in results)) if made.table.printed else None,
    )


def record_path(page: Path) -> Path:
    """Beside a page."""
    return page.with_suffix(".json")


def read_records(folder: Path) -> dict[str, Record]:
    """Name of the page -> its record, of those in a folder and in the folders in it; RunError where there is none."""
    records = {}
    for path in sorted([*folder.glob("*.json"), *folder.glob(f"*/{OWN_PAGE}.json")]):
        record = read_record(path)
        if record is not None:
            records[record.table if path.stem == OWN_PAGE else path.stem] = record
    if not records:
        raise RunError(
            f"{folder} has no table that was made again. Make one with `fedlit reproduce NAME`, or say where they are "
            "with --out DIR: a folder with pages, or one with the folders of their runs."
        )
    return records


def read_record(path: Path) -> Record | None:
    """The record in a file; None if it holds something else, and RunError if it is damaged."""
    try:
        content = read_json(path)
        if {"read": None, **content}.keys() != Record.__dataclass_fields__.keys():
            return None
        record = Record(**content)
        record.entries()
    except (RunError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{path} is damaged. Make its page again with `fedlit reproduce NAME --show --page FILE`, or remove it."
        ) from error
    return record


def summary_page(records: dict[str, Record]) -> str:
    """As a page of Markdown."""
    return "\n".join(summary_page_lines(records)) + "\n"


def summary_page_lines(records: dict[str, Record]) -> Iterator[str]:
    """The table, and what its columns mean."""
    answered, within = (sum(getattr(one, name) for one in records.values()) for name in ("answered", "within"))
    yield from (
        "# Tables made again: what agrees",
        "",
        "`fedlit reproduce summary --out FOLDER --page FILE` makes this page of the pages in a folder.",
        "",
    )
    yield from (f"**{within} of {answered} cells with a known spread lie within both.**", "")
    yield from (row(list(HEADINGS)), row(["---"] + ["---:"] * (len(HEADINGS) - 1)))
    for page, one in records.items():
        name, *others = (escape(field) for field in one.entries())
        yield row([f"[{name}]({page}.md)", *others])
    yield from ("", EXPLAINED)
