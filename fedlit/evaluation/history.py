"""The numbers of a run: the columns of metrics.csv, the rows so far, the best model, and the record of each user."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedlit.client.base import Client
from fedlit.client.cohort import WeighedCohort
from fedlit.client.states import ClientStates, number_states
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError
from fedlit.metrics.catalogue import MODELS, ShownState, Statistic
from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.metrics.user_scores import UserScores, distribution
from fedlit.params import Params, clone

EXTRA_METRICS = (
    "global/train_loss",
    "global/train_loss_uniform",
    "global/grad_norm2",
    "global/grad_norm2_uniform",
    "personal/train_loss",
    "local/grad_norm2",
)
"""Metrics on request: each needs a pass over all training data."""
_STATISTICS: dict[Statistic, Callable[[Any], Any]] = {"mean": np.mean, "min": np.min, "max": np.max}


@dataclass(frozen=True)
class MetricGroups:
    """The groups of metrics that a run has."""

    validated: bool = True
    """Whether there is validation data."""
    tested: bool = True
    """Whether clients have test data of their own."""
    local: bool = True
    """Whether the clients' own models are kept."""
    personal: bool = True
    """Whether users have a personal model."""
    finetuned: bool = False
    """Whether the personal model is measured again after one more step."""
    extra: Sequence[str] = ()
    """Names of the metrics on request."""


def round_columns(client: Client, parts: MetricGroups) -> list[str]:
    """The columns of metrics.csv after `round`; fixed when a run starts (docs/metrics.md defines each)."""
    measures = client.task.measures
    names = [measure.name for measure in measures]
    extremes = (*(names if parts.tested else ()), "weight", "size_share")
    return [
        *("train/loss", "train/lr", "train/steps"),
        *(f"val/{name}" for name in (*names, "loss") if parts.validated),
        *(f"global/{name}" for name in (*names, "loss")),
        *(f"global/user_{name}" for name in names if parts.tested),
        *parts.extra,
        *(name for measure in measures for name in _means("local", measure) if parts.local),
        *(name for measure in measures for name in _means("personal", measure) if parts.personal),
        *(f"personal/{name}" for measure in measures for name in _personal_spread(measure) if parts.personal),
        *(name for measure in measures for name in _means("finetuned", measure) if parts.finetuned),
        *(f"users/{measure.name}_{name}" for measure in measures for name in measure.spread if parts.tested),
        *(f"users/{name}" for name in ("gini", "entropy") if parts.tested),
        *(f"{user}/{name}" for user in ("min_user", "max_user") for name in extremes),
        *(curve for curves in state_curves(client).values() for curve in curves),
        *("distance/mean", "comm/up_mb", "comm/down_mb", "time/train_s", "time/eval_s", "time/round_s"),
    ]


def _means(group: str, measure: Measure) -> tuple[str, str]:
    """Names of the two means: over users, and over samples (pooled)."""
    return f"{group}/{measure.name}", f"{group}/pooled_{measure.name}"


def _personal_spread(measure: Measure) -> list[str]:
    return [f"{measure.name}_{name}" for name in ("min", "max", "var", measure.tail)]


