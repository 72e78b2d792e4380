"""Sweep files for the tests, and the smallest runs that they can be made of."""

import shlex
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from fedlit.cli.main import main
from fedlit.experiments.sweep.file import SweepFile, read_sweep
from tests.conftest import Answer

COMMAND = ["${env}", "${program}", "fit", "--config", "synthetic_fedbc.yaml", "${args}"]
TINY = (
    "--data.num_clients 4 --data.size_sigma 0 --data.size_mean 1 --data.size_min 12 --trainer.clients_per_round 2 "
    "--trainer.rounds 3 --trainer.engine sequential --trainer.checkpoint_every 1 --wandb disabled"
)
"""Overrides of a run of FedBC on Synthetic that takes a quarter of a second, after seconds of starting."""
TOO_FAST = 1e12
"""A learning rate with which such a run diverges."""


def write_sweep(path: Path, parameters: Mapping[str, Any], **keys: Any) -> Path:
    """A sweep file over these parameters; a key that is None is left out."""
    content = {
        "program": "fedlit",
        "command": COMMAND,
        "method": "grid",
        "metric": {"name": "val/acc", "goal": "maximize"},
        "parameters": dict(parameters),
    }
    path.write_text(yaml.safe_dump({key: value for key, value in (content | keys).items() if value is not None}))
    return path


def make_sweep(folder: Path, parameters: Mapping[str, Any], **keys: Any) -> SweepFile:
    """The same, read back."""
    return read_sweep(write_sweep(folder / "sweep.yaml", parameters, **keys))


def answer_of(words: str) -> Answer:
    """The command line in this process, for what outlives a test and so cannot use `call`."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(shlex.split(words))
    assert isinstance(ended.value.code, int)
    return Answer(ended.value.code, out.getvalue(), err.getvalue())
