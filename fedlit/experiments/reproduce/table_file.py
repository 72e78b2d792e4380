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
    content = read_yaml(str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no keys. Give a table: rounds, seeds, cell, columns, rows.")
    where = path.name
    if "runs" in content:
        return read_other_reading(path, content)
    check_keys(content, _TABLE, where, needed=("title", "rounds", "seeds", "cell", "columns", "rows"))
    columns = {name: read_column(name, one, where) for name, one in named(content, "columns", where, _COLUMN).items()}
    rows = {name: read_row(name, one, where) for name, one in named(content, "rows", where, _ROW).items()}
    table = TableFile(
        path=path,
        title=text(content, "title", where),
        rounds=whole(content, "rounds", where),
        seeds=whole(content, "seeds", where),
        reading=read_reading(content["cell"], f"{where}: cell"),
        options=options(content, "set", where),
        tuning=read_tuning(content["tune"], f"{where}: tune") if "tune" in content else None,
        columns=columns,
        rows=rows,
        paper=text(content, "paper", where) if "paper" in content else None,
        printed=read_printed(content["reading"], f"{where}: reading") if "reading" in content else None,
        notes=read_notes(content.get("notes") or [], where),
        tried={
            name: text(options(content, "tried", where), name, f"{where}: tried") for name in content.get("tried") or {}
        },
    )
    check_references(table, where)
    check_readings(table, where)
    table.numbers.update(find_numbers(table, where))
    return table


def read_other_reading(path: Path, content: Mapping[str, Any]) -> TableFile:
    """A table that reads something else off the runs of another one, and prints no number of a paper beside it."""
    where = path.name
    check_keys(content, _OTHER, where, needed=("title", "runs", "cell"))
    try:
        source = read_table_file(find_table(text(content, "runs", where)))
    except ConfigError as error:
        raise ConfigError(f"{where}: runs: {error}") from error
    return replace(
        source,
        path=path,
        title=text(content, "title", where),
        runs=source.runs_name,
        reading=read_reading(content["cell"], f"{where}: cell"),
        columns={name: replace(one, reading={}) for name, one in source.columns.items() if one.runs_of is None},
        rows={name: replace(one, reading={}, paper=None) for name, one in source.rows.items() if one.runs_of is None},
        paper=None,
        printed=None,
        notes=read_notes(content.get("notes") or [], where),
        tried={},
        numbers={},
    )


def read_notes(notes: Any, where: str) -> list[str]:
    """Sentences for the page; one with ': ' in it is something else in YAML, unless it is quoted."""
    if not isinstance(notes, list):
        raise ConfigError(f"{where}: notes is {notes!r}. Give a list of sentences.")
    for note in notes:
        if not isinstance(note, str):
            raise ConfigError(f"{where}: notes has {note!r}, which is not a text. Put quotes around a note with ': '.")
    return notes


def read_column(name: str, section: Mapping[str, Any], where: str) -> Column:
    """One column."""
    here = f"{where}: columns.{name}"
    check_keys(section, _COLUMN, here, needed=() if "runs_of" in section else ("seconds",))
    return Column(
        name=name,
        words={key: str(value) for key, value in options(section, "words", here).items()},
        options=options(section, "set", here),
        rounds=whole(section, "rounds", here) if "rounds" in section else None,
        seconds=number(section, "seconds", here, 0.0),
        paper={key: str(value) for key, value in options(section, "paper", here).items()},
        reading=read_reading(section.get("cell") or {}, f"{here}.cell"),
        runs_of=text(section, "runs_of", here) if "runs_of" in section else None,
        values_of=text(section, "values_of", here) if "values_of" in section else None,
    )


def read_row(name: str, section: Mapping[str, Any], where: str) -> Row:
    """One row."""
    here = f"{where}: rows.{name}"
    check_keys(section, _ROW, here, needed=() if "runs_of" in section else ("config",))
    grid = options(section, "tune", here)
    for option, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{here}.tune.{option} is {values!r}. Give a list with at least one value.")
    return Row(
        name=name,
        config=text(section, "config", here) if "config" in section else "",
        options=options(section, "set", here),
        per_column={column: options(section["in"], column, f"{here}.in") for column in options(section, "in", here)},
        grid=grid,
        own_values=truth(section, "own_values", here, default=False),
        values_of={key: str(value) for key, value in options(section, "values_of", here).items()},
        follow={key: str(value) for key, value in options(section, "follow", here).items()},
        only=[str(column) for column in section.get("only") or []],
        rounds=whole(section, "rounds", here) if "rounds" in section else None,
        slower=number(section, "slower", here, 1.0),
        paper={key: str(value) for key, value in options(section, "paper", here).items()}
        if "paper" in section
        else None,
        reading=read_reading(section.get("cell") or {}, f"{here}.cell"),
        runs_of=text(section, "runs_of", here) if "runs_of" in section else None,
        counts=truth(section, "counts", here, default=True),
    )


def read_reading(section: object, where: str) -> dict[str, Any]:
    """Part of a `Reading`; the whole table's names the metric."""
    if not isinstance(section, dict):
        raise ConfigError(f"{where} is {section!r}. Write it as {{metric: global/acc, last: 10}}.")
    check_keys(section, _READ, where, needed=("metric",) if where.endswith(": cell") else ())
    if "last" in section:
        whole(section, "last", where)
    truth(section, "best", where, default=False)
    return section


def read_printed(section: object, where: str) -> Printed:
    """Which of two readings the paper printed."""
    if not isinstance(section, dict):
        raise ConfigError(f"{where} is {section!r}. Write it as {{paper: best, why: A SENTENCE}}.")
    check_keys(section, _PRINTED, where, needed=_PRINTED)
    if section["paper"] not in PRINTED:
        raise ConfigError(
            f"{where}.paper is {section['paper']!r}. Give best (the best evaluated round of each run) or last (the "
            "mean of the last rounds, as many as cell.last says)."
        )
    return Printed(PRINTED[section["paper"]], " ".join(text(section, "why", where).split()))


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


def read_tuning(section: object, where: str) -> Tuning:
    """How grids are searched."""
    if not isinstance(section, dict):
        raise ConfigError(f"{where} is {section!r}. Write it as {{seed: 5, metric: val/acc, last: 10}}.")
    check_keys(section, _TUNE, where, needed=("seed", "metric"))
    return Tuning(
        seed=whole(section, "seed", where, least=0),
        metric=text(section, "metric", where),
        last=whole(section, "last", where) if "last" in section else 1,
        rounds=whole(section, "rounds", where) if "rounds" in section else None,
        keep=whole(section, "keep", where) if "keep" in section else Tuning.keep,
        best=truth(section, "best", where, default=False),
    )


def check_references(table: TableFile, where: str) -> None:
    """Names that stand for something else in the file, and configs, exist."""
    for row in table.rows.values():
        here = f"{where}: rows.{row.name}"
        places = (*row.values_of, *row.values_of.values())
        for key, names in (("only", row.only), ("in", row.per_column), ("values_of", places)):
            for name in names:
                known_name(name, table.columns, f"{here}.{key}", "column")
        if row.runs_of is not None:
            known_name(row.runs_of, table.rows, f"{here}.runs_of", "row")
        if row.grid and table.tuning is None:
            raise ConfigError(f"{here}.tune has a grid, but {where} does not say how: add tune: {{seed, metric}}.")
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
    settings = {
        **table.options,
        **cell.column.options,
        **row.options,
        **row.per_column.get(cell.column.name, {}),
        **row.grid,
    }
    for name, source in row.follow.items():
        if source not in settings:
            raise ConfigError(
                f"{where}: rows.{row.name}.follow.{name} names {source}, which is neither set nor searched in "
                f"the column {cell.column.name}. Add it to set or tune."
            )


def find_numbers(table: TableFile, where: str) -> dict[str, PaperRow]:
    """The paper's number of every cell whose row has one."""
    numbers: dict[str, PaperRow] = {}
    tables: dict[str, Sequence[PaperRow]] = {}
    for cell in table.cells:
        if cell.row.paper is None:
            continue
        fields = {**cell.column.paper, **cell.row.paper}
        name = fields.pop("table", None) or table.paper
        here = f"{where}: rows.{cell.row.name}.paper"
        if name is None:
            raise ConfigError(f"{here}: nothing says which table. Add paper: NAME to {where}.")
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
                f"{here} in the column {cell.column.name}: {len(alike)} numbers of {name} have {asked}. Name the "
                f"columns that tell one number: {', '.join(rows[0].fields)}."
            )
        numbers[cell.name] = alike[0]
    return numbers
