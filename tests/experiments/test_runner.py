"""The runner asks again for a job that depends on what still runs."""

import io
from collections.abc import Iterator

from rich.console import Console

from fedlit.experiments.jobs import Job
from fedlit.experiments.progress import Board
from fedlit.experiments.runner import Runner


def test_nothing_in_a_jobs_place_is_not_the_end() -> None:
    asked = []

    def jobs() -> Iterator[Job | None]:
        for number in range(3):
            asked.append(number)
            yield None

    board = Board(Console(file=io.StringIO()), "runs", total=1, slots=1)
    assert Runner(1, board, lambda outcome: outcome).run(jobs())
    assert asked == [0, 1, 2]
