"""A paper's table as a file: what it says, what is refused, and that all that ship are whole."""

import re
from pathlib import Path
from typing import Any

import pytest

from fedlit.config.files import shipped_tables
from fedlit.errors import ConfigError
from fedlit.experiments.reproduce.reading import Reading, value_of
from fedlit.experiments.reproduce.runs import Reproduction
from fedlit.experiments.reproduce.table import TableFile, choose_cells
from fedlit.experiments.reproduce.table_file import find_table, read_table_file
from fedlit.experiments.trials import TrialLog
from fedlit.results.runs import read_run
from tests.conftest import Call
from tests.experiments.reproduce.tables import SEARCH, TINY, make_table, write_table
from tests.real_files import Real

ROW = TINY["rows"]["FedAvg"]
BEST = {"paper": "best", "why": "Its spread is small."}
COLUMN = TINY["columns"]["E=1"]
SHIPPED = list(shipped_tables().values())


def whole(table: TableFile) -> Reproduction:
    return Reproduction(table, table.cells, table.seeds, table.rounds, TrialLog(Path("reproduce.json"), {}))


def cell_named(table: TableFile, name: str) -> Any:
    return next(cell for cell in table.cells if cell.name == name)


def test_options_come_from_table_column_row_and_cell_and_the_last_word_is_the_grids(tmp_path: Path) -> None:
    row = ROW | {
        "set": {"model.lr": 0.1, "model.momentum": 0.0},
        "in": {"E=5": {"model.lr": 0.2}},
        "tune": {"model.batch_size": [10, 20]},
        "follow": {"model.clip": "model.lr"},
    }
    table = make_table(tmp_path, rows={"a": row}, set={"model.lr": 0.3, "data.seed": 1}, tune=SEARCH)
    first, second = (table.arguments(cell, {"model.batch_size": 10}, 3, 7) for cell in table.cells)
    assert first == (
        *("--config", "synthetic_fedavg.yaml", "--trainer.rounds=7", "--model.lr=0.1", "--data.seed=1"),
        *("--model.local_epochs=1", "--model.momentum=0.0", "--model.batch_size=10", "--model.clip=0.1"),
        "--seed_everything=3",
    )
    assert {"--model.lr=0.2", "--model.clip=0.2", "--model.local_epochs=5"} < set(second)


def test_values_are_written_as_the_command_line_reads_them(tmp_path: Path) -> None:
    given = {"a": True, "b": [1, 2], "c": {"class_path": "X"}, "d": None, "e": 1e-7, "f": "text"}
    table = make_table(tmp_path, set=given)
    words = table.arguments(table.cells[0], {}, 0, 1)
    assert {"--a=true", "--b=[1, 2]", '--c={"class_path": "X"}', "--d=null", "--e=1e-07", "--f=text"} < set(words)


def test_a_column_says_which_config_with_a_word(tmp_path: Path) -> None:
    columns = {name: COLUMN | {"words": {"data": name}} for name in ("synthetic", "mnist")}
    table = make_table(tmp_path, columns=columns, rows={"a": {"config": "{data}_fedavg.yaml"}})
    assert [cell.config for cell in table.cells] == ["synthetic_fedavg.yaml", "mnist_fedavg.yaml"]


def test_the_papers_number_is_found_by_row_and_column_and_is_in_our_unit(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    assert table.paper_number(cell_named(table, "FedBC:E=5")) == pytest.approx((0.8748, 0.0018))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ([], ["FedAvg:E=1", "FedBC:E=1", "FedAvg:E=5", "FedBC:E=5"]),
        (["FedBC"], ["FedBC:E=1", "FedBC:E=5"]),
        (["E=5"], ["FedAvg:E=5", "FedBC:E=5"]),
        (["FedBC:E=5", "FedAvg:E=1"], ["FedAvg:E=1", "FedBC:E=5"]),
    ],
)
def test_cells_are_chosen_by_row_by_column_or_by_both(tmp_path: Path, asked: list[str], found: list[str]) -> None:
    assert [cell.name for cell in choose_cells(make_table(tmp_path), asked)] == found


