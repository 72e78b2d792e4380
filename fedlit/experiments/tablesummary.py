"""All tables that were made again, in a line each: cells compared, cells within both spreads, orders that hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlit.errors import RunError
from fedlit.experiments.ledger import Ledger
from fedlit.experiments.reproduction import Reproduction
from fedlit.experiments.tablefile import TableFile
from fedlit.experiments.tablepage import Counts, Result, collect, count
from fedlit.experiments.tablereading import read_table_file
from fedlit.report.markdown import escape, row
from fedlit.results import read_json
from fedlit.shipped import shipped_tables
from fedlit.words import duration

HEADINGS = ("table", "cells made", "compared", "within", "order holds", "mean τ", "machine time")

EXPLAINED = """*Compared*: cells of ours beside a number of the paper; a second form of the same number is not counted.
*Within*: |difference| ≤ 2 √(s₁² + s₂²), of the cells with a known spread. *Order holds*: columns in which Kendall's τ
between our order of the rows and the paper's is 1. *Machine time*: wall clock of all runs, those of the search too."""


@dataclass(frozen=True)
class Overview:
    """What a folder of runs came to."""

    table: TableFile
    rounds: int
    made: int
    """Cells with at least one number."""
    counts: Counts
    seconds: float
    """Of all its runs, those of the search too."""

    def entries(self) -> list[str]:
        """One text for each of HEADINGS."""
        taus = [tau for tau, _ in self.counts.orders.values()]
        holds = f"{sum(tau == 1 for tau in taus)} of {len(taus)} columns" if taus else "–"
        scaled = f" ({self.rounds} rounds)" if self.rounds != self.table.rounds else ""
        return [
            f"{self.table.name}{scaled}",
            f"{self.made} of {len(self.table.cells)}",
            str(self.counts.compared),
            f"{self.counts.within} of {self.counts.answered}",
            holds,
            f"{sum(taus) / len(taus):+.2f}" if taus else "–",
            duration(self.seconds),
        ]


def overviews(folder: Path) -> list[Overview]:
    """Of every shipped table with runs in a folder of this folder; RunError where there is none."""
    shipped = shipped_tables()
    found = []
    for path in sorted(folder.glob("*/reproduce.json")):
        about = read_json(path).get("about", {})
        if about.get("table") in shipped:
            found.append(overview(read_table_file(shipped[about["table"]]), path, about))
    if not found:
        raise RunError(
            f"{folder} has no folder with runs of a table that ships. Make one with `fedlit reproduce NAME`, or say "
            "where they are with --out DIR."
        )
    return found


def overview(table: TableFile, path: Path, about: dict[str, object]) -> Overview:
    """Of the runs that a record names."""
    ledger, rounds = Ledger.open(path, about), int(str(about["rounds"]))
    results: Sequence[Result] = collect(Reproduction(table, table.cells, table.seeds, rounds, ledger))
    spent = sum(trial.seconds for trial in ledger.trials.values())
    return Overview(table, rounds, sum(bool(one.values) for one in results), count(results), spent)


def summary_page(found: Sequence[Overview]) -> str:
    """As a page of Markdown."""
    return "\n".join(summary_page_lines(found)) + "\n"


def summary_page_lines(found: Sequence[Overview]) -> Iterator[str]:
    """The table, and what its columns mean."""
    compared, within = (sum(getattr(one.counts, name) for one in found) for name in ("compared", "within"))
    yield from ("# Tables made again: what agrees", "", "`fedlit reproduce summary` makes this page.", "")
    yield from (f"**{within} of {compared} cells lie within both spreads.**", "")
    yield from (row(list(HEADINGS)), row(["---"] + ["---:"] * (len(HEADINGS) - 1)))
    for one in found:
        name, *others = (escape(field) for field in one.entries())
        yield row([f"[{name}]({one.table.name}.md)", *others])
    yield from ("", EXPLAINED)
