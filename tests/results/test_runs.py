"""Runs read back: what is in a folder, what counts as the same experiment, and what is said of damaged folders."""

import logging
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from fedlit.errors import RunError
from fedlit.results.runs import SEEDS, SERVER_COLUMNS, find_runs, group_runs, mixed, read_run, read_servers
from tests.cloud_runs import EVENTS
from tests.report.folders import one_group, seeds, write_run


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    clients: dict[str, list[Any]] = {"client": [0, 1], "group": ["a", "b"], "acc_global": [0.5, 1.0]}
    path = write_run(
        tmp_path / "run", {"global/acc": [0.1, None, 0.3]}, seed=3, data_seed=7, model={"lr": 0.1}, clients=clients
    )
    run = read_run(path)
    assert (run.algorithm, run.data, run.seed, run.finished) == ("FedAvg", "Synthetic", (3, 7), True)
    assert run.settings["model.lr"] == 0.1
    assert run.series("global/acc") == ([1, 3], [0.1, 0.3])
    assert run.metrics == ["global/acc"]
    assert run.partition_hash == "same"
    assert run.clients["acc_global"].to_pylist() == [0.5, 1.0]


def test_the_final_value_is_the_mean_of_the_newest_measured_ones(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, {"global/acc": [0.1, 0.2, None, 0.6], "other": [None, None, None, None]}))
    assert run.final("global/acc") == 0.6
    assert run.final("global/acc", last=2) == pytest.approx(0.4)
    assert run.final("global/acc", last=9) == pytest.approx(0.3)
    assert run.final("other") is None


def test_runs_that_differ_by_seeds_alone_are_one_group(tmp_path: Path) -> None:
    runs = [*seeds(tmp_path, "global/acc", [0.1, 0.2]), *seeds(tmp_path, "global/acc", [0.3], algorithm="FedBC")]
    groups = group_runs(runs)
    assert [(group.label, len(group.runs)) for group in groups] == [("FedAvg", 2), ("FedBC", 1)]
    assert not any(name in group.options for group in groups for name in SEEDS)


def test_labels_name_the_options_in_which_an_algorithm_differs(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / "a", {"x": [1]}, algorithm="FedProx", model={"mu": 0.1, "lr": 1})),
        read_run(write_run(tmp_path / "b", {"x": [1]}, algorithm="FedProx", model={"mu": 0.5, "lr": 1})),
        read_run(write_run(tmp_path / "c", {"x": [1]}, algorithm="FedAvg", model={"lr": 1})),
    ]
    assert [group.label for group in group_runs(runs)] == ["FedProx mu=0.1", "FedProx mu=0.5", "FedAvg"]


def test_labels_of_clouds_are_short(tmp_path: Path) -> None:
    """A cloud is told by the option in which clouds differ; how often a run was measured is left out."""
    trainers: list[dict[str, Any]] = [
        {"sampler": "earliest", "eval_every": 35, "cloud": {"class_path": "fedlit.Cloud", "init_args": {"first": 3}}},
        {"sampler": "earliest", "eval_every": 20, "cloud": {"class_path": "fedlit.Cloud", "init_args": {"first": 5}}},
        {"sampler": {"class_path": "fedlit.QuotaSampler", "init_args": {"groups": 10}}, "eval_every": 5},
    ]
    runs = [read_run(write_run(tmp_path / str(k), {"x": [1]}, trainer=own)) for k, own in enumerate(trainers)]
    labels = [group.label for group in group_runs(runs)]
    assert labels == [
        "FedAvg sampler=earliest first=3",
        "FedAvg sampler=earliest first=5",
        "FedAvg sampler=QuotaSampler",
    ]


def test_runs_that_were_only_measured_more_often_are_told_apart(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / str(k), {"x": [1]}, trainer={"eval_every": k})) for k in (1, 5)]
    assert [group.label for group in group_runs(runs)] == ["FedAvg eval_every=1", "FedAvg eval_every=5"]


def test_labels_are_unique_even_where_different_options_read_alike(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / "a", {"x": [1]}, model={"alpha": 1})),
        read_run(write_run(tmp_path / "b", {"x": [1]}, data_options={"alpha": 1})),
    ]
    labels = [group.label for group in group_runs(runs)]
    assert labels == ["FedAvg alpha=1 (1)", "FedAvg alpha=1 (2)"]


def test_another_packages_algorithm_of_the_same_name_is_another_group(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, {"x": [1]}, seed=seed) for seed, name in enumerate("ab")]
    config = paths[1] / "config.yaml"
    config.write_text(config.read_text().replace("fedlit.FedAvg", "mine.FedAvg"))
    labels = [group.label for group in group_runs([read_run(path) for path in paths])]
    assert labels == ["FedAvg", "FedAvg module=mine"]


