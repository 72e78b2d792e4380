"""What is said of many runs: a line for each end, with the time that is left."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedlit.experiments.jobs import Job, JobResult, Status
from fedlit.experiments.progress import Board
from fedlit.metrics.formatting import duration


def outcome(status: Status, seconds: float, reason: str = "") -> JobResult:
    return JobResult(Job("trial-007", Path("none"), (), 10, {}, about="lr=0.1"), status, seconds, reason)


def said(board: Board) -> str:
    file = board.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def make_board(total: int, slots: int) -> Board:
    return Board(Console(file=io.StringIO(), markup=False, highlight=False), "trials", total, slots)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (600, "10 min"), (7500, "2 h 5 min")]
)
def test_a_duration_is_said_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_time_left_is_what_the_others_took_in_all_slots() -> None:
    board = make_board(total=9, slots=2)
    with board:
        board.ended(outcome("finished", 60.0), share_at_start=0.0)
        assert said(board) == "1/9 trial-007 (lr=0.1) finished after 60 s, about 4 min left\n"


def test_a_resumed_run_counts_as_much_as_was_left_of_it() -> None:
    board = make_board(total=2, slots=1)
    board.ended(outcome("finished", 30.0), share_at_start=0.5)
    assert board.time_left() == ", about 60 s left"


def test_a_short_job_says_little_about_a_long_one() -> None:
    board = Board(Console(file=io.StringIO()), "runs", total=3, slots=1, cost=120.0)
    board.skip(failed=False, cost=10.0)
    short = Job("short", Path("none"), (), 10, {}, cost=10.0)
    board.ended(JobResult(short, "finished", 5.0), share_at_start=0.0)
    assert board.time_left() == ", about 50 s left"


def test_a_failure_is_said_with_its_reason_and_counts_as_done() -> None:
    board = make_board(total=2, slots=1)
    board.skip(failed=False)
    board.ended(outcome("failed", 5.0, "It diverged [red]."), share_at_start=0.0)
    assert said(board) == "2/2 trial-007 (lr=0.1) failed after 5 s: It diverged [red].\n"
    assert (board.done, board.failed) == (1, 1)


def test_a_stopped_run_is_neither_done_nor_failed() -> None:
    board = make_board(total=2, slots=1)
    board.ended(outcome("stopped", 5.0), share_at_start=0.0)
    assert (board.done, board.failed) == (0, 0)
    assert "can be continued" in said(board)


def test_there_is_no_estimate_before_something_is_done() -> None:
    assert make_board(total=2, slots=1).time_left() == ""
