"""The examples of tasks and of Hugging Face's data sets in the guide: they run as they stand, and are shown."""

import re
from pathlib import Path
from typing import Any

import pytest

from fedlit.report import write_report
from fedlit.report.dashboard.content import content_of
from fedlit.results.runs import find_runs

DOCS = Path(__file__).parents[2] / "docs"


def block_below(page: str, heading: str) -> str:
    """The first block of Python below a heading."""
    text = (DOCS / page).read_text().partition(f"\n{heading}\n")[2]
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None, heading
    return found[1]


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    code = code.replace("rounds=5", "rounds=2, engine='sequential', enable_progress_bar=False")
    exec(compile(code, "<example>", "exec"), names)
    return names


def lines_of(code: str) -> int:
    """Without imports and empty ones."""
    return sum(bool(line) and not line.startswith(("import", "from")) for line in code.splitlines())


@pytest.mark.usefixtures("figures_are_not_drawn")
@pytest.mark.parametrize(
    ("heading", "folder", "measures"),
    [
        ("### A regression", "runs/regression", ["mse", "mae", "r2"]),
        ("### The next token", "runs/next_token", ["acc", "ppl"]),
        ("### Several labels", "runs/multilabel", ["acc", "auroc", "f1score"]),
        ("### A class for each pixel", "runs/segmentation", ["acc", "jaccardindex"]),
    ],
)
def test_a_task_takes_five_lines_and_has_its_measures_in_report_and_dashboard(
    heading: str, folder: str, measures: list[str], workplace: Path
) -> None:
    code = block_below("data.md", heading)
    assert lines_of(code) == 5
    run(code)
    runs = find_runs([workplace / folder])
    write_report(runs, workplace / "report")
    drawn = {path.stem for path in (workplace / "report").rglob("*.png")}
    assert {"accuracy" if name == "acc" else name for name in measures} <= drawn
    index = content_of(runs).index
    assert {f"global/{name}" for name in measures} <= {metric["name"] for metric in index["metrics"]}
    assert index["measures"][0]["name"] == measures[0]


@pytest.mark.usefixtures("workplace")
def test_a_net_with_two_inputs_trains() -> None:
    trainer = run(block_below("data.md", "### Several inputs"))["trainer"]
    assert trainer.summary["rounds"] == 2


def test_a_data_set_of_hugging_face_takes_five_lines(workplace: Path) -> None:
    pytest.importorskip("datasets", reason="the package datasets (extra hf) is not installed")
    code = block_below("data.md", "### A data set of Hugging Face")
    assert lines_of(code) <= 5
    trainer = run(code)["trainer"]
    assert (trainer.loop.data.client_names, trainer.loop.data.num_classes) == (list("abcdef"), 3)


def test_a_task_of_ones_own_runs() -> None:
    names = run(block_below("howto.md", "## Choose a task, or write one"))
    assert names["trainer"].history["global/near"][-1] > names["trainer"].history["global/near"][0]


@pytest.mark.usefixtures("workplace")
def test_a_lightning_module_is_federated_in_three_lines() -> None:
    [block] = re.findall(r"```python\n(.*?)```", (DOCS / "lightning-module.md").read_text(), re.DOTALL)
    module, lines = block.split("# the three lines:\n")
    assert lines_of(lines) == 2
    trainer = run(module + lines)["trainer"]
    assert {"train_loss", "train_acc", "global/testf1", "users/testf1_min"} <= set(trainer.loop.history.rows[-1])
