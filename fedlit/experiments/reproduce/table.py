"""A paper's table: which runs make a cell, what is tuned for it, how it is read, and what the paper prints.

`table_file.py` makes it from a file. Nothing here runs.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlit.errors import ConfigError, nearest
from fedlit.experiments.reproduce.reading import Printed, Reading
from fedlit.report.paper_tables import PaperRow, in_our_unit

START_S = 6.0
"""Seconds until a run has begun: most of it is importing torch."""


@dataclass(frozen=True)
class Tuning:
    """How the values of a grid are chosen."""

    seed: int
    """Of the runs that choose; it is not one of the table's."""
    metric: str
    last: int
    rounds: int | None = None
    """Every point runs for so many rounds first; without it, for all."""
    keep: int = 5
    """So many of them then run for all rounds; with 1, the best of the short runs is taken as it is."""
    best: bool = False
    """Read as the best evaluated round instead of the mean of the last ones."""


@dataclass(frozen=True)
class Column:
    """One column of the table."""

    name: str
    words: Mapping[str, str]
    """What stands for `{word}` in the rows' configs."""
    options: Mapping[str, Any]
    rounds: int | None
    """Where they are not the table's."""
    seconds: float
    """Of a run with all rounds, on two cores."""
    paper: Mapping[str, str]
    reading: Mapping[str, Any]
    runs_of: str | None
    """The column whose runs it reads, if it has none of its own."""
    values_of: str | None
    """The column in which the values are searched, if not in this one."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    config: str
    options: Mapping[str, Any]
    per_column: Mapping[str, Mapping[str, Any]]
    """Column -> options in it alone."""
    grid: Mapping[str, Sequence[Any]]
    own_values: bool
    """Whether they are searched in each of its columns, whatever `values_of` says."""
    values_of: Mapping[str, str]
    """Column -> the column in which they are searched instead, where this row differs from the others."""
    follow: Mapping[str, str]
    """Option -> the option whose value it takes."""
    only: Sequence[str]
    """The columns that it has; all if empty."""
    rounds: int | None
    """Where they are not the column's."""
    slower: float
    """Times the column's seconds."""
    paper: Mapping[str, str] | None
    reading: Mapping[str, Any]
    runs_of: str | None
    """The row whose runs it reads, if it has none of its own."""
    counts: bool
    """Whether it enters the counts and the order; another form of the same number does not."""


@dataclass(frozen=True)
class Cell:
    """A row in a column."""

    row: Row
    column: Column

    @property
    def name(self) -> str:
        """As `--cells` takes it."""
        return f"{self.row.name}:{self.column.name}"

    @property
    def slug(self) -> str:
        """The beginning of its run folders' names."""
        return f"{slug(self.column.name)}-{slug(self.row.name)}"

    @property
    def config(self) -> str:
        """The config's name."""
        return self.row.config.format_map(self.column.words)

    def points(self) -> list[dict[str, Any]]:
        """All combinations of the grid; one empty one without a grid."""
        values = itertools.product(*self.row.grid.values())
        return [dict(zip(self.row.grid, chosen, strict=True)) for chosen in values]


