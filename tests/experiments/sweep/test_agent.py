"""W&B's own agent runs a sweep file of fedlit's: the real agent and the real command, with a server of this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.sweep.agent_server import SWEEP, SweepServer, serving
from tests.experiments.sweep.sweeps import COMMAND, TINY, write_sweep
from tests.trainer.wandb.offline import offline_runs

TRIALS = [{"model.dual_lr": 0.001, "model.lr": 0.02}, {"model.dual_lr": 0.01, "model.lr": 0.1}]


@pytest.mark.slow
def test_wandb_agent_runs_the_command_of_the_file_and_the_run_knows_its_sweep(workplace: Path) -> None:
    small = [*TINY.replace("--wandb disabled", "").split(), "--wandb", "offline"]
    ranges = {name: {"values": [values[name] for values in TRIALS]} for name in TRIALS[0]}
    path = write_sweep(workplace / "rates.yaml", ranges, command=[*COMMAND[:-1], *small, COMMAND[-1]])
    server = SweepServer(path, TRIALS)
    with serving(server) as address:
        answer = subprocess.run(
            [sys.executable, "-m", "wandb", "agent", f"tests/sweeps/{SWEEP}"],
            env=os.environ | environment(address),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert {"SweepWithRuns", "CreateAgent", "Heartbeat"} <= set(server.asked)
    folders = sorted(path.parent for path in Path("runs").rglob("summary.json"))
    assert len(folders) == len(TRIALS)
    found = [(json.loads((folder / "summary.json").read_text()), only(folder)) for folder in folders]
    assert all(summary["finished"] for summary, _ in found)
    assert {run.run.run_id for _, run in found} == {"trial000", "trial001"}
    assert {run.run.sweep_id for _, run in found} == {SWEEP}
    rates = [tuple(dict(run.config)[name] for name in TRIALS[0]) for _, run in found]
    assert sorted(rates) == [tuple(values.values()) for values in TRIALS]


def environment(address: str) -> dict[str, str]:
    """What an agent needs: where the server is, a key for it, and the fedlit of this checkout under its name."""
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "PATH": os.pathsep.join(folders)}


def only(folder: Path) -> object:
    """The offline run of a run folder."""
    (run,) = offline_runs(folder)
    return run
