"""The tutorial's notebook, top to bottom: it is made from the page, and its cells are run one after the other."""

import json
import re
import shlex
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from fedlit.cli import main

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
SHORTER = [(r"rounds(=|: )10\b", r"rounds\g<1>2"), (r"\[0\.01, 0\.1, 1\.0\]", "[0.1]"), ("--seeds 3", "--seeds 1")]
"""What a test need not wait for."""


def cells() -> list[str]:
    """The code of the notebook."""
    content = json.loads(NOTEBOOK.read_text())
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def run_cell(code: str, names: dict[str, Any]) -> None:
    """As Jupyter would: a line with an exclamation mark is a command, which imports the user's files anew."""
    if not code.startswith("!"):
        exec(compile(code, "<cell>", "exec"), names)
        return
    sys.modules.pop("mine", None)
    with pytest.raises(SystemExit) as ended:
        main.main(shlex.split(code.removeprefix("!fedlit ")))
    assert ended.value.code == 0, code


def run_all(shorter: list[tuple[str, str]]) -> dict[str, Any]:
    """Every cell in its turn, in the working folder."""
    names: dict[str, Any] = {}
    for code in cells():
        for old, new in shorter:
            code = re.sub(old, new, code)
        run_cell(code, names)
    return names


@pytest.fixture
def folder(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder from which modules can be imported, as in a notebook."""
    monkeypatch.syspath_prepend("")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return workplace


def check_what_is_left(folder: Path, names: dict[str, Any], seeds: int) -> None:
    sys.modules.pop("mine", None)
    report = folder / "runs" / "paper" / "report"
    assert "SizedProx" in (report / "tables.tex").read_text()
    assert (report / "report.html").is_file()
    found = sorted(path.parent.name for path in (folder / "runs" / "paper").glob("*/summary.json"))
    assert len(found) == 2 * seeds
    assert names["final"]["global/acc"] > 0.4, "a third would be guessing"


@pytest.mark.usefixtures("figures_are_not_drawn")
def test_the_tutorial_runs_top_to_bottom(folder: Path) -> None:
    check_what_is_left(folder, run_all(SHORTER), seeds=1)


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands(folder: Path) -> None:
    check_what_is_left(folder, run_all([]), seeds=3)


def test_the_notebook_is_the_page() -> None:
    spec = spec_from_file_location("notebook", ROOT / "docs" / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert NOTEBOOK.read_text() == module.written(), "run: python docs/notebook.py"


def test_the_notebook_has_no_outputs() -> None:
    content = json.loads(NOTEBOOK.read_text())
    assert all(not cell.get("outputs") for cell in content["cells"])