def test_a_cell_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--cells FedBC:E=2: tiny has no such cell. Did you mean 'FedBC:E=\d'\?"):
        choose_cells(make_table(tmp_path), ["FedBC:E=2"])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rows": None}, "tiny.yaml lacks 'rows'"),
        ({"rowz": {}}, "tiny.yaml: 'rowz' is not a key here. Did you mean 'rows'?"),
        ({"rounds": 0}, "tiny.yaml: rounds is 0. Give a whole number, 1 or more."),
        ({"seeds": "five"}, "tiny.yaml: seeds is 'five'. Give a whole number"),
        ({"cell": {"last": 3}}, "tiny.yaml: cell lacks 'metric'"),
        ({"cell": {"metric": "a", "last": 0}}, "tiny.yaml: cell: last is 0"),
        ({"cell": {"metric": "a", "best": 1}}, "tiny.yaml: cell.best is 1. Give true or false."),
        ({"set": ["model.lr"]}, "tiny.yaml.set is ['model.lr']. Give names with their values"),
        ({"columns": {"a": {}}}, "tiny.yaml: columns.a lacks 'seconds'"),
        ({"columns": {"a:b": COLUMN}}, "columns has the name 'a:b'"),
        ({"columns": {"a": COLUMN | {"seconds": -1}}}, "columns.a: seconds is -1"),
        ({"columns": {"a": COLUMN, "b": {"runs_of": "c"}}}, "columns.b.runs_of names the column 'c'"),
        ({"columns": {"a": COLUMN | {"values_of": "c"}}}, "columns.a.values_of names the column 'c'"),
        ({"rows": {"a": {}}}, "tiny.yaml: rows.a lacks 'config'"),
        ({"rows": {"a": 3}}, "rows.a is 3"),
        ({"rows": {"a": ROW | {"tune": {"model.lr": 1}}}}, "rows.a.tune.model.lr is 1. Give a list"),
        ({"rows": {"a": ROW | {"tune": {"model.lr": [1]}}}}, "rows.a.tune has a grid, but tiny.yaml does not say how"),
        ({"rows": {"a": ROW | {"only": ["E=2"]}}}, "rows.a.only names the column 'E=2', which is not in the file."),
        ({"rows": {"a": ROW | {"follow": {"model.l2": "model.lr"}}}}, "rows.a.follow.model.l2 names model.lr, which"),
        ({"rows": {"a": ROW | {"runs_of": "b"}}}, "rows.a.runs_of names the row 'b'"),
        ({"rows": {"a": {"config": "synthetic_fedavgg.yaml"}}}, "rows.a.config: There is no config"),
        ({"rows": {"a": {"config": "{data}.yaml"}}}, "columns.E=1.words has no 'data'"),
        ({"rows": {"a": ROW | {"paper": {"algorithm": "FedAvgg"}}}}, "0 numbers of fedbc_table1_synthetic_global have"),
        ({"rows": {"a": ROW, "a/": ROW}, "columns": {"b": COLUMN, "_b": COLUMN}}, None),
        ({"rows": {"a b": ROW, "a_b": ROW}}, "a b:E=1 and a_b:E=1 and a b:E=5 and a_b:E=5 would have the same folders"),
        ({"paper": "fedbc_table"}, "tiny.yaml: paper: fedbc_table is neither a file nor a table"),
        ({"tune": SEARCH | {"seed": 1}}, "tune.seed is 1, with which the table runs too (0 to 1)"),
        ({"tune": {"seed": 5}}, "tiny.yaml: tune lacks 'metric'"),
        ({"rows": {"a": ROW | {"own_values": 1}}}, "rows.a.own_values is 1. Give true or false."),
        ({"tune": SEARCH | {"best": "yes"}}, "tiny.yaml: tune.best is 'yes'. Give true or false."),
        ({"rows": {"a": ROW | {"values_of": {"E=1": "E=2"}}}}, "rows.a.values_of names the column 'E=2'"),
        ({"rows": {"a": ROW | {"values_of": {"E=2": "E=1"}}}}, "rows.a.values_of names the column 'E=2'"),
        ({"reading": "best"}, "tiny.yaml: reading is 'best'. Write it as {paper: best, why: A SENTENCE}."),
        (
            {"reading": BEST | {"paper": "median"}},
            "tiny.yaml: reading.paper is 'median'. Give best (the best evaluated",
        ),
        ({"reading": {"paper": "best"}}, "tiny.yaml: reading lacks 'why'"),
        ({"reading": BEST, "cell": {"metric": "a", "best": True}}, "cell.best and reading both say how cells are read"),
        (
            {"reading": BEST, "cell": {"metric": "a", "domain": "usps"}},
            "but FedAvg:E=1 is read as accuracy in the domain",
        ),
        ({"tried": {"FedBCC": "More rounds."}}, "tiny.yaml: tried names the cell 'FedBCC', which is not in the file."),
        ({"tried": {"FedBC": 3}}, "tiny.yaml: tried: FedBC is 3. Give a text."),
        ({"notes": "one"}, "tiny.yaml: notes is 'one'. Give a list of sentences."),
        ({"notes": ["one", {"two": "three"}]}, "notes has {'two': 'three'}, which is not a text. Put quotes around"),
    ],
)
def test_a_damaged_file_is_refused_with_its_name_and_the_key(
    tmp_path: Path, keys: dict[str, Any], said: str | None
) -> None:
    path = write_table(tmp_path, **keys)
    if said is None:
        assert read_table_file(path).cells
        return
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_table_file(path)


