"""The file of a paper's table, read and checked: every error names the file, the key and how to mend it.

docs/reproduce.md explains every key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlit.config.files import find_config, shipped_tables
from fedlit.config.parse_errors import read_yaml
from fedlit.errors import ConfigError, nearest
from fedlit.experiments.reproduce.keys import check_keys, known_name, named, number, options, text, truth, whole
from fedlit.experiments.reproduce.reading import PRINTED, Printed
from fedlit.experiments.reproduce.table import Cell, Column, Row, TableFile, Tuning
from fedlit.report.paper_comparison import agree
from fedlit.report.paper_tables import PaperRow, read_table

_TABLE = ("title", "paper", "rounds", "seeds", "cell", "reading", "set", "tune", "columns", "rows", "notes", "tried")
_OTHER = ("title", "runs", "cell", "notes")
_READ = ("metric", "last", "best", "domain", "weight_of")
_PRINTED = ("paper", "why")
_TUNE = ("seed", "metric", "last", "best", "rounds", "keep")
_COLUMN = ("words", "set", "rounds", "seconds", "paper", "cell", "runs_of", "values_of")
_ROW = (
    *("config", "set", "in", "tune", "own_values", "values_of", "follow", "only", "rounds", "slower", "paper", "cell"),
    *("runs_of", "counts"),
)


def find_table(name: str) -> Path:
    """The path of a table's file: a path, else among those that fedlit ships."""
    shipped = shipped_tables()
    if name.removesuffix(".yaml") in shipped and not Path(name).is_file():
        return shipped[name.removesuffix(".yaml")]
    if Path(name).is_file():
        return Path(name)
    raise ConfigError(
        f"There is no table '{name}', neither as a file nor among fedlit's own. {nearest(name, shipped)}"
        f"fedlit ships: {', '.join(shipped)}."
    )


def read_table_file(path: Path) -> TableFile:
    """A table, or a ConfigError that names the file, the key and how to mend it."""
    held = read_yaml(str(path))
    if not isinstance(held, dict):
        raise ConfigError(f"{path} holds no keys. Give a table: rounds, seeds, cell, columns, rows.")
    where = path.name
    if "runs" in held:
        return read_other_reading(path, held)
    check_keys(held, _TABLE, where, needed=("title", "rounds", "seeds", "cell", "columns", "rows"))
    columns = {name: read_column(name, one, where) for name, one in named(held, "columns", where, _COLUMN).items()}
    rows = {name: read_row(name, one, where) for name, one in named(held, "rows", where, _ROW).items()}
    table = TableFile(
        path=path,
        title=text(held, "title", where),
        rounds=whole(held, "rounds", where),
        seeds=whole(held, "seeds", where),
        reading=read_reading(held["cell"], f"{where}: cell"),
        options=options(held, "set", where),
        tuning=read_tuning(held["tune"], f"{where}: tune") if "tune" in held else None,
        columns=columns,
        rows=rows,
        paper=text(held, "paper", where) if "paper" in held else None,
        printed=read_printed(held["reading"], f"{where}: reading") if "reading" in held else None,
        notes=read_notes(held.get("notes") or [], where),
        tried={name: text(options(held, "tried", where), name, f"{where}: tried") for name in held.get("tried") or {}},
    )
    check_references(table, where)
    check_readings(table, where)
    table.numbers.update(find_numbers(table, where))
    return table


def read_other_reading(path: Path, held: Mapping[str, Any]) -> TableFile:
    """A table that reads something else off the runs of another one, and prints no number of a paper beside it."""
    where = path.name
    check_keys(held, _OTHER, where, needed=("title", "runs", "cell"))
    try:
        source = read_table_file(find_table(text(held, "runs", where)))
    except ConfigError as error:
        raise ConfigError(f"{where}: runs: {error}") from error
    return replace(
        source,
        path=path,
        title=text(held, "title", where),
        runs=source.runs_name,
        reading=read_reading(held["cell"], f"{where}: cell"),
        columns={name: replace(one, reading={}) for name, one in source.columns.items() if one.runs_of is None},
        rows={name: replace(one, reading={}, paper=None) for name, one in source.rows.items() if one.runs_of is None},
        paper=None,
        printed=None,
        notes=read_notes(held.get("notes") or [], where),
        tried={},
        numbers={},
    )


