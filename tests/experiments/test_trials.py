"""The record of many runs: what is finished, what is to be run again, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedlit.errors import ConfigError, RunError
from fedlit.experiments.jobs import Job, JobResult
from fedlit.experiments.trials import TrialLog


def job_in(folder: Path, *, rounds: int = 10, lr: float = 0.1) -> Job:
    return Job("trial-000", folder / "trial-000", (f"--model.lr={lr}",), rounds, {"model.lr": lr})


def write_summary(job: Job, **content: Any) -> None:
    job.folder.mkdir(exist_ok=True)
    (job.folder / "summary.json").write_text(json.dumps(content))


def open_in(folder: Path) -> TrialLog:
    return TrialLog.open(folder / "sweep.json", {"method": "grid"})


def test_a_record_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    trial_log, job = open_in(tmp_path), job_in(tmp_path)
    trial_log.enter(job)
    trial_log.note(JobResult(job, "failed", 1.26, "It diverged."))
    trial_log.save()
    assert open_in(tmp_path).trials == trial_log.trials
    assert open_in(tmp_path).trials["trial-000"].reason == "It diverged."
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_run_is_finished_if_its_summary_says_so_whatever_the_record_says(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    write_summary(job, finished=True, rounds=10)
    assert open_in(tmp_path).enter(job).status == "finished"


@pytest.mark.parametrize(
    "content", [{"finished": False, "rounds": 10}, {"finished": True, "rounds": 7}, {"rounds": 10}, {}]
)
def test_a_run_that_has_not_come_to_its_end_is_to_be_run(tmp_path: Path, content: dict[str, Any]) -> None:
    job = job_in(tmp_path)
    write_summary(job, **content)
    assert open_in(tmp_path).enter(job).status == "waiting"


def test_a_torn_summary_does_not_count(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job.folder.mkdir()
    (job.folder / "summary.json").write_text('{"finished": tr')
    assert open_in(tmp_path).enter(job).status == "waiting"


def test_a_run_that_was_stopped_early_by_a_callback_stays_finished(tmp_path: Path) -> None:
    trial_log, job = open_in(tmp_path), job_in(tmp_path)
    write_summary(job, finished=True, rounds=4)
    trial_log.enter(job)
    trial_log.note(JobResult(job, "finished", 1.0))
    assert trial_log.enter(job).status == "finished"


def test_what_failed_stays_failed_unless_it_is_run_with_other_settings(tmp_path: Path) -> None:
    trial_log, job = open_in(tmp_path), job_in(tmp_path)
    trial_log.enter(job)
    trial_log.note(JobResult(job, "failed", 1.0, "It diverged."))
    assert trial_log.enter(job).status == "failed"
    assert trial_log.enter(job_in(tmp_path, lr=0.01)).status == "waiting"


def test_a_finished_run_of_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    trial_log, job, other = open_in(tmp_path), job_in(tmp_path), job_in(tmp_path, lr=0.01)
    write_summary(job, finished=True, rounds=10)
    assert trial_log.enter(job).status == "finished"
    assert trial_log.enter(other).status == "waiting"
    trial_log.note(JobResult(other, "failed", 1.0, "It holds a run with other settings."))
    assert trial_log.enter(other).status == "failed"
    assert trial_log.enter(job).status == "waiting"


def test_what_ran_when_the_record_was_written_is_to_be_run(tmp_path: Path) -> None:
    trial_log, job = open_in(tmp_path), job_in(tmp_path)
    trial_log.enter(job).status = "running"
    trial_log.save()
    assert open_in(tmp_path).enter(job).status == "waiting"


@pytest.mark.parametrize("content", ['{"about": {"method": "gr', '{"trials": [3]}', '{"trials": [{"nmae": 1}]}'])
def test_a_damaged_record_is_refused_with_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(RunError, match=r"sweep\.json is damaged.*Delete it and repeat"):
        open_in(tmp_path)


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    open_in(tmp_path).save()
    with pytest.raises(ConfigError, match="method changed"):
        TrialLog.open(tmp_path / "sweep.json", {"method": "random"})


def test_what_the_record_does_not_know_is_added_to_it(tmp_path: Path) -> None:
    open_in(tmp_path).save()
    TrialLog.open(tmp_path / "sweep.json", {"seed": 3}).save()
    assert TrialLog.open(tmp_path / "sweep.json", {"method": "grid"}).about == {"method": "grid", "seed": 3}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file cannot be made a folder .*--out DIR"):
        TrialLog(tmp_path / "file" / "sweep.json", {}).make_folder()
