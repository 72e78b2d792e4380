"""metrics.csv read back: a line that a kill tore is dropped; any other that is no row is refused by its number."""

from pathlib import Path

import pytest

from fedlit.errors import RunError
from fedlit.results.records import read_metrics


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return tmp_path / "metrics.csv"


@pytest.mark.parametrize("torn", ["2,0.25,0.2", "2,0.2", "2,0.2\n", "2,x,0.2\n", ",1,1\n", "\0\0\0", "\udcc3", "\n"])
def test_a_torn_last_line_is_dropped(metrics: Path, torn: str) -> None:
    content = "round,a,b\n0,1,2.5\n1,,nan\n" + torn
    metrics.write_bytes(content.encode(errors="surrogateescape"))
    assert [row["round"] for row in read_metrics(metrics)] == [0, 1]


@pytest.mark.parametrize("end", ["2,3,4\n", "2,3"], ids=["before a row", "before a torn line"])
@pytest.mark.parametrize("bad", ["1,0.5", "1,0.5,1,1", "1,0.5,x", ",0.5,1", ""])
def test_a_bad_line_that_is_not_the_last_is_refused_with_its_number(metrics: Path, bad: str, end: str) -> None:
    metrics.write_text(f"round,a,b\n0,1,2\n{bad}\n{end}")
    with pytest.raises(RunError, match=r"metrics\.csv, line 3"):
        read_metrics(metrics)


@pytest.mark.parametrize("content", ["", "round,a", "epoch,a\n1,2\n"])
def test_metrics_without_a_header_are_refused(metrics: Path, content: str) -> None:
    metrics.write_text(content)
    with pytest.raises(RunError, match="line 1"):
        read_metrics(metrics)


def test_metrics_of_a_folder_without_a_run_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"metrics\.csv does not exist"):
        read_metrics(tmp_path / "metrics.csv")