def test_a_row_may_say_where_its_values_are_searched_in_some_columns(tmp_path: Path) -> None:
    columns = {"a": COLUMN} | {name: COLUMN | {"values_of": "a"} for name in ("b", "c")}
    rows = {"alike": ROW, "apart": ROW | {"values_of": {"b": "b"}}, "own": ROW | {"own_values": True}}
    table = make_table(tmp_path, columns=columns, rows=rows)
    searched = {name: [table.search_of(cell_named(table, f"{name}:{c}")).column.name for c in "abc"] for name in rows}
    assert searched == {"alike": ["a", "a", "a"], "apart": ["a", "b", "a"], "own": ["a", "b", "c"]}


def test_a_cell_has_the_reading_that_the_paper_printed_and_the_other_one_beside_it(tmp_path: Path) -> None:
    rows = {"a": ROW, "b": ROW | {"cell": {"best": False}}}
    table = make_table(tmp_path, rows=rows, reading=BEST, columns={"E=1": COLUMN})
    best, last = Reading("global/acc", 2, best=True), Reading("global/acc", 2)
    assert [table.reading_of(cell) for cell in table.cells] == [best, last]
    assert [table.second_reading_of(cell) for cell in table.cells] == [last, best]
    assert table.printed is not None
    assert table.printed.why == "Its spread is small."
    plain = make_table(tmp_path)
    assert {plain.second_reading_of(cell) for cell in plain.cells} == {None}


def test_what_was_tried_is_found_for_the_cell_then_its_row_then_its_column(tmp_path: Path) -> None:
    table = make_table(tmp_path, tried={"FedBC:E=1": "cell", "FedBC": "row", "E=1": "column"})
    found = {cell.name: table.tried_for(cell) for cell in table.cells}
    assert found == {"FedAvg:E=1": "column", "FedBC:E=1": "cell", "FedAvg:E=5": None, "FedBC:E=5": "row"}


def test_a_table_may_read_something_else_off_the_runs_of_another(tmp_path: Path) -> None:
    local = {"runs_of": "FedBC", "cell": {"metric": "local/acc"}}
    source = make_table(tmp_path, rows=TINY["rows"] | {"local": local}, reading=BEST, tried={"FedBC": "More rounds."})
    other = tmp_path / "variance.yaml"
    other.write_text(f"title: Variance\nruns: {source.path}\ncell: {{metric: users/acc_var, last: 2}}\n")
    table = read_table_file(other)
    assert (table.name, table.runs_name, source.runs_name) == ("variance", "tiny", "tiny")
    assert [cell.name for cell in table.cells] == ["FedAvg:E=1", "FedBC:E=1", "FedAvg:E=5", "FedBC:E=5"]
    assert {table.reading_of(cell) for cell in table.cells} == {Reading("users/acc_var", 2)}
    assert {table.paper_number(cell) for cell in table.cells} == {None}
    assert (table.printed, table.tried, table.numbers) == (None, {}, {})
    assert table.arguments(table.cells[0], {}, 0, 2) == source.arguments(source.cells[0], {}, 0, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title: V\nruns: tinny\ncell: {metric: a}", "v.yaml: runs: There is no table 'tinny'"),
        ("title: V\nruns: tiny.yaml", "v.yaml lacks 'cell'"),
        ("title: V\nruns: tiny.yaml\ncell: {metric: a}\nrounds: 3", "v.yaml: 'rounds' is not a key here."),
        ("title: V\nruns: tiny.yaml\ncell: {last: 3}", "v.yaml: cell lacks 'metric'"),
    ],
)
def test_a_damaged_file_that_reads_the_runs_of_another_is_refused(workplace: Path, text: str, said: str) -> None:
    write_table(workplace)
    (workplace / "v.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_table_file(workplace / "v.yaml")


def test_an_unknown_table_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="There is no table 'fedbc_table99'.*Did you mean 'fedbc_table"):
        find_table("fedbc_table99")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_table_is_whole_and_every_row_and_column_is_taken_by_fit(path: Path) -> None:
    table = read_table_file(path)
    assert path.read_text().startswith("# ")
    whole(table).check()


