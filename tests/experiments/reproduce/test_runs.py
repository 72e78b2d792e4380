"""The runs of a table: which there are, in which order, what is searched before them, and what it costs."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from fedlit.experiments.jobs import Job, JobResult
from fedlit.experiments.reproduce.page import how
from fedlit.experiments.reproduce.reading import Reading
from fedlit.experiments.reproduce.runs import Reproduction
from fedlit.experiments.reproduce.table import START_S
from tests.experiments.reproduce.tables import SEARCH, TINY, make_reproduction

GRID = {"model.lr": [0.001, 0.01, 0.1], "model.momentum": [0.0, 0.5]}
ROWS = {"FedAvg": TINY["rows"]["FedAvg"] | {"tune": GRID}}
ONE = {"E=1": TINY["columns"]["E=1"]}


def names(jobs: Iterator[Job | None], count: int) -> list[str | None]:
    return [job.name if job else None for job in islice(jobs, count)]


def end(made: Reproduction, job: Job, value: float | None) -> None:
    """Let a job have come to this value by validation; None: it failed."""
    made.trial_log.enter(job)
    trial = made.trial_log.note(JobResult(job, "failed" if value is None else "finished", 1.0))
    trial.value = value


def test_a_table_without_a_search_runs_cell_by_cell_with_all_seeds(tmp_path: Path) -> None:
    made = make_reproduction(tmp_path)
    jobs = [job for job in made.jobs() if job is not None]
    assert [job.name for job in jobs] == [
        *("E=1-FedAvg-seed0", "E=1-FedAvg-seed1", "E=1-FedBC-seed0", "E=1-FedBC-seed1"),
        *("E=5-FedAvg-seed0", "E=5-FedAvg-seed1", "E=5-FedBC-seed0", "E=5-FedBC-seed1"),
    ]
    assert made.total == 8
    assert made.cost == pytest.approx(4 * (START_S + 10) + 4 * (START_S + 20)) == sum(job.cost for job in jobs)


def test_the_best_of_a_short_look_run_for_all_rounds_and_the_best_of_these_is_the_cells(tmp_path: Path) -> None:
    made = make_reproduction(tmp_path, rows=ROWS, columns=ONE, rounds=10, tune=SEARCH | {"rounds": 3, "keep": 2})
    jobs = made.jobs()
    looks = [job for job in islice(jobs, 6) if job]
    assert [job.name for job in looks] == [f"E=1-FedAvg-look0{k}" for k in range(6)]
    assert {job.rounds for job in looks} == {3}
    assert all("--trainer.rounds=3" in job.arguments and "--seed_everything=5" in job.arguments for job in looks)
    assert names(jobs, 2) == [None, None], "it waits for them"
    for job, value in zip(looks, [0.5, None, 0.9, 0.7, 0.6, 0.8], strict=True):
        end(made, job, value)
    tries = [job for job in islice(jobs, 2) if job]
    assert [job.name for job in tries] == ["E=1-FedAvg-try02", "E=1-FedAvg-try05"]
    assert {job.rounds for job in tries} == {10}
    assert made.found(made.cells[0]) is None
    end(made, tries[0], 0.70)
    end(made, tries[1], 0.71)
    assert made.found(made.cells[0]) == {"model.lr": 0.1, "model.momentum": 0.5}
    own = [job for job in jobs if job is not None]
    assert [job.name for job in own] == ["E=1-FedAvg-seed0", "E=1-FedAvg-seed1"]
    assert all("--model.lr=0.1" in job.arguments and "--model.momentum=0.5" in job.arguments for job in own)
    assert (made.tries, made.total) == (8, 10)
    assert made.cost == pytest.approx(sum(job.cost for job in (*looks, *tries, *own)))


def test_with_one_to_keep_the_best_of_the_short_runs_is_taken_as_it_is(tmp_path: Path) -> None:
    search = SEARCH | {"metric": "global/acc", "best": True, "rounds": 3, "keep": 1}
    made = make_reproduction(tmp_path, rows=ROWS, columns=ONE, rounds=10, tune=search)
    assert made.search_reading() == Reading("global/acc", 2, best=True)
    jobs = made.jobs()
    for job, value in zip([job for job in islice(jobs, 6) if job], [0.5, 0.9, 0.6, 0.7, 0.6, 0.8], strict=True):
        end(made, job, value)
    assert names(jobs, 2) == ["E=1-FedAvg-seed0", "E=1-FedAvg-seed1"]
    assert made.found(made.cells[0]) == {"model.lr": 0.001, "model.momentum": 0.5}
    assert (made.tries, made.total) == (6, 8)
    assert "global/acc (best round) with seed 5: every point runs for 3 rounds, and the best is taken." in how(made)


def test_of_equal_points_the_first_is_taken(tmp_path: Path) -> None:
    made = make_reproduction(tmp_path, rows=ROWS, columns=ONE, tune=SEARCH)
    for job in [job for job in islice(made.jobs(), 6) if job]:
        end(made, job, 0.5)
    assert made.found(made.cells[0]) == {"model.lr": 0.001, "model.momentum": 0.0}


def test_a_cell_whose_points_all_failed_has_no_runs_and_the_others_go_on(tmp_path: Path) -> None:
    rows = ROWS | {"FedBC": TINY["rows"]["FedBC"]}
    made = make_reproduction(tmp_path, rows=rows, columns=ONE, tune=SEARCH)
    jobs = made.jobs()
    for job in [job for job in islice(jobs, 6) if job]:
        end(made, job, None)
    assert [job.name for job in jobs if job] == ["E=1-FedBC-seed0", "E=1-FedBC-seed1"]


def test_while_a_search_runs_the_next_cell_goes_on(tmp_path: Path) -> None:
    rows = ROWS | {"FedBC": TINY["rows"]["FedBC"]}
    made = make_reproduction(tmp_path, rows=rows, columns=ONE, tune=SEARCH)
    assert names(made.jobs(), 9)[6:] == ["E=1-FedBC-seed0", "E=1-FedBC-seed1", None]


def test_values_that_were_searched_in_another_column_are_searched_once(tmp_path: Path) -> None:
    columns = {"E=1": TINY["columns"]["E=1"] | {"values_of": "E=5"}, "E=5": TINY["columns"]["E=5"]}
    made = make_reproduction(tmp_path, rows=ROWS, columns=columns, tune=SEARCH)
    jobs = made.jobs()
    tries = [job for job in islice(jobs, 6) if job]
    assert [job.name for job in tries] == [f"E=5-FedAvg-try0{k}" for k in range(6)]
    for job, value in zip(tries, [0.5, 0.6, 0.9, 0.7, 0.6, 0.8], strict=True):
        end(made, job, value)
    assert [job.name for job in jobs if job] == [f"E={e}-FedAvg-seed{s}" for e in (1, 5) for s in (0, 1)]
    assert made.found(made.cells[0]) == made.found(made.cells[1]) == {"model.lr": 0.01, "model.momentum": 0.0}


def test_a_row_with_values_of_its_own_is_searched_in_every_column(tmp_path: Path) -> None:
    columns = {"E=1": TINY["columns"]["E=1"] | {"values_of": "E=5"}, "E=5": TINY["columns"]["E=5"]}
    rows = {"FedAvg": ROWS["FedAvg"] | {"own_values": True}}
    made = make_reproduction(tmp_path, rows=rows, columns=columns, tune=SEARCH)
    assert [cell.name for cell in made.searches] == ["FedAvg:E=1", "FedAvg:E=5"]
    assert "with seed 5; FedAvg in every column. Grids" in how(made)


def test_a_row_that_reads_anothers_runs_has_none_of_its_own(tmp_path: Path) -> None:
    rows = TINY["rows"] | {"local": {"runs_of": "FedBC", "cell": {"metric": "local/acc"}}}
    made = make_reproduction(tmp_path, rows=rows)
    assert made.total == 8
    assert len(made.cells) == 6
    assert [job.name for job in made.seed_jobs(made.cells[2])] == ["E=1-FedBC-seed0", "E=1-FedBC-seed1"]


def test_fewer_rounds_are_as_many_fewer_in_a_column_with_rounds_of_its_own(tmp_path: Path) -> None:
    columns = {"a": TINY["columns"]["E=1"], "b": TINY["columns"]["E=1"] | {"rounds": 600}}
    made = make_reproduction(tmp_path, columns=columns, rounds=800)
    smaller = Reproduction(made.table, made.cells, 1, 80, made.trial_log)
    assert [made.rounds_of(cell) for cell in made.sources] == [800, 800, 600, 600]
    assert [smaller.rounds_of(cell) for cell in smaller.sources] == [80, 80, 60, 60]
    assert smaller.cost == pytest.approx(4 * (START_S + 1))
