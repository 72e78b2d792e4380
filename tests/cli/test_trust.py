"""What SECURITY.md says of files from elsewhere: which commands run what a config names, and that none unpickles."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlit.cli.main import COMMANDS, READERS
from tests.conftest import TINY, Call

FIT = f"fit {TINY} --trainer.rounds 1"
FOREIGN = "from pathlib import Path\n\nPath(__file__).with_name('imported').touch()\n"


@pytest.fixture
def imported(call: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is there once the class is imported that all of `run/config.yaml` names."""
    assert call(FIT).code == 0
    (workplace / "foreign.py").write_text(FOREIGN)
    monkeypatch.delitem(sys.modules, "foreign", raising=False)
    config = workplace / "run" / "config.yaml"
    config.write_text(re.sub(r"class_path: \S+", "class_path: foreign.Client", config.read_text("utf-8")), "utf-8")
    return workplace / "imported"


@pytest.mark.usefixtures("figures_are_not_drawn")
@pytest.mark.parametrize("words", ["report run", "dashboard run", "export run", "list configs"])
def test_what_only_reads_runs_imports_nothing_that_they_name(call: Call, imported: Path, words: str) -> None:
    assert call(words).code == 0
    assert not imported.exists()


@pytest.mark.parametrize(
    "words",
    [
        "evaluate run",
        "fit --config run/config.yaml --run other",
        "data --config run/config.yaml",
        "conformance --config run/config.yaml",
        "conformance --algorithm foreign.Client",
    ],
)
def test_what_builds_a_run_imports_what_its_config_names(call: Call, imported: Path, words: str) -> None:
    call(words)
    assert imported.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_modules_of_the_working_folder_are_found_by_those_commands_alone_that_build(
    call: Call, workplace: Path, command: str
) -> None:
    assert call(f"{command} nothing").code == 2
    assert (str(workplace) in sys.path) == (command not in READERS)


class Program:
    """What a pickle may hold: a call."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("called",)


@pytest.mark.parametrize("words", ["export run", "evaluate run", f"{FIT} --resume"])
def test_a_checkpoint_that_holds_a_program_is_refused_and_not_run(call: Call, words: str) -> None:
    assert call(FIT).code == 0
    for path in Path("run", "checkpoints").glob("*.ckpt"):
        torch.save({"loops": Program()}, path)
    answer = call(words)
    assert answer.code != 0
    assert "damaged" in answer.err
    assert not Path("called").exists()
