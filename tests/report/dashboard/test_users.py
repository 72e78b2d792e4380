"""The users of one run in a real browser: who has how much data, and who loses."""

from pathlib import Path
from typing import Any

import pytest

from fedlit.report.dashboard import write_dashboard
from fedlit.results.records import read_clients
from fedlit.results.runs import find_runs
from tests.client.test_own_states import Moody
from tests.problems import run, tiny_net
from tests.report.dashboard.browser import Page
from tests.report.dashboard.made import make_run

FIRST_RUN = "fedavg-0"


def records(folder: Path, round: int) -> list[dict[str, Any]]:
    """The client records of one round."""
    return [row for row in read_clients(folder).to_pylist() if row["round"] == round]


def test_users_come_by_data_size_with_accuracy_under_z_and_of_the_own_models(
    page: Page, dashboard: Path, trained: Path
) -> None:
    page.open(dashboard, "tab=users")
    known = sorted(records(trained / FIRST_RUN, 12), key=lambda row: -row["size"])
    assert [int(text) for text in page.column(1)] == [row["client"] for row in known]
    assert [int(text) for text in page.column(2)] == [row["size"] for row in known]
    for column, name in ((3, "acc_global"), (4, "acc_local"), (5, "acc_personal")):
        assert [float(text) for text in page.column(column)] == pytest.approx(
            [100 * row[name] for row in known], abs=0.0051
        )


@pytest.mark.parametrize(
    ("by", "name"), [("acc_global", "acc_global"), ("acc_local", "acc_local"), ("weight", "weight"), ("loss", "loss")]
)
def test_table_and_picture_are_sorted_alike_in_both_directions(
    page: Page, dashboard: Path, trained: Path, by: str, name: str
) -> None:
    page.open(dashboard, "tab=users")
    page.choose("#user-sort", by)
    known = [row for row in records(trained / FIRST_RUN, 12) if row[name] == row[name]]
    order = [int(text) for text in page.column(1)]
    values = {row["client"]: row[name] for row in known}
    listed = [values[client] for client in order if client in values]
    assert listed == sorted(values.values(), reverse=True)
    assert [client in values for client in order] == sorted([client in values for client in order], reverse=True)
    assert [int(dot.get_attribute("data-client") or -1) for dot in page.find("circle.under-z[data-client]")] == order
    page.click("#user-direction")
    assert [values[int(text)] for text in page.column(1) if int(text) in values] == sorted(values.values())


def test_fedbcs_users_can_be_sorted_by_their_dual(page: Page, dashboard: Path, trained: Path) -> None:
    page.open(dashboard, "tab=users")
    assert page.find("[data-column=dual]") == [], "FedAvg keeps none"
    page.choose("#user-run", page.js("return [...document.querySelectorAll('#user-run option')].at(-1).value"))
    page.click("[data-column=dual]")
    known = sorted(records(trained / "fedbc-1", 12), key=lambda row: -row["dual"])
    assert [int(text) for text in page.column(1)] == [row["client"] for row in known]
    assert page.one("th[aria-sort=descending]").text.startswith("dual λ")


def test_what_a_users_own_algorithm_keeps_is_a_column_and_bars(page: Page, tmp_path: Path) -> None:
    run(Moody(tiny_net(), lr=0.3, batch_size=4), rounds=3, run=str(tmp_path / "run"))
    write_dashboard(find_runs([tmp_path / "run"]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "tab=users")
    page.click("[data-column=mood]")
    known = sorted(records(tmp_path / "run", 3), key=lambda row: -row["mood"])
    assert [int(text) for text in page.column(1)] == [row["client"] for row in known]
    assert "mood" in page.texts("svg.users text.name")
    assert "mood" in page.texts("#user-sort option")


def test_the_slider_shows_another_round(page: Page, dashboard: Path, trained: Path) -> None:
    page.open(dashboard, "tab=users&by=client&rising=1")
    page.choose("#user-round", "3")
    assert page.texts(".round output") == ["3 of 12"]
    known = sorted(records(trained / FIRST_RUN, 3), key=lambda row: row["client"])
    assert [float(text) for text in page.column(3)] == pytest.approx(
        [100 * row["acc_global"] for row in known], abs=0.0051
    )
    page.reload()
    assert page.texts(".round output") == ["3 of 12"]


def test_hover_names_a_users_size_group_and_accuracies(page: Page, tmp_path: Path) -> None:
    run = make_run(tmp_path / "made", clients=4)
    write_dashboard(find_runs([run]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "tab=users&by=client&rising=1")
    page.hover("svg.users", -20, 0)
    heading, rows = page.tip()
    known = {f"Client {row['client']}": row for row in records(run, 5)}[heading]
    assert rows["data size"] == str(known["size"])
    assert rows["group"] == known["group"]
    assert rows["accuracy under z"] == f"{100 * known['acc_global']:.2f} %"
    assert rows["accuracy of own x_i"] == f"{100 * known['acc_local']:.2f} %"
    assert rows["accuracy of personal model"] == f"{100 * known['acc_personal']:.2f} %"


def test_the_sentence_says_who_loses(page: Page, dashboard: Path, trained: Path) -> None:
    page.open(dashboard, "tab=users")
    known = records(trained / FIRST_RUN, 12)
    lowest = min(row["acc_global"] for row in known)
    worst = [str(row["client"]) for row in known if row["acc_global"] == lowest]
    worse = sum(row["acc_personal"] < row["acc_global"] for row in known)
    said = page.texts("#user-facts")[0]
    assert f"at or below {100 * lowest:.2f} %: {', '.join(worst)}." in said
    assert f"worse for {worse} of 4 users" in said


def test_a_run_without_client_records_says_what_to_do(page: Page, tmp_path: Path) -> None:
    run = make_run(tmp_path / "made")
    (run / "clients.parquet").unlink()
    write_dashboard(find_runs([run]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "tab=users")
    assert "choose another run, or continue this one" in page.texts("#view")[0]


def test_rounds_that_have_no_room_are_left_out_and_the_page_says_so(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlit.report.dashboard.content.USER_ROWS", 40)
    monkeypatch.setattr("fedlit.report.dashboard.content.METRIC_VALUES", 1000)
    run = make_run(tmp_path / "made", rounds=100, clients=4)
    write_dashboard(find_runs([run]), tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    assert "evenly spaced ones are kept, the first and the last among them (" in page.texts("#remarks li")[0]
    page.click("#tab-users")
    assert page.texts(".round output") == ["100 of 100"]
    assert "holds 10 of the 101 evaluated rounds" in page.texts(".note")[-1]
    page.choose("#user-round", "0")
    assert page.texts(".round output") == ["0 of 100"]
