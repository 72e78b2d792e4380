"""What a sweep ranks its trials by: one number of a finished run. Defined here and in docs/sweeps.md, nowhere else.

It is the best value over the evaluated rounds, the highest or the lowest as the goal says: what W&B's own search takes.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from fedlit.client.base import Client
from fedlit.errors import ConfigError, nearest
from fedlit.evaluation.round_metrics import EXTRA_METRICS, MetricGroups, round_columns
from fedlit.experiments.fit_arguments import made_model
from fedlit.metrics.catalogue import (
    BEST_ROUND,
    CLOCK,
    METRICS,
    MIN_MAX_METRICS,
    SUMMARY_METRICS,
    is_state_curve,
    metric,
    metric_of_a_measure,
)
from fedlit.results.runs import Run

Goal = Literal["maximize", "minimize"]
GOALS: dict[str | None, Goal] = {"max": "maximize", "min": "minimize"}
"""Which way is better -> the goal of a search."""

_ON_TEST = ("global/", "local/", "personal/", "finetuned/", "newcomers/", "users/", f"{BEST_ROUND}global_", "min_max/")
_EXTREME = ("min_user/", "max_user/")
_ON_REQUEST = {
    "finetuned": "trainer.finetune_lr 0.01",
    "newcomers": "data.newcomers 0.2",
    "cloud": "trainer.cloud.servers 5",
    "buffer": "trainer.buffer.size 5",
    "time": "trainer.clock fedlit.clock.Clock",
}
"""The beginning of a metric's name -> an option with which it is measured."""


def objective(run: Run, name: str, goal: Goal) -> float | None:
    """The number, or None where the run did not measure it."""
    _, values = run.series(name)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        return best_of(finite, goal)
    recorded = run.summary.get(name)  # rounds_to/0.40 and the like are there only
    return float(recorded) if isinstance(recorded, int | float) and math.isfinite(recorded) else None


def best_of(values: list[float], goal: Goal) -> float:
    """The highest or the lowest."""
    return max(values) if goal == "maximize" else min(values)


def check_metric(name: str, *, has_validation: bool, has_callbacks: bool) -> None:
    """Refuse a metric that nothing will measure, before hours are spent on it."""
    known = [*METRICS, *SUMMARY_METRICS, *MIN_MAX_METRICS]
    is_measured = metric_of_a_measure(name) is not None  # regressions have val/mse
    is_open = (
        has_callbacks or is_measured or is_state_curve(name)
    )  # what callbacks measure and clients keep has names of its own
    if name not in known and not name.startswith("rounds_to/") and not is_open:
        raise ConfigError(
            f"metric.name is '{name}', which no run measures. {nearest(name, known)}docs/metrics.md lists all."
        )
    if name.startswith("val/") and not has_validation:
        raise ConfigError(
            f"metric.name is '{name}', but data.val_fraction is 0, so there is no validation data. Give it a "
            "fraction, such as --data.val_fraction 0.1."
        )


def check_measured(name: str, commands: Sequence[Sequence[str]], config: Any) -> None:
    """Refuse a metric that runs have in general but that none of these has: another measure, a state of nobody's."""
    if config.trainer.callbacks or name.startswith("rounds_to/"):
        return
    known: list[str] = []
    for arguments in commands:
        try:
            known = names_of_a_run(made_model(arguments), config)
        except Exception:  # whatever a user's class raises: the trial will say so itself, and count as failed
            return
        if name in known:
            return
    remedy = f"Give --{_ON_REQUEST[name.partition('/')[0]]}. " if name.partition("/")[0] in _ON_REQUEST else ""
    if name in EXTRA_METRICS:
        remedy = f"Give --trainer.extra_metrics '[{name}]'. "
    raise ConfigError(
        f"metric.name is '{name}', which these runs do not measure. {remedy or nearest(name, known)}"
        "docs/metrics.md says who measures what."
    )


def names_of_a_run(client: Client, config: Any) -> list[str]:
    """What a run of this algorithm has by the end, in metrics.csv and in summary.json."""
    options, first = config.trainer, client.task.first.name
    finetuned, newcomers = options.finetune_lr is not None, holds_back(config.data)
    parts = MetricGroups(
        finetuned=finetuned,
        newcomers=newcomers,
        finetuned_newcomers=newcomers and finetuned,
        extra=tuple(options.extra_metrics),
    )
    columns = round_columns(client, parts)
    asked = [name for name in METRICS if (group := name.partition("/")[0]) in ("cloud", "buffer") and options[group]]
    asked += [CLOCK] if options.clock else []
    of_callbacks = [name for callback in client.server_callbacks() for name in callback.metrics]
    whole = [
        name.replace("acc", first) for name in (*SUMMARY_METRICS, *MIN_MAX_METRICS) if not name.startswith("rounds_to/")
    ]
    return [*columns, *asked, *of_callbacks, *whole]


def holds_back(data: Any) -> bool:
    """Whether the config of a data set has newcomers."""
    arguments = data.get("init_args", data)
    return bool(arguments.get("newcomers"))


def remarks(name: str, goal: Goal) -> list[str]:
    """What a user should know about the choice of a metric."""
    lines = []
    extreme = name.startswith(_EXTREME) and metric_of_a_measure(name) is not None
    if (name.startswith(_ON_TEST) or extreme) and name not in EXTRA_METRICS:
        lines.append(
            f"{name} is measured on test data: the best trial looks better by it than it is. Choose by val/acc, and "
            "report the test accuracy of what was chosen."
        )
    best = metric(name).best
    if (best, goal) in (("max", "minimize"), ("min", "maximize")):
        lines.append(f"The goal is to {goal} {name}, of which {'more' if best == 'max' else 'less'} is better.")
    return lines
