"""`fedlit reproduce` as a user calls it: the table it prints is what its runs hold, and a kill changes nothing."""

import json
import math
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedlit.config.files import shipped_tables
from fedlit.experiments.reproduce.reading import Reading
from fedlit.experiments.reproduce.result import Result, kendall
from fedlit.experiments.reproduce.table import Cell
from fedlit.results.runs import read_run
from tests.conftest import Call
from tests.experiments.reproduce.tables import SEARCH, TINY, make_reproduction, make_table, write_table
from tests.experiments.sweep.sweeps import answer_of
from tests.forked import forked

Refusal = Callable[..., str]
SECONDS = 300


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all runs of the tiny table, each made by the command that its job names."""
    folder = tmp_path_factory.mktemp("made")
    for job in make_reproduction(folder).jobs():
        assert job is not None
        answer = answer_of(f"{job.command.removeprefix('fedlit ')} --wandb disabled --run {job.folder}")
        assert answer.code == 0, answer
    return folder / "out"


@pytest.fixture
def here(made: Path, workplace: Path) -> Path:
    """A copy of it in the working folder, with the table's file."""
    shutil.copytree(made, workplace / "out")
    write_table(workplace)
    return workplace


def last_two(run: Path) -> float:
    """The mean of the last two values of global/acc in metrics.csv, by hand."""
    lines = (run / "metrics.csv").read_text().splitlines()
    place = lines[0].split(",").index("global/acc")
    return statistics.fmean(float(line.split(",")[place]) for line in lines[-2:])


