"""Accuracy by domain: hand-computed means, personal models where z is none, and runs without records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedlit.report.domains import MEAN, read_domains
from fedlit.report.grids import WIDE, domains_grid
from fedlit.results.folder import RunFolder
from fedlit.results.runs import group_runs, read_run
from tests.report.folders import one_group, write_run

NAN = float("nan")


def records(
    groups: Sequence[str], acc_global: Sequence[float], acc_personal: Sequence[float] | None = None
) -> Mapping[str, Sequence[Any]]:
    personal = acc_personal or [NAN] * len(groups)
    return {"client": range(len(groups)), "group": groups, "acc_global": acc_global, "acc_personal": personal}


def test_clients_of_a_domain_count_alike_and_so_do_domains(tmp_path: Path) -> None:
    clients = records(["mnist", "mnist", "usps"], [0.2, 0.4, 0.9])
    group = one_group([read_run(write_run(tmp_path, {"x": [1]}, clients=clients))])
    domains = read_domains([group])
    assert domains.names == ["mnist", "usps"]
    means = [domains.cell(group, name).mean for name in ("mnist", "usps", MEAN)]
    assert means == pytest.approx([0.3, 0.9, 0.6])


def test_clients_that_were_not_tested_are_left_out(tmp_path: Path) -> None:
    group = one_group([read_run(write_run(tmp_path, {"x": [1]}, clients=records(["a", "a"], [0.5, NAN])))])
    assert read_domains([group]).cell(group, "a").mean == 0.5


def test_only_the_last_evaluated_rounds_count(tmp_path: Path) -> None:
    path = write_run(tmp_path, {"x": [1]}, clients=records(["a"], [0.5]))
    files = RunFolder(path)
    for round, accuracy in ((2, 0.7), (3, 0.9)):
        files.append_clients(round, records(["a"], [accuracy]))
    files.finish_clients()
    group = one_group([read_run(path)])
    assert read_domains([group]).cell(group, "a").mean == 0.9
    assert read_domains([group], last=2).cell(group, "a").mean == pytest.approx(0.8)


def test_personal_models_stand_in_where_z_is_no_whole_model_and_a_note_says_so(tmp_path: Path) -> None:
    group = one_group([read_run(write_run(tmp_path, {"x": [1]}, clients=records(["a"], [NAN], [0.7])))])
    grid = domains_grid("t", [group], read_domains([group]), 1)
    assert grid is not None
    assert [entry.text for entry in grid.rows[0]] == ["FedAvg", "70.00", "70.00"]
    assert grid.notes == ["FedAvg: z is not a whole model, so these are the users' personal models."]


def test_scores_of_a_z_that_is_not_a_whole_model_are_not_read(tmp_path: Path) -> None:
    """Records of earlier versions have them beside metrics that have none."""
    path = write_run(tmp_path, {"personal/acc": [0.7]}, clients=records(["a"], [0.1], [0.7]))
    group = one_group([read_run(path)])
    assert read_domains([group]).cell(group, "a").mean == 0.7


def test_without_domains_there_is_no_table(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / "a", {"x": [1]}, clients=records([""], [0.5]))),
        read_run(write_run(tmp_path / "b", {"x": [1]}, seed=1)),
    ]
    groups = group_runs(runs)
    assert domains_grid("t", groups, read_domains(groups), 1) is None


def test_damaged_records_leave_a_dash_and_do_not_stop_the_others(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", {"x": [1]}, clients=records(["d"], [0.5])),
        write_run(tmp_path / "b", {"x": [1]}, clients=records(["d"], [0.5]), algorithm="FedBC"),
    ]
    (paths[1] / "clients.parquet").write_bytes(b"PAR1")
    groups = group_runs([read_run(path) for path in paths])
    domains = read_domains(groups)
    grid = domains_grid("t", groups, domains, 1)
    assert grid is not None
    assert [row[1].text for row in grid.rows] == ["50.00", "—"]
    assert any("FedBC" in note for note in grid.notes)
    assert domains.unread == [paths[1]]


def test_many_domains_stand_below_each_other(tmp_path: Path) -> None:
    names = [f"play {number:02d}" for number in range(WIDE)]
    clients = records(names, [0.5] * len(names))
    group = one_group([read_run(write_run(tmp_path, {"x": [1]}, clients=clients))])
    grid = domains_grid("t", [group], read_domains([group]), 1)
    assert grid is not None
    assert [row[0].text for row in grid.rows] == [*names, MEAN]
    assert [heading.text for heading in grid.headings] == ["domain", "FedAvg"]