def read_notes(held: Any, where: str) -> list[str]:
    """Sentences for the page; one with ': ' in it is something else in YAML, unless it is quoted."""
    if not isinstance(held, list):
        raise ConfigError(f"{where}: notes is {held!r}. Give a list of sentences.")
    for note in held:
        if not isinstance(note, str):
            raise ConfigError(f"{where}: notes has {note!r}, which is not a text. Put quotes around a note with ': '.")
    return held


def read_column(name: str, held: Mapping[str, Any], where: str) -> Column:
    """One column."""
    place = f"{where}: columns.{name}"
    check_keys(held, _COLUMN, place, needed=() if "runs_of" in held else ("seconds",))
    return Column(
        name=name,
        words={key: str(value) for key, value in options(held, "words", place).items()},
        options=options(held, "set", place),
        rounds=whole(held, "rounds", place) if "rounds" in held else None,
        seconds=number(held, "seconds", place, 0.0),
        paper={key: str(value) for key, value in options(held, "paper", place).items()},
        reading=read_reading(held.get("cell") or {}, f"{place}.cell"),
        runs_of=text(held, "runs_of", place) if "runs_of" in held else None,
        values_of=text(held, "values_of", place) if "values_of" in held else None,
    )


def read_row(name: str, held: Mapping[str, Any], where: str) -> Row:
    """One row."""
    place = f"{where}: rows.{name}"
    check_keys(held, _ROW, place, needed=() if "runs_of" in held else ("config",))
    grid = options(held, "tune", place)
    for option, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{place}.tune.{option} is {values!r}. Give a list with at least one value.")
    return Row(
        name=name,
        config=text(held, "config", place) if "config" in held else "",
        options=options(held, "set", place),
        per_column={column: options(held["in"], column, f"{place}.in") for column in options(held, "in", place)},
        grid=grid,
        own_values=truth(held, "own_values", place, default=False),
        values_of={key: str(value) for key, value in options(held, "values_of", place).items()},
        follow={key: str(value) for key, value in options(held, "follow", place).items()},
        only=[str(column) for column in held.get("only") or []],
        rounds=whole(held, "rounds", place) if "rounds" in held else None,
        slower=number(held, "slower", place, 1.0),
        paper={key: str(value) for key, value in options(held, "paper", place).items()} if "paper" in held else None,
        reading=read_reading(held.get("cell") or {}, f"{place}.cell"),
        runs_of=text(held, "runs_of", place) if "runs_of" in held else None,
        counts=truth(held, "counts", place, default=True),
    )


def read_reading(held: object, place: str) -> dict[str, Any]:
    """Part of a `Reading`; the whole table's names the metric."""
    if not isinstance(held, dict):
        raise ConfigError(f"{place} is {held!r}. Write it as {{metric: global/acc, last: 10}}.")
    check_keys(held, _READ, place, needed=("metric",) if place.endswith(": cell") else ())
    if "last" in held:
        whole(held, "last", place)
    truth(held, "best", place, default=False)
    return held


def read_printed(held: object, place: str) -> Printed:
    """Which of two readings the paper printed."""
    if not isinstance(held, dict):
        raise ConfigError(f"{place} is {held!r}. Write it as {{paper: best, why: A SENTENCE}}.")
    check_keys(held, _PRINTED, place, needed=_PRINTED)
    if held["paper"] not in PRINTED:
        raise ConfigError(
            f"{place}.paper is {held['paper']!r}. Give best (the best evaluated round of each run) or last (the mean "
            "of the last rounds, as many as cell.last says)."
        )
    return Printed(PRINTED[held["paper"]], " ".join(text(held, "why", place).split()))


def check_readings(table: TableFile, where: str) -> None:
    """Two readings need a metric that has both, and only one place says which is the paper's."""
    if table.printed is None:
        return
    if "best" in table.reading:
        raise ConfigError(f"{where}: cell.best and reading both say how cells are read. Leave out cell.best.")
    for cell in table.cells:
        reading = table.reading_of(cell)
        if reading.domain is not None or reading.weight_of is not None:
            raise ConfigError(
                f"{where}: reading tells the best round from the last ones, but {cell.name} is read as "
                f"{reading.words}. Leave out reading, or let the cell have a metric alone."
            )