def rows_of(page: str) -> dict[str, list[str]]:
    """Row and column -> the other fields of the page's table."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    return {f"{fields[0]}:{fields[1]}": fields[2:] for fields in lines}


def test_the_table_holds_what_the_runs_hold_and_nothing_is_run_again(call: Call, here: Path) -> None:
    answer = call("reproduce tiny.yaml --out out")
    assert answer.code == 0, answer
    assert not list(here.glob("out/*.log")), "all runs were there"
    shown = rows_of((here / "out" / "page.md").read_text())
    assert list(shown) == ["FedAvg:E=1", "FedBC:E=1", "FedAvg:E=5", "FedBC:E=5"]
    for cell, (found, paper, ours, n, difference, within) in shown.items():
        row, column = cell.split(":")
        values = [100 * last_two(here / "out" / f"{column}-{row}-seed{seed}") for seed in (0, 1)]
        mean, std = statistics.fmean(values), statistics.stdev(values)
        printed, spread = (float(number) for number in paper.split(" ± "))
        assert ours == f"{mean:.2f} ± {std:.2f}"
        assert difference == f"{mean - printed:+.2f}".replace("-", "−")
        assert within == ("yes" if abs(mean - printed) <= 2 * math.hypot(std, spread) else "no")
        assert (found, n) == ("as in the config", "2")
        assert ours in answer.out
    assert shown["FedBC:E=5"][1] == "87.48 ± 0.18"
    yes = sum(fields[-1] == "yes" for fields in shown.values())
    assert f"{yes} of 4 cells lie within both spreads" in answer.out
    assert "Kendall's τ: E=1" in answer.out


def test_the_page_has_the_command_of_every_cell_and_goes_where_it_is_asked_to(call: Call, here: Path) -> None:
    call("reproduce tiny.yaml --out out --page docs/results/tiny.md")
    page = (here / "docs" / "results" / "tiny.md").read_text()
    assert page == (here / "out" / "page.md").read_text()
    lines = [line.partition("  # ") for line in page.splitlines() if line.startswith("fedlit fit")]
    commands, cells = [command for command, _, _ in lines], [cell for _, _, cell in lines]
    firsts = {name: 100 * last_two(here / "out" / f"{name}-seed0") for name in ("E=1-FedAvg", "E=1-FedBC")}
    assert cells[:2] == [f"FedAvg:E=1 {firsts['E=1-FedAvg']:.2f}", f"FedBC:E=1 {firsts['E=1-FedBC']:.2f}"]
    assert len(commands) == 4
    answer = call(f"{commands[0].removeprefix('fedlit ')} --run alone")
    assert answer.code == 0, answer
    assert read_run(Path("alone")).final("global/acc") == read_run(Path("out/E=1-FedAvg-seed0")).final("global/acc")


def test_a_run_that_two_cells_read_has_one_command_and_the_page_says_how_each_is_read(call: Call, here: Path) -> None:
    rows = TINY["rows"] | {"loss": {"runs_of": "FedBC", "cell": {"metric": "global/loss"}}}
    write_table(here, rows=rows)
    assert call("reproduce tiny.yaml --out out").code == 0
    page = (here / "out" / "page.md").read_text()
    assert page.count("\nfedlit fit") == 4
    assert "; loss:E=1 " in page
    assert "global/acc, mean of the last 2 evaluated rounds (FedAvg, FedBC); global/loss, mean" in page


def test_some_cells_and_seeds_are_a_part_of_the_table_and_the_page_says_so(call: Call, here: Path) -> None:
    answer = call("reproduce tiny.yaml --out out --cells FedBC:E=5,FedAvg:E=1 --seeds 1")
    assert answer.code == 0, answer
    page = (here / "out" / "page.md").read_text()
    assert list(rows_of(page)) == ["FedAvg:E=1", "FedBC:E=5"]
    assert {fields[3] for fields in rows_of(page).values()} == {"1"}
    assert "Scaled: 1 run a cell instead of 2, 2 of 4 cells left out." in page
    assert "\nfedlit reproduce tiny --cells FedAvg:E=1,FedBC:E=5 --seeds 1\n" in page


def test_the_command_of_a_page_names_a_whole_row_once(call: Call, here: Path) -> None:
    assert call("reproduce tiny.yaml --out out --cells FedBC,FedAvg:E=1 --seeds 1").code == 0
    assert "\nfedlit reproduce tiny --cells FedAvg:E=1,FedBC --seeds 1\n" in (here / "out" / "page.md").read_text()


def test_show_prints_what_is_finished_and_runs_nothing(call: Call, here: Path) -> None:
    call("reproduce tiny.yaml --out out")
    shutil.rmtree(here / "out" / "E=5-FedBC-seed1")
    answer = call("reproduce tiny.yaml --out out --show")
    assert answer.code == 0
    assert "Fewer numbers than runs were asked for: FedBC:E=5." in answer.out
    assert not (here / "out" / "E=5-FedBC-seed1").exists()


def test_a_run_that_lacks_the_number_is_no_failure_and_other_cells_read_it(call: Call, here: Path) -> None:
    columns = {"E=1": TINY["columns"]["E=1"] | {"cell": {"metric": "rounds_to/0.99"}, "paper": {}}}
    columns["also"] = {"runs_of": "E=1", "cell": {"metric": "local/acc"}}
    write_table(here, columns=columns, rows={"FedAvg": {"config": "synthetic_fedavg.yaml"}})
    answer = call("reproduce tiny.yaml --out out")
    assert answer.code == 0, answer
    shown = rows_of((here / "out" / "page.md").read_text())
    assert shown["FedAvg:E=1"][1:5] == ["—", "—", "0", "—"]
    assert shown["FedAvg:also"][3] == "2"


def test_a_table_without_a_paper_is_a_grid_whose_best_numbers_are_bold(call: Call, here: Path) -> None:
    columns = {name: {key: one[key] for key in ("set", "seconds")} for name, one in TINY["columns"].items()}
    columns["loss"] = {"runs_of": "E=1", "cell": {"metric": "global/loss", "last": 1}}
    fedbc = {"config": "synthetic_fedbc.yaml", "set": {"model.lr": 0.1}, "only": ["E=1", "loss"]}
    write_table(here, paper=None, columns=columns, rows={"FedAvg": {"config": "synthetic_fedavg.yaml"}, "FedBC": fedbc})
    answer = call("reproduce tiny.yaml --out out")
    assert answer.code == 0, answer
    lines = [line for line in (here / "out" / "page.md").read_text().splitlines() if line.startswith("|")]
    assert lines[:2] == ["|  | E=1 | E=5 | loss |", "| --- | ---: | ---: | ---: |"]
    table = {name: cells for name, *cells in (line.strip("| ").split(" | ") for line in lines[2:])}
    means = {
        row: [statistics.fmean(last_two(here / "out" / f"E=1-{row}-seed{seed}") for seed in (0, 1)), table[row][0]]
        for row in ("FedAvg", "FedBC")
    }
    best = max(means, key=lambda row: means[row][0])
    assert all(text.startswith("**") == (row == best) for row, (_, text) in means.items())
    assert table["FedBC"][1] == "—"
    assert sum(cells[2].startswith("**") for cells in table.values()) == 1, "the lowest loss"


def test_a_summary_counts_what_the_pages_in_a_folder_came_to(call: Call, here: Path) -> None:
    call("reproduce tiny.yaml --out out --page pages/tiny.md")
    shown = rows_of((here / "out" / "page.md").read_text())
    yes = sum(fields[-1] == "yes" for fields in shown.values())
    shutil.rmtree(here / "out" / "E=5-FedBC-seed1")  # the page stands without its runs
    for folder in ("pages", "."):  # beside the page; in the folder of the runs, in a folder
        answer = call(f"reproduce summary --out {folder} --page pages/summary.md")
        assert answer.code == 0, answer
        page = (here / "pages" / "summary.md").read_text()
        assert f"**{yes} of 4 cells with a known spread lie within both.**" in page
        assert page.count("| [tiny](tiny.md) | 4 of 4 | – | 4 |") == 1


READINGS = {"reading": {"paper": "best", "why": "Its spread is small."}, "tried": {"FedAvg": "More rounds."}}


def accuracies(run: Path) -> list[float]:
    """global/acc after each round, in percent."""
    rounds, values = read_run(run).series("global/acc")
    return [100 * value for done, value in zip(rounds, values, strict=True) if done > 0]


def test_two_readings_stand_side_by_side_and_the_papers_is_compared(call: Call, here: Path) -> None:
    write_table(here, **READINGS)
    answer = call("reproduce tiny.yaml --out out --page pages/tiny.md")
    assert answer.code == 0, answer
    assert not list(here.glob("out/*.log")), "all runs were there"
    page = (here / "pages" / "tiny.md").read_text()
    assert "| ours, best round | n | difference | within | ours, last 2 |" in page
    assert answer.out.count("best round  n") == 1, "in the second line of the headings"
    shown = rows_of(page)
    counted = {"best": 0, "last": 0}
    for cell, (_, paper, ours, _, difference, within, other) in shown.items():
        row, column = cell.split(":")
        each = [accuracies(here / "out" / f"{column}-{row}-seed{seed}") for seed in (0, 1)]
        printed, spread = (float(number) for number in paper.split(" ± "))
        for name, text, values in (("best", ours, map(max, each)), ("last", other, map(statistics.fmean, each))):
            first, second = values
            mean, std = (first + second) / 2, statistics.stdev([first, second])
            assert text == f"{mean:.2f} ± {std:.2f}"
            counted[name] += abs(mean - printed) <= 2 * math.hypot(std, spread)
            if name == "best":
                assert difference == f"{mean - printed:+.2f}".replace("-", "−")
                assert within == ("yes" if abs(mean - printed) <= 2 * math.hypot(std, spread) else "no")
    assert f"{counted['best']} of 4 cells lie within both spreads" in page
    assert f"In the other reading, mean of the last 2 evaluated rounds, it is {counted['last']} of 4." in page
    assert "We think that the paper printed the best evaluated round of each run: Its spread is small." in page
    assert "The mean of the last rounds is the fair one." in page
    call("reproduce summary --out pages --page pages/summary.md")
    assert f"| best round | 4 | {counted['best']} of 4 |" in (here / "pages" / "summary.md").read_text()


def test_every_cell_that_is_not_within_stands_with_what_was_tried(call: Call, here: Path) -> None:
    write_table(here, **READINGS)
    call("reproduce tiny.yaml --out out")
    page = (here / "out" / "page.md").read_text()
    missed = {cell for cell, fields in rows_of(page).items() if fields[5] == "no"}
    assert missed, "two rounds of four clients are not the paper's"
    listed = page.split("## Cells that are not within, and what was tried")[1].split("##")[0]
    assert {cell for cell in rows_of(page) if cell in listed} == missed
    for line in listed.strip().splitlines():
        assert line.endswith("More rounds." if "FedAvg" in line else "Nothing was tried.")


def test_another_reading_of_the_same_runs_has_a_page_of_its_own_and_runs_nothing(call: Call, here: Path) -> None:
    call("reproduce tiny.yaml --out out")
    own = (here / "out" / "page.md").read_text()
    (here / "variance.yaml").write_text("title: V\nruns: tiny.yaml\ncell: {metric: users/acc_var, last: 1}\n")
    answer = call("reproduce variance.yaml --out out")
    assert answer.code == 0, answer
    assert not list(here.glob("out/*.log")), "all runs were there"
    assert (here / "out" / "page.md").read_text() == own
    page = (here / "out" / "variance.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith("| FedAvg |")]
    value = read_run(here / "out" / "E=1-FedAvg-seed0").final("users/acc_var")
    other = read_run(here / "out" / "E=1-FedAvg-seed1").final("users/acc_var")
    assert value is not None
    assert other is not None
    shown = row.split("|")[2].strip(" *").split(" ± ")[0]
    assert float(shown) == pytest.approx((value + other) / 2, rel=0.01)


def test_a_record_from_before_readings_is_still_read(call: Call, here: Path) -> None:
    call("reproduce tiny.yaml --out out --page pages/tiny.md")
    record = here / "pages" / "tiny.json"
    held = json.loads(record.read_text())
    assert held.pop("read") is None
    record.write_text(json.dumps(held))
    assert "tiny" in call("reproduce summary --out pages").out


@pytest.mark.parametrize("damage", ["cut", "typed"])
def test_a_damaged_record_of_a_page_is_named(call: Call, here: Path, damage: str) -> None:
    call("reproduce tiny.yaml --out out --page pages/tiny.md")
    record = here / "pages" / "tiny.json"
    whole = record.read_text()
    record.write_text(whole[:20] if damage == "cut" else json.dumps(json.loads(whole) | {"seconds": "long"}))
    answer = call("reproduce summary --out pages")
    assert answer.code == 2
    assert "pages/tiny.json is damaged. Make its page again" in answer.err


def test_a_list_names_every_table_with_its_cost(call: Call) -> None:
    answer = call("reproduce list")
    assert answer.code == 0
    assert all(name in answer.out for name in shipped_tables())
    line = next(line for line in answer.out.splitlines() if line.startswith("fedbc_table1 "))
    assert " 35 " in line
    assert "h" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fedbc_tabel1", "There is no table 'fedbc_tabel1', neither as a file nor among fedlit's own. Did you mean"),
        ("tiny.yaml --cells FedBD:E=1", "tiny has no such cell. Did you mean 'FedBC:E=1'?"),
        ("tiny.yaml --seeds 0", "--seeds is 0; give 1 or more"),
        ("tiny.yaml --seeds 6", "--seeds is 6, but tiny is tuned with seed 5"),
        ("tiny.yaml --rounds 0", "--rounds is 0; give 1 or more"),
        ("tiny.yaml --jobs 0", "--jobs is 0; give 1 or more"),
        ("tiny.yaml --page table.json", "--page is table.json; give a file that ends in .md."),
        ("summary --out configs", "configs has no table that was made again. Make one with `fedlit reproduce NAME`"),
        ("tiny.yaml --show", "holds no runs of tiny. Run it first, or say where they are with --out DIR."),
        ("broken.yaml", "broken.yaml: columns.E=1: seconds is 'fast'. Give a number, 0 or more."),
        (
            "sparse.yaml",
            "FedAvg:E=1 is read as the best round, but trainer.eval_every is 3, so 1 of 2 rounds would be evaluated.",
        ),
        ("blind.yaml", "the values of FedAvg:E=1 are searched by the best round, but trainer.eval_every is 3"),
        ("wrong.yaml", "wrong.yaml: FedAvg:E=1: 'model.lrr' is not an option. Did you mean 'model.lr'?"),
    ],
)
def test_a_wrong_word_or_file_is_refused_before_anything_runs(
    refusal: Refusal, workplace: Path, words: str, said: str
) -> None:
    damaged = {"E=1": TINY["columns"]["E=1"] | {"seconds": "fast"}}
    write_table(workplace, columns=damaged).rename(workplace / "broken.yaml")
    write_table(workplace, set={"model.lrr": 1}).rename(workplace / "wrong.yaml")
    every = {"trainer.eval_every": 3}
    write_table(workplace, set=every, **READINGS).rename(workplace / "sparse.yaml")
    rows = {"FedAvg": TINY["rows"]["FedAvg"] | {"tune": {"model.lr": [0.1, 0.2]}}}
    write_table(workplace, set=every, rows=rows, tune=SEARCH | {"best": True}).rename(workplace / "blind.yaml")
    write_table(workplace, tune=SEARCH)
    assert said in refusal(f"reproduce {words}")


def test_other_rounds_in_the_same_folder_are_refused(call: Call, here: Path) -> None:
    call("reproduce tiny.yaml --out out")
    answer = call("reproduce tiny.yaml --out out --rounds 1")
    assert answer.code == 2
    assert "rounds changed" in answer.err


def states(folder: Path) -> list[str]:
    try:
        return [trial["status"] for trial in json.loads((folder / "reproduce.json").read_text())["trials"]]
    except FileNotFoundError:
        return []


def test_a_table_that_was_killed_goes_on_to_the_same_table(call: Call, here: Path) -> None:
    whole = call("reproduce tiny.yaml --out out --cells FedBC:E=1")
    words = "reproduce tiny.yaml --out again --cells FedBC:E=1"
    process = forked(words)
    deadline = time.monotonic() + SECONDS
    while states(here / "again") != ["finished", "running"]:
        assert time.monotonic() < deadline
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(SECONDS)
    assert call(words).code == 0
    once, twice = ((here / name / "page.md").read_text() for name in ("out", "again"))
    assert rows_of(twice) == rows_of(once)
    assert rows_of(once)["FedBC:E=1"][2] in whole.out
    assert (here / "again" / "E=1-FedBC-seed0.log").read_text().count("$ fedlit fit") == 1, "what is done is not redone"


@pytest.mark.parametrize(
    ("pairs", "tau"),
    [
        ([(1, 10), (2, 20), (3, 30)], 1.0),
        ([(3, 10), (2, 20), (1, 30)], -1.0),
        ([(1, 10), (3, 20), (2, 30)], 1 / 3),
        ([(1, 10), (1, 20)], 0.0),
    ],
)
def test_kendalls_tau_counts_pairs_in_the_same_order(pairs: list[tuple[float, float]], tau: float) -> None:
    assert kendall(pairs) == pytest.approx(tau)


@pytest.mark.parametrize(
    ("values", "paper", "within"),
    [
        ([0.80, 0.82], (0.83, 0.005), True),  # |d| 0.02, 2 √(0.01414² + 0.005²) = 0.03
        ([0.80, 0.82], (0.86, 0.005), False),
        ([0.81], (0.83, 0.005), False),  # the paper's spread alone: 0.01
        ([0.81], (0.83, 0.011), True),
        ([0.81], (0.83, None), None),
        ([], (0.83, 0.005), None),
        ([0.81, 0.82], None, None),
    ],
)
def test_a_difference_lies_within_both_spreads(
    tmp_path: Path, values: list[float], paper: tuple[float, float | None] | None, within: bool | None
) -> None:
    table = make_table(tmp_path)
    cell = Cell(table.rows["FedBC"], table.columns["E=1"])
    assert Result(cell, Reading("global/acc"), values, {}, paper, "").is_within is within


def test_another_form_of_a_number_is_shown_and_not_counted(call: Call, here: Path) -> None:
    rows = TINY["rows"] | {"again": {"runs_of": "FedAvg", "paper": {"algorithm": "FedAvg"}, "counts": False}}
    write_table(here, rows=rows)
    answer = call("reproduce tiny.yaml --out out")
    assert "of 4 cells lie" in answer.out
    assert "(2 rows)" in answer.out
    assert len(rows_of((here / "out" / "page.md").read_text())) == 6