def test_another_partition_is_the_same_experiment_only_with_another_seed_of_the_data(tmp_path: Path) -> None:
    other = {"partition": "other", "data_options": {"partition_hash": "other"}}  # as runs from Python record it
    runs = [
        read_run(write_run(tmp_path / "a", {"x": [1]}, data_options={"partition_hash": "same"})),
        read_run(write_run(tmp_path / "b", {"x": [1]}, data_seed=1, **other)),
        read_run(write_run(tmp_path / "c", {"x": [1]}, seed=1, **other)),
    ]
    grouped = [[run.path.name for run in group.runs] for group in group_runs(runs)]
    assert grouped == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"data": "MNIST"}, "The runs are of different data: MNIST, Synthetic."),
        ({"partition": "other"}, "Runs with the same data seed have different partitions"),
        ({"seed": 1}, "The groups were run with different seeds"),
        ({"summary": {"finished": False}}, "Not finished: b."),
        ({}, ""),
    ],
    ids=["data", "partition", "seed", "unfinished", "nothing"],
)
def test_what_cannot_be_compared_is_said(tmp_path: Path, change: dict[str, object], remark: str) -> None:
    paths = [
        write_run(tmp_path / "a", {"x": [1, 2]}),
        write_run(tmp_path / "b", {"x": [1, 2]}, algorithm="FedBC", **change),  # type: ignore[arg-type]  # by name
    ]
    said = mixed(group_runs([read_run(path) for path in paths]))
    assert [one for one in said if one.startswith(remark)] == said
    assert bool(said) == bool(remark)


def test_runs_of_different_length_are_named(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", {"x": [1]}, seed=0),
        write_run(tmp_path / "b", {"x": [1, 2]}, seed=1),
    ]
    assert mixed([one_group([read_run(path) for path in paths])]) == [
        "FedAvg: runs of different length, 1 to 2 rounds."
    ]


def test_runs_are_found_at_any_depth_and_named_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "deep" / "one", {"x": [1]})
    write_run(tmp_path / "two", {"x": [1]}, seed=1)
    found = find_runs([tmp_path, tmp_path / "two"])
    assert [run.path.name for run in found] == ["one", "two"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path, {"x": [1, 2]})
    (path / "metrics.csv").write_text((path / "metrics.csv").read_text() + "3,0.")
    assert read_run(path).rounds == [1, 2]


DAMAGES = {
    "summary.json": ('{"finished": tr', r"summary\.json cannot be read"),
    "partition.json": ("{", r"partition\.json cannot be read"),
    "config.yaml": ("model: [", r"config\.yaml is not YAML"),
    "metrics.csv": ("round,x\nhello\n1,2\n", r"metrics\.csv, line 2"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_refused_by_name_and_left_out_of_a_search(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    content, message = DAMAGES[name]
    path = write_run(tmp_path / "bad", {"x": [1]})
    write_run(tmp_path / "good", {"x": [1]})
    (path / name).write_text(content)
    with pytest.raises(RunError, match=message):
        find_runs([path])
    with caplog.at_level(logging.WARNING, "fedlit"):
        assert [run.path.name for run in find_runs([tmp_path])] == ["good"]
    assert "left out" in caplog.text


@pytest.mark.parametrize("content", [b"", b"model:\n  class_path: fedlit.FedBC\n", b"model: \xff\xfe\n"])
def test_a_config_that_was_cut_short_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write_run(tmp_path, {"x": [1]})
    (path / "config.yaml").write_bytes(content)
    with pytest.raises(RunError, match=r"config\.yaml"):
        read_run(path)


def test_a_run_without_a_finished_round_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path, {"x": [1]})
    (path / "metrics.csv").write_text("round,x\n0,0.5\n")
    with pytest.raises(RunError, match="no finished round.*--resume"):
        read_run(path)


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing"], ids=["empty", "torn"])
def test_damaged_client_records_are_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = write_run(tmp_path, {"x": [1]})
    (path / "clients.parquet").write_bytes(content)
    with pytest.raises(RunError, match=r"client records.*Delete clients\.parquet"):
        _ = read_run(path).clients


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run with a finished round"):
        find_runs([tmp_path])
    with pytest.raises(RunError, match="is not a folder"):
        find_runs([tmp_path / "nothing"])
    with pytest.raises(RunError, match=r"no config\.yaml"):
        read_run(tmp_path)


def test_server_records_are_read_by_round_and_server(clouds: Path) -> None:
    run = read_run(clouds / "fedprox-0")
    places = zip(run.servers["round"].to_pylist(), run.servers["server"].to_pylist(), strict=True)
    assert list(places) == [(event, server) for event in range(1, EVENTS + 1) for server in range(4)]
    assert sorted(run.servers.column_names) == sorted([*SERVER_COLUMNS, "acc"])
    assert run.final("time/sim_s") == run.servers["time_s"].to_pylist()[-1]


def test_a_run_without_servers_or_with_damaged_ones_is_an_error_that_says_what_to_do(
    tmp_path: Path, clouds: Path
) -> None:
    path = write_run(tmp_path, {"x": [1]})
    with pytest.raises(RunError, match="holds no server records"):
        read_servers(path)
    (path / "servers.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(RunError, match=r"servers\.parquet cannot be read"):
        read_servers(path)
    table = read_servers(clouds / "fedavg-0").drop_columns(["acc"])
    parquet.write_table(table, path / "servers.parquet")
    with pytest.raises(RunError, match=r"servers\.parquet has no column acc"):
        read_servers(path)
