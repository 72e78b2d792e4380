"""Every shipped config learns: at its own values, after a few rounds, it is better than chance by a margin."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedlit.results.runs import read_run
from tests.config.test_shipped_configs import root_of
from tests.conftest import SHIPPED, Call
from tests.real_files import Real

MARGIN = 1.5
"""Times the accuracy of a guess."""
CLASSES = {"Shakespeare": 80}
"""Ten elsewhere."""
SMALL_STEPS = 60
"""Rounds where a client takes at most five steps in one (FedBCD's experiments)."""
ROUNDS = {"Synthetic": 10, "CIFAR10": 10, "Shakespeare": 3}
"""By data set; five elsewhere."""


def content_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def rounds_of(config: dict[str, Any]) -> int:
    """A few, as many as its local work needs."""
    if "most_steps" in config["model"]["init_args"]:
        return SMALL_STEPS
    return ROUNDS.get(config["data"]["class_path"], 5)


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_config_is_better_than_chance_after_a_few_rounds(path: Path, call: Call, real: Real, tmp_path: Path) -> None:
    config = content_of(path)
    data = config["data"]["class_path"]
    root = "" if data == "Synthetic" else f"--data.root {root_of(data, real, tmp_path)}"
    rounds = rounds_of(config)
    answer = call(f"fit --config {path.name} {root} --trainer.rounds {rounds} --trainer.eval_every {rounds} --run run")
    assert answer.code == 0, answer
    run = read_run(Path("run"))
    reached = [run.final(name) for name in ("global/acc", "personal/acc")]  # z is not a model of its own everywhere
    best = max(value for value in reached if value is not None and value == value)
    assert best >= MARGIN / CLASSES.get(data, 10), f"{best:.1%} after {rounds} rounds"
