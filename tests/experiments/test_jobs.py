"""One job: its cores, its log, its progress and the reason of its end."""

import os
import signal
from pathlib import Path

import pytest

from fedlit.errors import RunError
from fedlit.experiments.fork_server import ForkServer
from fedlit.experiments.jobs import Job, is_free, reason_of, rounds_done, share_cores, start

ALL = sorted(os.sched_getaffinity(0))


def job_in(folder: Path) -> Job:
    return Job("a", folder / "a", ("--config", "x.yaml"), 10, {})


def test_one_job_gets_all_cores() -> None:
    assert share_cores(1) == [ALL]


def test_jobs_share_the_cores_equally_and_none_is_used_twice() -> None:
    shares = share_cores(len(ALL))
    assert sorted(core for share in shares for core in share) == ALL
    assert len({len(share) for share in shares}) == 1


def test_more_jobs_than_cores_get_one_each() -> None:
    shares = share_cores(2 * len(ALL) + 1)
    assert {len(share) for share in shares} == {1}
    assert {share[0] for share in shares} == set(ALL)


def test_rounds_are_read_off_the_last_complete_line(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.csv"
    assert rounds_done(metrics) == 0
    metrics.write_text("round,val/acc\n")
    assert rounds_done(metrics) == 0
    metrics.write_text("round,val/acc\n" + "".join(f"{k},{k / 1000}\n" for k in range(1001)) + "10")
    assert rounds_done(metrics) == 1000


def test_the_reason_is_the_last_paragraph_of_fedlit() -> None:
    said = "engine: sequential\nfedlit: Round 3: client 5 diverged. Lower model.lr.\n"
    assert reason_of(1, said) == "Round 3: client 5 diverged. Lower model.lr."


def test_without_one_the_reason_is_the_last_line() -> None:
    assert reason_of(1, "Traceback …\nValueError: no\n\n") == "ValueError: no"
    assert reason_of(1, "") == "it said nothing"


def test_a_killed_process_is_told_from_a_failed_one() -> None:
    assert reason_of(-signal.SIGKILL, "round 3/9\n").startswith("killed by SIGKILL, often for lack of memory")
    assert reason_of(-signal.SIGSEGV, "").startswith("killed by SIGSEGV")


def test_a_job_waits_while_an_earlier_process_writes_its_log(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    with job.log.open("ab") as earlier:
        assert is_free(earlier)
        assert start(job, ForkServer(ALL)) is None
    assert job.log.read_bytes() == b"", "it has not begun"


@pytest.mark.parametrize("rounds", [0, 4, 10, 12])
def test_the_share_that_is_done_lies_between_0_and_1(tmp_path: Path, rounds: int) -> None:
    job = job_in(tmp_path)
    job.folder.mkdir()
    (job.folder / "metrics.csv").write_text(f"round\n{rounds}\n")
    assert job.share_done() == min(rounds / 10, 1.0)


def test_a_log_for_which_the_disk_has_no_room_is_named_in_one_paragraph(tmp_path: Path) -> None:
    job_in(tmp_path).log.symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"\.log cannot be written: the disk is full\. Free some space"):
        start(job_in(tmp_path), ForkServer([0]))


def test_the_command_can_be_typed() -> None:
    job = Job("a", Path("a"), ("--config", "my file.yaml", "--model.lr=0.1"), 1, {})
    assert job.command == "fedlit fit --config 'my file.yaml' --model.lr=0.1"
