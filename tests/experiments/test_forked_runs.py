"""A run that a seat has forked is the run of `fedlit fit` alone: the same files, down to the bits."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedlit.experiments.fork_server import IMPORTED, ForkServer, Imported
from tests.conftest import SHIPPED
from tests.experiments.test_fork_server import CORES, OPEN, START, said
from tests.trainer.test_resume import assert_same_bits, outcome

SMALL = (
    "--trainer.rounds 3 --trainer.clients_per_round 3 --trainer.enable_progress_bar false --wandb disabled "
    "--data.num_clients 6 --data.size_sigma 1"
)
ENGINES = {"sequential": "--trainer.engine sequential", "eager": "--trainer.engine vectorized --trainer.compiled false"}
ALGORITHMS = [path.name for path in SHIPPED if path.name.startswith("synthetic_") and "fedbuff" not in path.name]
QUICK = ("synthetic_fedbc.yaml", "sequential")
ALIKE = ("config.yaml", "partition.json", "partition.png")
MINE = """
import numpy as np
import torch

from fedlit import TensorData


class Mine(TensorData):
    def __init__(self, file: str, seed: int = 0):
        x = torch.from_numpy(np.load(file))
        super().__init__(x, (x[:, 0] > 0).long(), torch.arange(len(x)) % 6, seed=seed)
"""


@pytest.fixture(scope="module")
def seat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A seat in a folder that has a class of the user's."""
    work = tmp_path_factory.mktemp("work")
    (work / "mine.py").write_text(MINE)
    one = ForkServer(CORES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setattr(ForkServer, "_open", OPEN)
        patch.setattr(Imported, "start", START)
        yield one
        one.close()
        IMPORTED.close()


def alone(words: list[str], cores: list[int]) -> None:
    """The command in a process that nothing was imported for, on the cores that a seat has."""
    program = f"import os; os.sched_setaffinity(0, {cores}); from fedlit_start import main; main()"
    line = [sys.executable, "-c", program, *words]
    given = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(line, env=given, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        pytest.param(config, engine, marks=[] if (config, engine) == QUICK else pytest.mark.slow)
        for config in ALGORITHMS
        for engine in ENGINES
    ],
)
def test_a_forked_run_has_the_files_and_the_bits_of_one_alone(
    seat: ForkServer, tmp_path: Path, config: str, engine: str
) -> None:
    words = ["fit", "--config", config, *SMALL.split(), *ENGINES[engine].split()]
    before = said(seat, [*words, "--seed_everything=7", "--run", str(tmp_path / "before")], tmp_path / "log")
    assert before[0] == 0, before[1]
    forked = said(seat, [*words, "--run", str(tmp_path / "forked")], tmp_path / "log")
    assert forked[0] == 0, forked[1]
    alone([*words, "--run", str(tmp_path / "alone")], CORES)
    assert names_in(tmp_path / "forked") == names_in(tmp_path / "alone")
    assert_same_bits(outcome(tmp_path / "forked"), outcome(tmp_path / "alone"))
    for name in ALIKE:
        assert (tmp_path / "forked" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name


def test_a_data_file_that_changes_between_two_runs_is_read_anew(seat: ForkServer, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = ["fit", "--config", "synthetic_fedavg.yaml", "--data", "mine.Mine", "--data.file", str(tmp_path / "x.npy")]
    options = ["--trainer.rounds=1", "--trainer.clients_per_round=3", "--trainer.engine=sequential", "--wandb=disabled"]
    for name in ("one", "two", "three"):
        if name != "two":
            np.save(tmp_path / "x.npy", random.standard_normal((120, 60), dtype=np.float32))
        code, text = said(seat, [*words, *options, "--run", str(tmp_path / name)], tmp_path / "log")
        assert code == 0, text
    one, two, three = ((tmp_path / name / "partition.json").read_bytes() for name in ("one", "two", "three"))
    assert one == two
    assert one != three


def test_a_run_that_fails_leaves_its_own_exit_code_and_traceback(seat: ForkServer, tmp_path: Path) -> None:
    code, text = said(seat, ["fit", "--config", "synthetic_fedavg.yaml", "--model.lr=-1", "--debug"], tmp_path / "log")
    assert code == 1
    assert "Traceback" in text
    assert text.rstrip().splitlines()[-1].startswith("fedlit.errors.ConfigError: ")
