"""What README and docs show is run: Python blocks as they stand (with fewer rounds), commands on small data."""

import inspect
import re
import shlex
from pathlib import Path

import pytest

from fedlit import Client, FedAvg, ServerCallback
from fedlit.cli import main
from fedlit.config.parse_errors import argument_names
from tests.problems import run, tiny_net

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"  # its blocks are run one after the other, by tests/docs
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - {TUTORIAL})
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
COMMANDS = re.findall(r"^fedlit (fit --config .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
FIRST = "".join((ROOT / page).read_text() for page in ("README.md", "docs/start.md", "docs/howto.md"))
"""The pages that a newcomer types in reading order, in one folder, after `make run`."""
SMALL = "--trainer.rounds 2 --trainer.engine sequential --data.num_clients 12 --data.size_sigma 0.5"


def arguments_of(command: str) -> list[str]:
    """A command's words without its comment, on small data."""
    return shlex.split(command, comments=True) + shlex.split(SMALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "from datasets import" in block:
        pytest.importorskip("datasets", reason="the package datasets (extra hf) is not installed")
    if "import peft" in block:
        pytest.importorskip("peft", reason="the packages peft and transformers (extra peft) are not installed")
    if 'Path("runs")' in block:  # what a reader has by then
        run(FedAvg(tiny_net()), rounds=1, run="runs/mine")
    names = {"x": [[0.0], [1.0], [2.0], [3.0]] * 3, "y": [0, 1, 0, 1] * 3, "client": [0] * 6 + [1] * 6}
    names |= {"__name__": "__main__"}  # as in a file that is run
    arrays = "import numpy as np\nx, y, client = np.array(x), np.array(y), np.array(client)\n"
    exec(arrays + re.sub(r"rounds=\d+", "rounds=2", block), names)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(SystemExit) as ended:
        main.main(arguments_of(command))
    assert ended.value.code == 0


def test_no_example_begins_a_run_where_another_is() -> None:
    lines = [line for line in FIRST.splitlines() if "resume" not in line]
    named = [found for line in lines for found in re.findall(r'(?:--run |--out |run=")([\w/]+)', line)]
    unnamed = [line.split()[3] for line in lines if line.startswith("fedlit fit --config ") and "--run " not in line]
    begun = ["synthetic_fedbc.yaml", *unnamed, *named]  # `make run` is the first
    assert len(begun) > 10
    assert sorted(begun) == sorted(set(begun))


def test_the_environment_is_activated_before_the_first_command() -> None:
    for page in ("README.md", "docs/start.md", "docs/howto.md"):
        text = (ROOT / page).read_text()
        assert text.index("source .venv/bin/activate") < text.index("\nfedlit "), page


def test_extending_lists_the_options_whose_names_are_taken_and_every_hook() -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    hooks = [name for name, own in vars(ServerCallback).items() if name.startswith("on_") and callable(own)]
    signatures = [
        f"`{name}({', '.join(inspect.signature(getattr(ServerCallback, name)).parameters)})`" for name in hooks
    ]
    assert len(hooks) == 6
    assert [name for name in argument_names(Client) if f"`{name}`" not in text] == []
    assert [signature for signature in signatures if signature not in text] == []


def test_readme_shows_the_two_commands_first() -> None:
    start = (ROOT / "README.md").read_text()[:600]
    assert "make run" in start
    assert "make test" in start


def test_every_algorithm_has_a_row_a_page_and_a_config() -> None:
    text = (ROOT / "README.md").read_text()
    paths = list((ROOT / "fedlit" / "algorithms").glob("[!_]*.py"))
    assert len(paths) >= 14
    for path in paths:
        assert f"fedlit/algorithms/{path.name}" in text
        assert (ROOT / "docs" / "algorithms" / f"{path.stem}.md").is_file()
        assert (ROOT / "configs" / f"synthetic_{path.stem}.yaml").is_file()
