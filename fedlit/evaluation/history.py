"""The numbers of a run: the rows so far, the servers' rows, and the best model. All are in every checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedlit.errors import ConfigError
from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.params import Params, clone


class History:
    """The rows of metrics.csv, in memory and in every checkpoint. A row leaves NaN out."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.rounds: list[int] = []
        self.rows: list[dict[str, float]] = []

    def add(self, round: int, values: dict[str, float]) -> None:
        """Add the row of a round."""
        self.rounds.append(round)
        self.rows.append(self.row(values))

    def row(self, values: dict[str, float]) -> dict[str, float]:
        """The values without NaN."""
        return {name: value for name, value in values.items() if value == value}

    def check(self, values: dict[str, float]) -> None:
        """ConfigError for an undeclared metric: columns are fixed when a run starts, so it would be lost."""
        unknown = sorted(set(values) - set(self.columns))
        if unknown:
            raise ConfigError(
                f"A server callback added the metric '{unknown[0]}', but no callback declares it. Name it in that "
                "callback's `metrics` tuple."
            )

    def numbered(self) -> list[dict[str, float]]:
        """The rows with their round."""
        return [{"round": round, **row} for round, row in zip(self.rounds, self.rows, strict=True)]

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """(rounds, values) of one metric, for the rounds in which it was measured."""
        measured = [(r, row[name]) for r, row in zip(self.rounds, self.rows, strict=True) if name in row]
        return [r for r, _ in measured], [value for _, value in measured]

    def last(self) -> dict[str, float]:
        """The newest value of every metric."""
        newest: dict[str, float] = {}
        for row in self.rows:
            newest |= row
        return {name: newest[name] for name in self.columns if name in newest}

    def state_dict(self) -> dict[str, Any]:
        """One matrix (rounds, columns), with NaN for missing values: small, and only tensors and plain data."""
        values = [[row.get(name, torch.nan) for name in self.columns] for row in self.rows]
        return {
            "columns": self.columns,
            "rounds": self.rounds.copy(),
            "values": torch.tensor(values, dtype=torch.float64).reshape(len(self.rows), len(self.columns)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.columns, self.rounds, self.rows = list(state["columns"]), [], []
        for round, values in zip(state["rounds"], state["values"].tolist(), strict=True):
            self.add(round, dict(zip(self.columns, values, strict=True)))


class ServerHistory:
    """The rows of servers.parquet: one for each server of a cloud and evaluated round; in every checkpoint."""

    def __init__(self) -> None:
        self.columns: dict[str, list[float]] = {}

    def append(self, records: dict[str, list[Any]]) -> None:
        """Add the rows of one round, which are given as columns."""
        for name, values in records.items():
            self.columns.setdefault(name, []).extend(float(value) for value in values)

    def table(self) -> dict[str, np.ndarray]:
        """The columns as arrays of their types."""
        dtypes = {"round": "int64", "server": "int64", "rounds": "int64", "clients": "int64", "stepped": "bool"}
        return {name: np.array(values, dtypes.get(name, "float64")) for name, values in self.columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """Tensors only."""
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in self.columns.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.columns = {name: values.tolist() for name, values in state.items()}


@dataclass
class Best:
    """The server's model of the best round, by the task's first measure on validation data, never on test data."""

    measure: Measure = ACCURACY
    round: int | None = None
    value: float | None = None
    model: Params = field(default_factory=dict)

    def offer(self, round: int, values: dict[str, float], model: Callable[[], Params]) -> None:
        """Keep a copy of the model if this round is better than all before it; `model` is called only then."""
        value = values.get(f"val/{self.measure.name}")
        if value is not None and (self.value is None or self._is_better(value, self.value)):
            self.round, self.value, self.model = round, value, clone(model())

    def _is_better(self, value: float, other: float) -> bool:
        return value > other if self.measure.best == "max" else value < other

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data."""
        return {"round": self.round, "value": self.value, "model": self.model}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.round, self.value, self.model = state["round"], state["value"], state["model"]
