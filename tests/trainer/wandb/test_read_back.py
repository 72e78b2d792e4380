"""One real offline run of `fedlit fit`, in a process of its own, and all that W&B has of it."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from fedlit.metrics.catalogue import MIN_MAX_METRICS, metric
from fedlit.report.min_max import min_max_metrics
from fedlit.results.records import read_clients, read_metrics
from fedlit.results.runs import dotted, read_run
from tests.forked import forked
from tests.trainer.wandb.offline import Offline, offline_runs

CLIENTS = 12
WORDS = (
    f"fit --config synthetic_fedbc.yaml --data.num_clients {CLIENTS} --data.size_mean 3 --data.size_sigma 1 "
    "--data.size_min 20 --data.size_factor 1 --trainer.clients_per_round 4 --trainer.rounds 5 --trainer.eval_every 2 "
    "--trainer.engine sequential --trainer.enable_progress_bar false --model.lr 0.07 --run study-7 --wandb offline "
    "--wandb_artifact"
)
EVALUATED = [0, 2, 4, 5]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder after the run."""
    place, said = tmp_path_factory.mktemp("wandb"), tmp_path_factory.mktemp("said") / "said.txt"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("WANDB_", "PL_"))]:
            patch.delenv(name)
        patch.setenv("WANDB_DATA_DIR", str(place / "data"))
        patch.setenv("NETRC", str(place / "netrc"))
        patch.chdir(place)
        code = forked(WORDS, said).wait(300)
    assert code == 0, said.read_text()
    return place


@pytest.fixture(scope="module")
def folder(place: Path) -> Path:
    """The run folder."""
    return place / "study-7"


@pytest.fixture(scope="module")
def offline(folder: Path) -> Offline:
    """What W&B has of the run."""
    (found,) = offline_runs(folder)
    return found


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[int, dict[str, float]]:
    """metrics.csv by round."""
    return {int(row.pop("round")): row for row in read_metrics(folder / "metrics.csv")}


@pytest.fixture(scope="module")
def columns(folder: Path) -> list[str]:
    """The metrics of the run."""
    return (folder / "metrics.csv").read_text().splitlines()[0].split(",")[1:]


def records(folder: Path, round: int) -> list[dict[str, Any]]:
    """clients.parquet of one round."""
    return [record for record in read_clients(folder).to_pylist() if record.pop("round") == round]