@dataclass(frozen=True)
class TableFile:
    """One table."""

    path: Path
    title: str
    rounds: int
    seeds: int
    reading: Mapping[str, Any]
    options: Mapping[str, Any]
    tuning: Tuning | None
    columns: Mapping[str, Column]
    rows: Mapping[str, Row]
    paper: str | None
    printed: Printed | None = None
    """Which of two readings the paper printed; None: the file knows one reading alone."""
    runs: str | None = None
    """The table whose runs it reads, if it has none of its own."""
    notes: Sequence[str] = ()
    tried: Mapping[str, str] = field(default_factory=dict)
    """Cell, row or column -> what was tried where our number is not the paper's."""
    numbers: dict[str, PaperRow] = field(default_factory=dict)
    """Cell's name -> the paper's number."""

    @property
    def name(self) -> str:
        """As the command takes it."""
        return self.path.stem

    @property
    def runs_name(self) -> str:
        """The table whose runs these are."""
        return self.runs or self.name

    @property
    def cells(self) -> list[Cell]:
        """All, column by column."""
        return [
            Cell(row, column)
            for column in self.columns.values()
            for row in self.rows.values()
            if not row.only or column.name in row.only
        ]

    def source(self, cell: Cell) -> Cell:
        """The cell whose runs it reads: itself in most cases."""
        row, column = cell.row, cell.column
        return Cell(self.rows[row.runs_of or row.name], self.columns[column.runs_of or column.name])

    def reading_of(self, cell: Cell) -> Reading:
        """How it is read: as the paper printed it."""
        printed = {} if self.printed is None else {"best": self.printed.best}
        return Reading(**{**printed, **self.reading, **cell.column.reading, **cell.row.reading})

    def second_reading_of(self, cell: Cell) -> Reading | None:
        """The reading that stands beside it, where the file says which one the paper printed."""
        return None if self.printed is None else self.reading_of(cell).other

    def tried_for(self, cell: Cell) -> str | None:
        """What was tried for a cell whose number is not the paper's: for itself, its row or its column."""
        return next(
            (self.tried[name] for name in (cell.name, cell.row.name, cell.column.name) if name in self.tried), None
        )

    def arguments(self, cell: Cell, point: Mapping[str, Any], seed: int, rounds: int) -> tuple[str, ...]:
        """Of `fedlit fit` for one run of a cell that has runs."""
        row = cell.row
        options: dict[str, Any] = {"trainer.rounds": rounds, **self.options, **cell.column.options, **row.options}
        options |= {**row.per_column.get(cell.column.name, {}), **point}
        options |= {name: options[source] for name, source in row.follow.items()}
        settings = [f"--{name}={as_text(value)}" for name, value in options.items()]
        return ("--config", cell.config, *settings, f"--seed_everything={seed}")

    def paper_number(self, cell: Cell) -> tuple[float, float | None] | None:
        """(mean, standard deviation) of the paper in our unit, if it has any."""
        row = self.numbers.get(cell.name)
        if row is None:
            return None
        name = self.reading_of(cell).metric
        return in_our_unit(name, row.mean), None if row.std is None else in_our_unit(name, row.std)

    def rounds_of(self, cell: Cell) -> int:
        """Of a run of a cell."""
        return cell.row.rounds or cell.column.rounds or self.rounds

    def seconds(self, cell: Cell, rounds: int) -> float:
        """About how long a run takes."""
        return START_S + cell.column.seconds * cell.row.slower * rounds / self.rounds_of(cell)

    def search_of(self, cell: Cell) -> Cell:
        """The cell in whose column the values of a cell with runs are searched."""
        of_column = {} if cell.row.own_values else {cell.column.name: cell.column.values_of}
        elsewhere = {**of_column, **cell.row.values_of}.get(cell.column.name)
        return Cell(cell.row, self.columns[elsewhere or cell.column.name])


def slug(name: str) -> str:
    """A name as part of a folder's."""
    return re.sub(r"[^\w.=-]+", "_", name)


def as_text(value: Any) -> str:
    """A value as the command line reads it."""
    return json.dumps(value) if isinstance(value, bool | list | dict) or value is None else str(value)


def choose_cells(table: TableFile, asked: Sequence[str]) -> list[Cell]:
    """`ROW:COLUMN`, a row or a column for each; all without any."""
    if not asked:
        return table.cells
    chosen: dict[str, Cell] = {}
    for name in asked:
        matching = [cell for cell in table.cells if name in (cell.name, cell.row.name, cell.column.name)]
        if not matching:
            known = [*(cell.name for cell in table.cells), *table.rows, *table.columns]
            raise ConfigError(
                f"--cells {name}: {table.name} has no such cell. {nearest(name, known)}Write ROW:COLUMN, a row or a "
                f"column. Rows: {', '.join(table.rows)}. Columns: {', '.join(table.columns)}."
            )
        chosen |= {cell.name: cell for cell in matching}
    return [cell for cell in table.cells if cell.name in chosen]
