"""What a federation came to, beside a simulation: z, metrics, and what clients and server keep."""

import csv
from pathlib import Path

import torch
from torch import Tensor

from fedlit.remote.node_rows import NodeRows
from fedlit.trainer.restore import Restored


def metrics(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in csv.DictReader(file)]


def held_by_nodes(folder: Path, names: list[str], run: str) -> dict[str, Tensor]:
    """The newest rows of each node in a run."""
    rows: dict[str, Tensor] = {}
    for client, name in enumerate(names):
        store = NodeRows(folder / name / run)
        kept = store.read(store.rounds[-1]) if store.rounds else {}
        rows |= {f"{row} of {client}": value[0] for row, value in kept.items()}
    return rows


def difference(real: Path, simulated: Path, at_nodes: dict[str, Tensor]) -> list[str]:
    """Names of what differs between a federation and its simulation: z, metrics, what clients and server keep."""
    ours, theirs = Restored.of(real), Restored.of(simulated)
    differing = [name for name, value in theirs.model.items() if not torch.equal(value, ours.model[name])]
    rows = {f"{name} of {k}": theirs.states.row(name, k) for k in theirs.states.touched for name in rows_of(theirs)}
    at_server = {f"{name} of {k}": ours.states.row(name, k) for k in ours.states.touched for name in rows_of(ours)}
    held = at_nodes | at_server
    differing += [name for name, value in rows.items() if name not in held or not torch.equal(value, held[name])]
    for one, other in zip(metrics(simulated), metrics(real), strict=True):
        differing += [name for name in one if one[name] != other[name]]
    return differing


def rows_of(run: Restored) -> list[str]:
    """Names of the rows of clients."""
    return list(run.states.state_dict()["rows"])