def series(rows: dict[int, dict[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows.values() if name in row]


def test_every_metric_of_every_round_is_there_with_its_value(
    offline: Offline, rows: dict[int, dict[str, float]], columns: list[str]
) -> None:
    measured = [row for row in offline.history if "time/round_s" in row or row["round"] == 0]
    assert [row["round"] for row in measured] == list(rows)
    for sent, own in zip(measured, rows.values(), strict=True):
        assert {name: sent[name] for name in columns if name in sent} == own


def test_the_round_is_the_axis_of_every_metric(offline: Offline, columns: list[str]) -> None:
    axis = {defined.name: defined.step_metric for defined in offline.of("metric") if defined.name in columns}
    assert axis == dict.fromkeys(columns, "round")
    others = [defined.step_metric for defined in offline.of("metric") if defined.glob_name == "*"]
    assert others[-1] == "round"


def test_summaries_are_the_best_and_the_last_value_or_the_last_alone(
    offline: Offline, rows: dict[int, dict[str, float]], columns: list[str]
) -> None:
    best = {"max": max, "min": min}

    def expected(name: str) -> Any:
        values, way = series(rows, name), metric(name).best
        return values[-1] if way is None else {way: best[way](values), "last": values[-1]}

    assert {name: offline.summary[name] for name in columns} == {name: expected(name) for name in columns}


@pytest.mark.parametrize(
    ("name", "way"), [("global/acc", "max"), ("global/loss", "min"), ("users/acc_var", "min"), ("users/acc_min", "max")]
)
def test_summary_of_an_accuracy_is_its_maximum_and_of_a_loss_or_variance_its_minimum(
    offline: Offline, name: str, way: str
) -> None:
    assert set(offline.summary[name]) == {way, "last"}


def test_numbers_that_only_the_summary_has_are_there(offline: Offline, folder: Path) -> None:
    own = json.loads((folder / "summary.json").read_text())
    assert offline.summary["rounds_to/0.40"] == own["rounds_to/0.40"]
    assert offline.summary["halftime/acc"] == own["halftime/acc"]


def test_numbers_of_min_and_max_user_are_in_the_summary(offline: Offline, folder: Path) -> None:
    run = read_run(folder)
    own = min_max_metrics(run.rows, run.measures)
    assert len(own) == len(MIN_MAX_METRICS)
    assert {name: offline.summary[name] for name in own} == pytest.approx(own)


def test_config_holds_each_parameter_once_under_its_name_on_the_command_line(offline: Offline, folder: Path) -> None:
    assert [name for name, times in Counter(name for name, _ in offline.config).items() if times > 1] == []
    assert dict(offline.config) == dotted(yaml.safe_load((folder / "config.yaml").read_text()))
    assert dict(offline.config)["model.lr"] == 0.07
    assert [name for name, _ in offline.config if name.split(".")[-1] == "lr"] == ["model.lr"]


def test_group_is_the_experiment_and_job_type_the_algorithm_and_tag_the_data_set(offline: Offline) -> None:
    run = offline.run
    assert (run.run_group, run.job_type, list(run.tags)) == ("synthetic_fedbc", "FedBC", ["Synthetic"])
    assert (run.project, run.display_name) == ("fedlit", "study-7")


def test_users_table_has_a_row_for_every_client_with_its_record_of_the_last_round(
    offline: Offline, folder: Path
) -> None:
    table, own = offline.table("users/table"), records(folder, round=5)
    assert table["columns"] == list(own[0])
    assert [row[0] for row in table["data"]] == list(range(CLIENTS))
    sent = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert sent == [{name: None if value != value else value for name, value in record.items()} for record in own]
    assert offline.summary["users/table"]["nrows"] == CLIENTS


def test_histogram_of_each_evaluated_round_counts_every_user(offline: Offline, folder: Path) -> None:
    sent = {row["round"]: row["users/acc_hist"] for row in offline.history if "users/acc_hist" in row}
    assert list(sent) == EVALUATED
    for round, histogram in sent.items():
        accuracies = [record["acc_global"] for record in records(folder, round)]
        counts, edges = np.histogram(accuracies, bins=20, range=(0, 1))
        assert (histogram["values"], sum(histogram["values"])) == (counts.tolist(), CLIENTS)
        assert histogram["bins"] == pytest.approx(edges)


def test_histogram_stands_in_the_row_of_its_round(offline: Offline) -> None:
    assert all("global/acc" in row for row in offline.history if "users/acc_hist" in row)


def test_glossary_explains_every_metric_of_the_run(offline: Offline, columns: list[str]) -> None:
    table = offline.table("about/metrics")
    known = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["data"]}
    assert list(known) == columns
    assert known["global/loss"] == {
        "name": "global/loss",
        "label": "global loss",
        "unit": "-",
        "better": "min",
        "definition": "z on pooled test",
    }


def test_partition_picture_is_the_run_folders(offline: Offline, folder: Path) -> None:
    (picture,) = offline.logged("about/partition")
    assert offline.file(picture).read_bytes() == (folder / "partition.png").read_bytes()


def test_artifact_holds_the_last_and_the_best_checkpoint(offline: Offline, folder: Path) -> None:
    (artifact,) = [artifact for artifact in offline.of("artifact") if artifact.type == "model"]
    held = {entry.path: Path(entry.local_path).read_bytes() for entry in artifact.manifest.contents}
    assert held == {name: (folder / "checkpoints" / name).read_bytes() for name in ("last.ckpt", "best.ckpt")}
    assert artifact.name == f"checkpoint-{offline.run.run_id}"


def test_run_is_marked_as_finished(offline: Offline) -> None:
    assert [ended.exit_code for ended in offline.of("exit")] == [0]


def test_nothing_is_written_beside_the_run_folder_and_wandbs_own(place: Path) -> None:
    assert sorted(path.name for path in place.iterdir()) == ["data", "study-7"]


def test_all_metric_names_are_present_and_the_users_table_is_complete(offline: Offline, columns: list[str]) -> None:
    """The two in a line, for a reader who wants to see it: pytest -s."""
    sent = {name for row in offline.history for name in row}
    clients = [row[0] for row in offline.table("users/table")["data"]]
    print(f"\n{len(sent & set(columns))} of {len(columns)} metric names present, {len(clients)} of {CLIENTS} clients")
    assert set(columns) <= sent
    assert clients == list(range(CLIENTS))
