"""Charts as files, saved by a real browser."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedlit.report.dashboard import write_dashboard
from fedlit.results.records import read_clients
from fedlit.results.runs import find_runs
from tests.report.dashboard.browser import Page, row_of
from tests.report.dashboard.made import make_run

SVG = "{http://www.w3.org/2000/svg}"
PICTURE, TABLE = "figcaption .save:nth-child(1)", "figcaption .save:nth-child(2)"


def table_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def test_a_table_holds_what_was_measured_whether_lines_are_smoothed_or_not(
    page: Page, dashboard: Path, trained: Path, tmp_path: Path
) -> None:
    page.open(dashboard, "mode=runs&metrics=global/loss&smooth=5")
    file = page.download(TABLE, tmp_path)
    assert file.name == "global-loss.csv"
    rows = table_of(file)
    assert [row["round"] for row in rows if row["label"] == "FedBC, seed 1"] == [str(round) for round in range(13)]
    for row in rows:
        name, _, seed = row["label"].partition(", seed ")
        known = row_of(trained / f"{name.lower()}-{seed}", int(row["round"]))["global/loss"]
        assert float(row["value"]) == pytest.approx(known, rel=6e-7), "seven digits of a 32-bit float"
        assert (row["data"], row["metric"], row["std"], row["runs"]) == ("TensorData", "global/loss", "", "1")
    assert len(rows) == 4 * 13


def test_a_table_of_groups_has_means_deviations_and_the_axis(page: Page, dashboard: Path, tmp_path: Path) -> None:
    page.open(dashboard, "metrics=global/loss&x=steps")
    rows = table_of(page.download(TABLE, tmp_path))
    assert list(rows[0]) == ["data", "label", "metric", "client steps (all clients)", "value", "std", "runs"]
    assert {row["runs"] for row in rows} == {"2"}
    assert all(float(row["std"]) >= 0 for row in rows)


def test_a_picture_stands_alone_on_white_with_title_and_legend(page: Page, dashboard: Path, tmp_path: Path) -> None:
    page.prefer("dark")
    page.open(dashboard, "metrics=global/acc")
    drawn = page.lines()
    file = page.download(PICTURE, tmp_path)
    root = ElementTree.parse(file).getroot()
    assert root.tag == f"{SVG}svg"
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert texts[0] == "global accuracy"
    assert texts[-2:] == ["FedAvg", "FedBC"]
    lines = [path for path in root.iter(f"{SVG}path") if path.get("fill") == "none"]
    assert [line.get("d") for line in lines] == drawn
    assert lines[0].get("stroke") == "rgb(0, 92, 171)", "FedAvg's colour on paper, also where the page is dark"
    assert next(root.iter(f"{SVG}rect")).get("fill") == "rgb(255, 255, 255)"
    assert not any(element.get("class") for element in root.iter())


def test_min_and_max_user_are_saved_with_their_metrics(page: Page, dashboard: Path, tmp_path: Path) -> None:
    page.open(dashboard, "tab=extremes")
    rows = table_of(page.download(TABLE, tmp_path))
    assert {(row["metric"], row["label"]) for row in rows} == {
        (f"{user}_user/acc", f"{user} user: FedAvg") for user in ("min", "max")
    }
    assert {row["mean over"] for row in rows} == {"10"}


def test_users_are_saved_with_every_column(page: Page, dashboard: Path, trained: Path, tmp_path: Path) -> None:
    page.open(dashboard, "tab=users&by=client&rising=1")
    rows = table_of(page.download(TABLE, tmp_path))
    known = [row for row in read_clients(trained / "fedavg-0").to_pylist() if row["round"] == 12]
    assert [float(row["acc_global"]) for row in rows] == pytest.approx([row["acc_global"] for row in known], rel=1e-6)
    assert [int(row["size"]) for row in rows] == [row["size"] for row in known]
    assert ElementTree.parse(page.download(PICTURE, tmp_path)).getroot().tag == f"{SVG}svg"


def test_final_values_are_saved(page: Page, dashboard: Path, trained: Path, tmp_path: Path) -> None:
    page.open(dashboard, "tab=finals&mode=runs&metrics=global/acc")
    rows = table_of(page.download(".note .save", tmp_path))
    first = row_of(trained / "fedavg-0", 12)["global/acc"]
    assert rows[0]["label"] == "FedAvg, seed 0"
    assert float(rows[0]["global/acc"]) == pytest.approx(first, rel=1e-6)


def test_names_are_text_in_files_and_harmless_in_their_names(page: Page, tmp_path: Path) -> None:
    evil = '<script>alert(1)</script>", ../x'
    for number, note in enumerate((evil, "other")):
        make_run(tmp_path / "runs" / str(number), data={"note": note})
    write_dashboard(find_runs([tmp_path / "runs"]), tmp_path / "page.html")
    (tmp_path / "saved").mkdir()
    page.open(tmp_path / "page.html", "metrics=global/acc")
    assert {row["data"] for row in table_of(page.download(TABLE, tmp_path / "saved"))} == {f"Synthetic note={evil}"}
    picture = page.download(PICTURE, tmp_path / "saved")
    assert picture.name == "global-accuracy-Synthetic-note=-script-alert-1-script-..-x.svg"
    root = ElementTree.parse(picture).getroot()
    title = [text.text or "" for text in root.iter(f"{SVG}text") if text.get("font-weight") == "600"]
    assert " ".join(title) == f"global accuracy, Synthetic note={evil}"
    assert not list(root.iter(f"{SVG}script"))
