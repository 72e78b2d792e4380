"""The file that is written, without a browser."""

import base64
import hashlib
import json
import logging
import re
from pathlib import Path

import pytest

from fedlit.report.dashboard import page as parts
from fedlit.report.dashboard import write_dashboard
from fedlit.results.runs import find_runs
from tests.conftest import Call
from tests.report.dashboard.made import make_run


def written(folder: Path) -> str:
    """The dashboard of the runs in a folder."""
    write_dashboard(find_runs([folder]), folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8")


def test_every_script_of_the_folder_is_in_the_page_after_what_it_imports() -> None:
    assert sorted(parts.SCRIPTS) == sorted(path.stem for path in (parts.HERE / "js").glob("*.js"))
    for position, name in enumerate(parts.SCRIPTS):
        needed = re.findall(r'from "\./(\w+)\.js"', (parts.HERE / "js" / f"{name}.js").read_text())
        assert set(needed) <= set(parts.SCRIPTS[:position])


def test_no_import_or_export_is_left_in_the_joined_script() -> None:
    assert re.search(r"^(import|export)\b", parts.joined_script(), re.MULTILINE) is None


def test_the_policy_allows_this_style_and_this_script_only(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    text = written(tmp_path)
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[0]
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[0]
    script = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)[0]
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)]
    assert policy.startswith("default-src 'none';")
    assert re.findall(r"sha256-([^']*)'", policy) == hashes
    assert "unsafe" not in policy


def test_nothing_is_fetched_from_anywhere(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    text = written(tmp_path)
    assert set(re.findall(r"https?://[^\"'\s]*", text)) == {"http://www.w3.org/2000/svg"}
    assert re.search(r"\b(src|href)=", text) is None


def test_data_can_neither_end_their_element_nor_stand_for_a_part_of_the_page(tmp_path: Path) -> None:
    make_run(tmp_path / "</script>{{script}}", note="<!--{{style}}")
    make_run(tmp_path / "other", note="x")
    text = written(tmp_path)
    index = re.findall(r'id="index">(.*?)</script>', text)[0]
    assert "<" not in index
    assert {run["name"] for run in json.loads(index)["runs"]} == {"</script>{{script}}", "other"}
    assert text.count('<script type="module">') == 1


def test_damaged_client_records_leave_the_curves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path / "run")
    (run / "clients.parquet").write_bytes((run / "clients.parquet").read_bytes()[:-20])
    with caplog.at_level(logging.WARNING, "fedlit"):
        text = written(tmp_path)
    assert str(run) in caplog.text
    assert 'id="metrics-' in text
    assert 'id="users-' not in text


def test_a_runs_key_stays_when_the_folder_is_moved(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "one")
    make_run(tmp_path / "a" / "two", seed=1)
    before = re.findall(r'id="metrics-([0-9a-f]{8})"', written(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    assert re.findall(r'id="metrics-([0-9a-f]{8})"', written(tmp_path / "b")) == before
    assert len(set(before)) == 2


def test_the_command_writes_into_the_folder_it_is_given(call: Call, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    make_run(tmp_path / "runs" / "two", seed=1)
    answer = call(f"dashboard {tmp_path / 'runs'}")
    assert answer.code == 0
    assert answer.out.startswith(f"{tmp_path / 'runs' / 'dashboard.html'}: 2 runs in 1 group, ")
    assert (tmp_path / "runs" / "dashboard.html").is_file()


def test_the_command_writes_several_folders_here_or_where_it_is_told(
    call: Call, tmp_path: Path, workplace: Path
) -> None:
    folders = f"{make_run(tmp_path / 'one')} {make_run(tmp_path / 'two', 'FedAvg')}"
    assert call(f"dashboard {folders}").out.startswith("dashboard.html: 2 runs in 2 groups, ")
    assert (workplace / "dashboard.html").is_file()
    assert call(f"dashboard {folders} --out other.html").code == 0
    assert (workplace / "other.html").is_file()


@pytest.mark.parametrize("out", ["nowhere/page.html", "."])
def test_a_place_that_cannot_be_written_is_refused(call: Call, tmp_path: Path, out: str) -> None:
    run = make_run(tmp_path / "one")
    answer = call(f"dashboard {run} --out {out}")
    assert answer.code == 2
    assert answer.err.startswith(f"fedlit: --out {out} cannot be written.")
    assert answer.err.count("\n") == 1


def test_a_folder_without_runs_is_refused(call: Call, tmp_path: Path) -> None:
    answer = call(f"dashboard {tmp_path}")
    assert answer.code == 2
    assert "no run with a finished round" in answer.err