def round_metrics(cohort: WeighedCohort, client: Client) -> dict[str, float]:
    """The metrics of every round, which need no evaluation of a model."""
    reports = cohort.reports.numpy()
    sizes, weights = cohort.sizes.numpy(), cohort.weights.numpy()
    distance, total = cohort.distances.numpy()[reports], sizes[reports].sum()
    values = {"train/loss": cohort.mean_loss, "train/lr": cohort.lr, "train/steps": float(cohort.steps_taken.sum())}
    values["distance/mean"] = float(distance.mean(dtype=np.float64))
    for user, k in (("min_user", cohort.smallest_client()), ("max_user", cohort.largest_client())):
        share = float(sizes[k] / total) if total else float("nan")  # nobody has samples: data.allow_empty
        values |= {f"{user}/weight": float(weights[k]), f"{user}/size_share": share}
    for name, curves in state_curves(client).items():
        numbers = cohort.state[name].numpy()[reports].astype(np.float64)
        values |= {curve: float(_STATISTICS[statistic](numbers)) for curve, statistic in curves.items()}
    down, up = client.traffic()
    number_mb = next(iter(cohort.received.values())).element_size() / 1e6
    up_mb = int(reports.sum()) * up * number_mb
    if len(cohort.sent_bytes) == len(cohort.clients):  # callbacks of all servers have filled it
        up_mb += float(cohort.sent_bytes.numpy()[reports].sum()) / 1e6
        up_mb -= int(reports.sum()) * client.model_numbers * number_mb
    return values | {
        "comm/down_mb": len(cohort.clients) * down * number_mb,
        "comm/up_mb": up_mb,
    }


def state_curves(client: Client) -> dict[str, Mapping[str, Statistic]]:
    """State -> its curves, for every state that is one number."""
    states = {name: client.shown_states.get(name, ShownState()) for name in number_states(client.state_spec())}
    return {name: state.named(name).curves or {} for name, state in states.items()}


def local_metrics(local: UserScores, measures: Sequence[Measure], group: str = "local") -> dict[str, float]:
    """Metrics of the users' own models: the means over users and over samples."""
    metrics: dict[str, float] = {}
    for measure in measures:
        mean, pooled = _means(group, measure)
        metrics |= {mean: local.mean(measure), pooled: local.pooled(measure)}
    return metrics


def personal_metrics(personal: UserScores, measures: Sequence[Measure]) -> dict[str, float]:
    """Metrics of the users' personal models: the means, and the spread over users."""
    metrics = local_metrics(personal, measures, "personal")
    for measure in measures:
        spread = distribution(personal.values(measure), measure)
        names = _personal_spread(measure)
        metrics |= {f"personal/{name}": spread[name.removeprefix(f"{measure.name}_")] for name in names}
    return metrics


def extreme_user_metrics(cohort: WeighedCohort, users: UserScores, measures: Sequence[Measure]) -> dict[str, float]:
    """The measures of z for the cohort's smallest and largest client."""
    positions = {"min_user": cohort.smallest_client(), "max_user": cohort.largest_client()}
    who = {user: cohort.clients[k] for user, k in positions.items()}
    values = {measure.name: users.values(measure) for measure in measures}
    return {f"{user}/{name}": float(values[name][client]) for user, client in who.items() for name in values}


def user_records(
    cohort: WeighedCohort | None,
    data: FederatedDataModule,
    states: ClientStates,
    numbers: Sequence[str],
    measures: Sequence[Measure],
    scores: Sequence[UserScores | None],
) -> dict[str, Any]:
    """One row per client of an evaluated round, as columns (clients.parquet).

    `numbers` are the states that are recorded; `scores` belong to MODELS, with None for a model that the run lacks.
    """
    round = cohort.round if cohort is not None else 0
    missing = torch.full((data.num_clients,), torch.nan, dtype=torch.float64)
    weight = missing.clone()
    if cohort is not None and cohort.population == data.num_clients:
        weight[cohort.clients] = cohort.weights.double()
    kept = {name: missing.clone() for name in numbers}
    for name, column in kept.items():
        if states.touched and states.keeps(name):
            column[states.touched] = states.column(name).double()
    return {
        "client": data.client_ids(round),
        "group": data.load(round, range(data.num_clients)).groups,
        "size": data.sizes.tolist(),
        "weight": weight.numpy(),
        **{name: column.numpy() for name, column in kept.items()},
        **{
            f"{measure.name}_{model}": (missing if users is None else users.values(measure)).numpy()
            for measure in measures
            for model, users in zip(MODELS, scores, strict=True)
        },
        "loss": (missing if scores[0] is None else scores[0].loss).numpy(),
    }


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