SEARCHED = {
    "FedAvg": {"model.lr"},
    "FedBC": {"model.lr", "model.dual_lr", "model.tolerance_lr"},
}
"""Rates that the shipped configs on MNIST and CIFAR-10 may take from a search on validation data."""


@pytest.mark.parametrize("name", ["fedbc_table2_3", "fedbc_table6", "fedbc_table7", "fedbc_table8"])
@pytest.mark.parametrize("row", SEARCHED)
def test_fedbcs_image_tables_give_the_rates_themselves_that_their_configs_may_search(name: str, row: str) -> None:
    table = read_table_file(find_table(name))
    cells = [cell for cell in table.cells if cell.row.name == row]
    assert cells
    for cell in cells:
        given = {word.removeprefix("--").split("=")[0] for word in table.arguments(cell, cell.points()[0], 0, 1)}
        assert given >= SEARCHED[row]


GENERATED = [
    (path, cell.name)
    for path in SHIPPED
    if path.stem in ("fedbc_table1", "pfedme_table1")
    for cell in read_table_file(path).cells
    if cell.column.name in ("E=1", "Synthetic")
]


@pytest.mark.parametrize(("path", "name"), GENERATED, ids=[f"{path.stem}-{name}" for path, name in GENERATED])
def test_a_cell_on_generated_data_has_its_number_after_a_round(path: Path, name: str, call: Call) -> None:
    table = read_table_file(path)
    cell = cell_named(table, name)
    source = table.source(cell)
    arguments = table.arguments(source, source.points()[0], 0, 1)
    quick = "--data.num_clients 4 --trainer.clients_per_round 2 --data.size_sigma 0 --data.size_min 12"
    answer = call(f"fit {' '.join(arguments)} {quick} --trainer.engine sequential --run run")
    assert answer.code == 0, answer
    value = value_of(read_run(Path("run")), table.reading_of(cell))
    assert value is not None
    assert 0 <= value <= 1


def test_the_weight_of_a_group_is_the_mean_of_its_clients_and_all_of_a_round_are_one(call: Call, real: Real) -> None:
    """Exp-α's figure 2, with two flipped clients of six in each of two rounds."""
    table = read_table_file(find_table("expalpha_figure2"))
    cells = {kind: cell_named(table, f"weight of {kind}:2 of 6 all classes") for kind in ("clean", "flipped")}
    words = table.arguments(table.source(cells["clean"]), {}, 0, 2)
    quick = "--model.local_steps 2 --data.fresh.samples 256 --trainer.eval_every 1 --trainer.engine sequential"
    answer = call(f"fit {' '.join(words)} {quick} --data.root {real('cifar10', 'cifar-10-batches-py')} --run run")
    assert answer.code == 0, answer
    run = read_run(Path("run"))
    clean, flipped = (value_of(run, table.reading_of(cell)) for cell in cells.values())
    assert clean is not None
    assert flipped is not None
    assert 4 * clean + 2 * flipped == pytest.approx(1)
    assert clean != pytest.approx(flipped, rel=1e-6)
    assert value_of(run, Reading("global/acc", weight_of="ratio 1")) is None
