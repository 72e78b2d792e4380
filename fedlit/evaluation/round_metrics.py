"""What is measured of a round, as columns and values, and the record of each user."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedlit.client.base import Client
from fedlit.client.cohort import WeighedCohort
from fedlit.client.specs import number_states
from fedlit.client.states import ClientStates
from fedlit.client.traffic import first_numbers
from fedlit.data.base import FederatedDataModule
from fedlit.metrics.catalogue import MODELS, ShownState, Statistic
from fedlit.metrics.measures import Measure
from fedlit.metrics.user_scores import UserScores, distribution

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
    choice: Sequence[str] = ()
    """Names of the metrics that say which of several fine-tunings was chosen."""
    newcomers: bool = False
    """Whether clients were held back for the whole training."""
    finetuned_newcomers: bool = False
    """Whether the newcomers' models are fine-tuned, too."""
    extra: Sequence[str] = ()
    """Names of the metrics on request."""


def round_columns(client: Client, parts: MetricGroups) -> list[str]:
    """The columns of metrics.csv after `round`; fixed when a run starts (docs/metrics.md defines each)."""
    measures = client.measures
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
        *(parts.choice if parts.finetuned else ()),
        *(name for measure in measures for name in newcomer_columns(measure, parts)),
        *(f"users/{measure.name}_{name}" for measure in measures for name in measure.spread if parts.tested),
        *(f"users/{name}" for name in ("gini", "entropy") if parts.tested),
        *(f"{user}/{name}" for user in ("min_user", "max_user") for name in extremes),
        *(curve for curves in state_curves(client).values() for curve in curves),
        *("distance/mean", "comm/up_mb", "comm/down_mb", "comm/first_mb", "comm/eval_mb"),
        *("time/train_s", "time/eval_s", "time/round_s"),
    ]


def _means(group: str, measure: Measure) -> tuple[str, str]:
    """Names of the two means: over users, and over samples (pooled)."""
    return f"{group}/{measure.name}", f"{group}/pooled_{measure.name}"


def newcomer_columns(measure: Measure, parts: MetricGroups) -> list[str]:
    """The metrics of newcomers: the means, the spread, z in the place of their models, and fine-tuned models."""
    if not parts.newcomers:
        return []
    others = ["global", *(["finetuned"] if parts.finetuned_newcomers else [])]
    names = [*_personal_spread(measure), *(f"{model}_{measure.name}" for model in others)]
    return [*_means("newcomers", measure), *(f"newcomers/{name}" for name in names)]


def _personal_spread(measure: Measure) -> list[str]:
    return [f"{measure.name}_{name}" for name in ("min", "max", "var", measure.tail)]


def round_metrics(cohort: WeighedCohort, client: Client, told_numbers: int = 0, newly: int = 0) -> dict[str, float]:
    """The metrics of every round, which need no evaluation of a model.

    Args:
        cohort: of all servers that stepped.
        client: the algorithm.
        told_numbers: how many numbers a client sends besides, because the weighting or a callback reads them.
        newly: how many of its clients had never trained before.
    """
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
    up_mb = int(reports.sum()) * (up + told_numbers) * number_mb
    if len(cohort.sent_bytes) == len(cohort.clients):  # callbacks of all servers have filled it
        up_mb += float(cohort.sent_bytes.numpy()[reports].sum()) / 1e6
        up_mb -= int(reports.sum()) * client.model_numbers * number_mb
    return values | {
        "comm/down_mb": len(cohort.clients) * down * number_mb,
        "comm/up_mb": up_mb,
        "comm/first_mb": newly * first_numbers(client) * number_mb,
    }


def state_curves(client: Client) -> dict[str, Mapping[str, Statistic]]:
    """State -> its curves, for every state that is one number."""
    states = {name: client.shown_states.get(name, ShownState()) for name in number_states(client.first_values())}
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
    return spread_metrics(personal, measures, "personal")


def spread_metrics(users: UserScores, measures: Sequence[Measure], group: str) -> dict[str, float]:
    """The means of users' models, and their spread over users."""
    metrics = local_metrics(users, measures, group)
    for measure in measures:
        spread = distribution(users.values(measure), measure)
        names = _personal_spread(measure)
        metrics |= {f"{group}/{name}": spread[name.removeprefix(f"{measure.name}_")] for name in names}
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