def read_tuning(held: object, place: str) -> Tuning:
    """How grids are searched."""
    if not isinstance(held, dict):
        raise ConfigError(f"{place} is {held!r}. Write it as {{seed: 5, metric: val/acc, last: 10}}.")
    check_keys(held, _TUNE, place, needed=("seed", "metric"))
    return Tuning(
        seed=whole(held, "seed", place, least=0),
        metric=text(held, "metric", place),
        last=whole(held, "last", place) if "last" in held else 1,
        rounds=whole(held, "rounds", place) if "rounds" in held else None,
        keep=whole(held, "keep", place) if "keep" in held else Tuning.keep,
        best=truth(held, "best", place, default=False),
    )


def check_references(table: TableFile, where: str) -> None:
    """Names that stand for something else in the file, and configs, exist."""
    for row in table.rows.values():
        place = f"{where}: rows.{row.name}"
        places = (*row.values_of, *row.values_of.values())
        for key, names in (("only", row.only), ("in", row.per_column), ("values_of", places)):
            for name in names:
                known_name(name, table.columns, f"{place}.{key}", "column")
        if row.runs_of is not None:
            known_name(row.runs_of, table.rows, f"{place}.runs_of", "row")
        if row.grid and table.tuning is None:
            raise ConfigError(f"{place}.tune has a grid, but {where} does not say how: add tune: {{seed, metric}}.")
    for name in table.tried:
        known_name(name, [*(cell.name for cell in table.cells), *table.rows, *table.columns], f"{where}: tried", "cell")
    for column in table.columns.values():
        for key, other in (("runs_of", column.runs_of), ("values_of", column.values_of)):
            if other is not None:
                known_name(other, table.columns, f"{where}: columns.{column.name}.{key}", "column")
    if table.tuning is not None and table.tuning.seed < table.seeds:
        raise ConfigError(
            f"{where}: tune.seed is {table.tuning.seed}, with which the table runs too (0 to {table.seeds - 1}). Give "
            "another, so that no run is reported that has chosen its own values."
        )
    for cell in {table.source(cell).name: table.source(cell) for cell in table.cells}.values():
        check_config(cell, where)
        check_followed(table, cell, where)
    slugs = [cell.slug for cell in table.cells]
    twice = [cell.name for cell in table.cells if slugs.count(cell.slug) > 1]
    if twice:
        raise ConfigError(f"{where}: {' and '.join(twice)} would have the same folders. Give them other names.")


def check_config(cell: Cell, where: str) -> None:
    """The config of a cell exists."""
    try:
        find_config(cell.config)
    except KeyError as error:
        raise ConfigError(
            f"{where}: rows.{cell.row.name}.config is '{cell.row.config}', but columns.{cell.column.name}.words has no "
            f"{error}."
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{where}: rows.{cell.row.name}.config: {error}") from error


def check_followed(table: TableFile, cell: Cell, where: str) -> None:
    """What another option takes its value from is set or searched."""
    row = cell.row
    given = {
        **table.options,
        **cell.column.options,
        **row.options,
        **row.per_column.get(cell.column.name, {}),
        **row.grid,
    }
    for name, source in row.follow.items():
        if source not in given:
            raise ConfigError(
                f"{where}: rows.{row.name}.follow.{name} names {source}, which is neither set nor searched in "
                f"the column {cell.column.name}. Add it to set or tune."
            )


def find_numbers(table: TableFile, where: str) -> dict[str, PaperRow]:
    """The paper's number of every cell whose row has one."""
    found: dict[str, PaperRow] = {}
    tables: dict[str, Sequence[PaperRow]] = {}
    for cell in table.cells:
        if cell.row.paper is None:
            continue
        fields = {**cell.column.paper, **cell.row.paper}
        name = fields.pop("table", None) or table.paper
        place = f"{where}: rows.{cell.row.name}.paper"
        if name is None:
            raise ConfigError(f"{place}: nothing says which table. Add paper: NAME to {where}.")
        try:
            tables[name] = rows = tables[name] if name in tables else read_table(name).rows
        except ConfigError as error:
            raise ConfigError(f"{where}: paper: {str(error).removeprefix('--against ')}") from error
        alike = [
            row for row in rows if all(key in row.fields and agree(row.fields[key], fields[key]) for key in fields)
        ]
        if len(alike) != 1:
            asked = ", ".join(f"{key} {value}" for key, value in fields.items())
            raise ConfigError(
                f"{place} in the column {cell.column.name}: {len(alike)} numbers of {name} have {asked}. Name the "
                f"columns that tell one number: {', '.join(rows[0].fields)}."
            )
        found[cell.name] = alike[0]
    return found
