"""A table of two rows and two columns for the tests of `fedlit reproduce`; a run takes a quarter of a second."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from fedlit.experiments.reproduce.runs import Reproduction
from fedlit.experiments.reproduce.table import TableFile
from fedlit.experiments.reproduce.table_file import read_table_file
from fedlit.experiments.trials import TrialLog

TINY: dict[str, Any] = {
    "title": "Tiny: two rows and two columns",
    "paper": "fedbc_table1_synthetic_global",
    "rounds": 2,
    "seeds": 2,
    "cell": {"metric": "global/acc", "last": 2},
    "set": {
        "data.num_clients": 4,
        "data.size_sigma": 0,
        "data.size_mean": 1,
        "data.size_min": 12,
        "trainer.clients_per_round": 2,
        "trainer.engine": "sequential",
        "trainer.checkpoint_every": 1,
    },
    "columns": {
        "E=1": {"set": {"model.local_epochs": 1}, "paper": {"E": 1}, "seconds": 10},
        "E=5": {"set": {"model.local_epochs": 5}, "paper": {"E": 5}, "seconds": 20},
    },
    "rows": {
        "FedAvg": {"config": "synthetic_fedavg.yaml", "paper": {"algorithm": "FedAvg"}},
        "FedBC": {"config": "synthetic_fedbc.yaml", "set": {"model.lr": 0.1}, "paper": {"algorithm": "FedBC"}},
    },
}
SEARCH = {"seed": 5, "metric": "val/acc", "last": 2}


def write_table(folder: Path, **keys: Any) -> Path:
    """tiny.yaml with some of its keys replaced; a key that is None is left out."""
    content = {key: value for key, value in (deepcopy(TINY) | keys).items() if value is not None}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def make_table(folder: Path, **keys: Any) -> TableFile:
    """The same, read back."""
    return read_table_file(write_table(folder, **keys))


def make_reproduction(folder: Path, **keys: Any) -> Reproduction:
    """All cells of it, of which nothing has been run."""
    table = make_table(folder, **keys)
    return Reproduction(table, table.cells, table.seeds, table.rounds, TrialLog(folder / "out" / "reproduce.json", {}))
