"""What a page says about its numbers besides the numbers."""

from dataclasses import replace
from pathlib import Path

from fedlit.experiments.reproduce.page import evaluation_lines, length_lines
from fedlit.experiments.reproduce.reading import Reading
from fedlit.experiments.reproduce.result import Result
from tests.experiments.reproduce.tables import TINY, make_reproduction


def test_rows_of_one_column_with_runs_of_different_lengths_are_marked(tmp_path: Path) -> None:
    rows = TINY["rows"] | {"FedBC": TINY["rows"]["FedBC"] | {"rounds": 3}}
    made = make_reproduction(tmp_path, rows=rows)
    said = "Runs of different lengths stand side by side in every column (2 rounds: FedAvg; 3 rounds: FedBC)."
    assert length_lines(made) == [said]
    assert length_lines(make_reproduction(tmp_path)) == []


def test_a_best_round_that_is_not_the_best_of_all_is_marked(tmp_path: Path) -> None:
    made = make_reproduction(tmp_path)
    results = [
        Result(cell, Reading("global/acc", best=True), [0.5], {}, None, "", evaluated=evaluated)
        for cell, evaluated in zip(made.cells, [(2, 2), (1, 2), (1, 2), None], strict=True)
    ]
    assert evaluation_lines(results) == [
        "The best round is the best of 1 evaluated round of 2 in FedBC:E=1, FedAvg:E=5.",
    ]
    results = [replace(one, reading=Reading("global/acc", 2)) for one in results]
    assert evaluation_lines(results) == []
