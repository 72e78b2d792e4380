"""Every metric once: its name, what people call it, its unit, which way is better, and its definition in a line.

Loggers, tables, pictures, the dashboard and `fedlit list` take their words from here; docs/metrics.md has the formulas.
METRICS lists the metrics of a classification run. Those of other measures are derived from it: `acc` becomes the
measure's name, and `accuracy` its label (`metric`).
The states of clients are named by their algorithm: they are added when its class is defined, or when the folder of one
of its runs is read.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fedlit.errors import ConfigError
from fedlit.metrics.measures import ACCURACY, MAE, MSE, PERPLEXITY, R2, Measure


@dataclass(frozen=True)
class Metric:
    """Label, definition, unit and better direction of a metric."""

    label: str
    """For headings and axes."""
    definition: str
    """Model and data, in a line."""
    unit: Literal["share", "share²", "MB", "s", ""] = ""
    """`share`: in [0, 1], shown as a percentage."""
    best: Literal["max", "min"] | None = None
    """Which way is better; None where neither is."""


Statistic = Literal["mean", "min", "max"]
"""Statistic of a state over the clients that report."""


@dataclass(frozen=True)
class ShownState:
    """Label and curves of a state: a number that each client keeps."""

    label: str = ""
    """For headings and axes; the state's name unless given."""
    curves: Mapping[str, Statistic] | None = None
    """Metric -> statistic of the cohort's states after a round; `state/<name>_mean` unless given."""

    def named(self, name: str) -> "ShownState":
        """Fill in the defaults for a state of this name."""
        curves: Mapping[str, Statistic] = {f"{_STATE}{name}{_MEAN}": "mean"}
        return ShownState(self.label or name, curves if self.curves is None else self.curves)


_STATE, _MEAN = "state/", "_mean"
_THRESHOLD = re.compile(r"(rounds_to/|time_to/)(\d+(?:\.\d+)?)")
_WORDS: dict[Statistic, str] = {"mean": "mean", "min": "smallest", "max": "largest"}
STATES: dict[str, ShownState] = {}
"""The states that were declared with a label or curves, defaults filled in."""


METRICS: dict[str, Metric] = {
    "train/loss": Metric("training loss", "task loss while training, cohort, weighted by n_i", "", "min"),
    "train/lr": Metric("local learning rate", "of the round"),
    "train/steps": Metric("client steps", "local steps of this round, all clients and phases", "", "min"),
    "val/acc": Metric("validation accuracy", "z on pooled validation; selects models", "share", "max"),
    "val/loss": Metric("validation loss", "z on pooled validation", "", "min"),
    "global/acc": Metric("global accuracy", "z on pooled test", "share", "max"),
    "global/loss": Metric("global loss", "z on pooled test", "", "min"),
    "global/user_acc": Metric("mean user accuracy", "z on own test, plain mean over users", "share", "max"),
    "global/train_loss": Metric("global training loss", "z on all training data, Σ n_i f_i / Σ n_i", "", "min"),
    "global/train_loss_uniform": Metric(
        "global training loss, equal weights", "z on all training data, Σ f_i / N", "", "min"
    ),
    "global/grad_norm2": Metric(
        "stationarity ‖∇f(z)‖²", "squared norm of the gradient of global/train_loss at z", "", "min"
    ),
    "global/grad_norm2_uniform": Metric(
        "stationarity ‖∇f(z)‖², equal weights", "squared norm of the gradient of global/train_loss_uniform", "", "min"
    ),
    "personal/train_loss": Metric(
        "personal training loss", "personal models on own training data, Σ n_i f_i / Σ n_i", "", "min"
    ),
    "local/grad_norm2": Metric("local stationarity ‖∇f_i(x_i)‖²", "on own training data, plain mean", "", "min"),
    "local/acc": Metric("local accuracy", "x_i on own test, plain mean over users", "share", "max"),
    "local/pooled_acc": Metric("local accuracy, pooled", "x_i on own test, every sample counts once", "share", "max"),
    "personal/acc": Metric("personal accuracy", "personal model on own test, plain mean over users", "share", "max"),
    "personal/pooled_acc": Metric(
        "personal accuracy, pooled", "personal model on own test, every sample counts once", "share", "max"
    ),
    "personal/acc_min": Metric(
        "worst user's personal accuracy", "lowest of the users' personal models", "share", "max"
    ),
    "personal/acc_max": Metric(
        "best user's personal accuracy", "highest of the users' personal models", "share", "max"
    ),
    "personal/acc_var": Metric("personal variance", "population variance over users' personal models", "share²", "min"),
    "personal/acc_p10": Metric("personal 10 % quantile", "of the users' personal models", "share", "max"),
    "finetuned/acc": Metric("fine-tuned accuracy", "after fine-tuning on own data, mean over users", "share", "max"),
    "finetuned/pooled_acc": Metric(
        "fine-tuned accuracy, pooled", "after fine-tuning on own data, every sample counts once", "share", "max"
    ),
    "finetuned/lr": Metric("rate of fine-tuning", "of several, the one that validation chose"),
    "finetuned/epochs": Metric("epochs of fine-tuning", "of several, those that validation chose"),
    "finetuned/val_acc": Metric(
        "fine-tuned validation accuracy", "of the chosen fine-tuning, own validation samples, pooled", "share", "max"
    ),
    "newcomers/acc": Metric(
        "newcomers' accuracy", "what the algorithm gives to held-back clients, on own test, plain mean", "share", "max"
    ),
    "newcomers/pooled_acc": Metric(
        "newcomers' accuracy, pooled", "the same models on own test, every sample counts once", "share", "max"
    ),
    "newcomers/acc_min": Metric("worst newcomer's accuracy", "lowest of the newcomers' models", "share", "max"),
    "newcomers/acc_max": Metric("best newcomer's accuracy", "highest of the newcomers' models", "share", "max"),
    "newcomers/acc_var": Metric("newcomers' variance", "population variance over newcomers' models", "share²", "min"),
    "newcomers/acc_p10": Metric("newcomers' 10 % quantile", "of the newcomers' models", "share", "max"),
    "newcomers/global_acc": Metric(
        "global accuracy of newcomers", "z of its server on each newcomer's own test, plain mean", "share", "max"
    ),
    "newcomers/finetuned_acc": Metric(
        "newcomers' accuracy, fine-tuned", "after fine-tuning on own data, mean over newcomers", "share", "max"
    ),
    "users/acc_min": Metric("worst user's accuracy", "z on own test, lowest over all users", "share", "max"),
    "users/acc_max": Metric("best user's accuracy", "z on own test, highest over all users", "share", "max"),
    "users/acc_mean": Metric("mean user accuracy", "z on own test, plain mean; equals global/user_acc", "share", "max"),
    "users/acc_var": Metric("user variance", "population variance of z's own-test accuracies", "share²", "min"),
    "users/acc_p10": Metric("10 % quantile of users", "z on own test", "share", "max"),
    "users/acc_worst10": Metric("worst tenth of users", "z on own test, mean of the lowest tenth", "share", "max"),
    "users/gini": Metric(
        "Gini coefficient", "of z's own-test accuracies (regression: MSE); 0 = all users alike", "", "min"
    ),
    "users/entropy": Metric(
        "normalised entropy", "of z's own-test accuracies (regression: MSE); 1 = all users alike", "", "max"
    ),
    "min_user/acc": Metric("min-user accuracy", "z, own test of the cohort's smallest client", "share", "max"),
    "max_user/acc": Metric("max-user accuracy", "z, own test of the cohort's largest client", "share", "max"),
    "min_user/weight": Metric("min-user coefficient", "aggregation weight of the cohort's smallest client"),
    "max_user/weight": Metric("max-user coefficient", "aggregation weight of the cohort's largest client"),
    "min_user/size_share": Metric("min-user share of samples", "n_j / Σ n of the cohort's smallest client"),
    "max_user/size_share": Metric("max-user share of samples", "n_j / Σ n of the cohort's largest client"),
    "distance/mean": Metric("distance ‖x_i − z‖²", "mean over the cohort, z as received"),
    "cloud/consensus": Metric("consensus distance ‖z_n − z̄‖", "mean over servers, z̄ is the servers' mean", "", "min"),
    "cloud/staleness": Metric("staleness", "events since the servers that step had stepped before, mean", "", "min"),
    "cloud/waiting": Metric("waiting share", "servers' time spent waiting for others, since the start", "share", "min"),
    "buffer/staleness": Metric(
        "staleness of reports", "server's steps since the reporting clients were sent z, mean", "", "min"
    ),
    "comm/up_mb": Metric("upload", "10⁶ bytes sent to the server this round", "MB", "min"),
    "comm/down_mb": Metric("download", "10⁶ bytes sent to clients this round", "MB", "min"),
    "comm/first_mb": Metric("download at first", "10⁶ bytes sent once, to clients that trained first", "MB", "min"),
    "comm/eval_mb": Metric("traffic of evaluation", "10⁶ bytes of evaluation, both ways together", "MB", "min"),
    "time/train_s": Metric("training time", "local training of this round", "s", "min"),
    "time/eval_s": Metric("evaluation time", "of this round", "s", "min"),
    "time/round_s": Metric("round time", "the whole round", "s", "min"),
    "time/sim_s": Metric("simulated time", "on the virtual clock, since the start", "s", "min"),
}
SUMMARY_METRICS: dict[str, Metric] = {
    "rounds_to/0.40": Metric("rounds to 40 %", "first evaluated round with this validation accuracy", "", "min"),
    "halftime/acc": Metric("accuracy at half time", "validation accuracy at half of the rounds", "share", "max"),
    "best/round": Metric("best round by validation", "the evaluated round whose z is best on pooled validation"),
    "best/val_acc": Metric("validation accuracy, best round", "z of that round on pooled validation", "share", "max"),
    "best/global_acc": Metric("global accuracy, best round", "z of that round on pooled test", "share", "max"),
}
"""In summary.json only; `trainer.rounds_to` chooses the thresholds."""
BEST_ROUND = "best/"
"""The prefix of what `summary.json` has about the best round by validation."""
MIN_MAX_METRICS: dict[str, Metric] = {
    "min_max/rounds": Metric("evaluated rounds, min and max user", "evaluated rounds in which both were measured"),
    "min_user/acc_last10": Metric(
        "min-user accuracy, last ten", "min_user/acc, mean over the last ten evaluated rounds", "share", "max"
    ),
    "max_user/acc_last10": Metric(
        "max-user accuracy, last ten", "max_user/acc, mean over the last ten evaluated rounds", "share", "max"
    ),
    "min_max/acc_gap": Metric(
        "gap of min and max user",
        "|max_user/acc − min_user/acc|, mean over the last ten evaluated rounds",
        "share",
        "min",
    ),
    "min_max/acc_within10": Metric(
        "rounds within ten points",
        "share of evaluated rounds with |max_user/acc − min_user/acc| ≤ 0.10",
        "share",
        "max",
    ),
}
"""Of a run's evaluated rounds together (report/min_max.py): in summary.json, reports and dashboards."""
CLOCK = "time/sim_s"
"""Only runs with a virtual clock have this metric. Curves can be drawn against it."""
ROUNDS_TO, TIME_TO = "rounds_to/", "time_to/"
"""Prefixes of an accuracy: the first round that reaches it (in summary.json), and its simulated time (in reports)."""


MODELS = ("global", "local", "personal")
"""Models whose measures are columns of clients.parquet: `acc_global`, `acc_local`, `acc_personal`."""
NEWCOMER = "newcomer"
"""The column of clients.parquet, in runs that have newcomers, that says who was held back: 1 or 0."""
RECORD_COLUMNS = ("round", "client", "group", "size", "weight", "loss")
"""clients.parquet has these columns, three for each measure, and one for each state."""
_FIXED = frozenset(METRICS)
SHIPPED_MEASURES = (ACCURACY, PERPLEXITY, MSE, MAE, R2)
MEASURES: dict[str, Measure] = {measure.name: measure for measure in SHIPPED_MEASURES}
"""Measures by name: fedlit's, and those of users' tasks once their class is defined or a run of theirs is read."""
_OF_A_MEASURE = re.compile(
    r"(val|global|local|personal|finetuned|newcomers|users|min_user|max_user|min_max|halftime|best)/"
    r"(user_|pooled_|val_|global_|finetuned_)?"
    r"(\w+?)(_min|_max|_mean|_var|_p10|_p90|_worst10|_last10|_gap|_within10)?"
)
_WHERE_LESS_IS_BETTER = {
    "_min": ("worst", "best"),
    "_max": ("best", "worst"),
    "_p10": ("10 %", "90 %"),
    "_worst10": ("lowest", "highest"),
}
"""Statistic over users -> the word in the entry of accuracy, and the word that replaces it."""


def declare_measure(measure: Measure) -> None:
    """Add a measure to the catalogue; a known name keeps its first entry."""
    name = measure.name
    if not (name.isalnum() and name.isascii()) or (f"global/{name}" in METRICS and name not in MEASURES):
        raise ConfigError(
            f"A measure is called '{name}'. Give it a name of letters and digits that no other metric has, such as "
            "'top5'."
        )
    known = MEASURES.setdefault(name, measure)
    if (known.unit, known.best) != (measure.unit, measure.best):
        raise ConfigError(
            f"The measure '{name}' exists already, with unit '{known.unit}' and '{known.best}' as the better "
            "direction. Give yours another name."
        )


def measures_in(names: Iterable[str]) -> list[Measure]:
    """The measures among these metrics, in their order; a run is judged by the first."""
    measured: dict[str, None] = {}
    for name in names:
        group, _, last = name.partition("/")
        if group in ("val", *MODELS) and last in MEASURES:
            measured[last] = None
    return [MEASURES[name] for name in measured]


def first_measure(names: Iterable[str]) -> Measure:
    """The measure by which runs with these metrics are judged."""
    return next(iter(measures_in(names)), ACCURACY)


def record_columns(measures: Iterable[Measure]) -> list[str]:
    """The columns of clients.parquet that are not states."""
    *others, loss = RECORD_COLUMNS
    return [*others, *(f"{measure.name}_{model}" for measure in measures for model in MODELS), loss]


def is_record_column(name: str) -> bool:
    """Whether a column of clients.parquet is not a state."""
    measure, _, model = name.rpartition("_")
    return name in RECORD_COLUMNS or (model in MODELS and measure in MEASURES)


def metric_of_a_measure(name: str) -> Metric | None:
    """The entry of a measure's metric, derived from that of accuracy; None for any other name."""
    match = _OF_A_MEASURE.fullmatch(name)
    if match is None or match[3] not in MEASURES:
        return None
    measure, statistic = MEASURES[match[3]], (match[4] or "").replace("_p90", "_p10")
    accuracy_name = f"{match[1]}/{match[2] or ''}acc{statistic}"
    entry = METRICS.get(accuracy_name) or SUMMARY_METRICS.get(accuracy_name) or MIN_MAX_METRICS.get(accuracy_name)
    if entry is None:
        return None
    texts = [
        text.replace("accuracy", measure.label).replace("accuracies", measure.label)
        for text in (entry.label, entry.definition)
    ]
    if measure.best == "min" and statistic in _WHERE_LESS_IS_BETTER:
        texts = [text.replace(*_WHERE_LESS_IS_BETTER[statistic]) for text in texts]
    label = texts[0] if measure.label in texts[0] else f"{texts[0]}, {measure.label}"
    best = entry.best if statistic in ("_var", "_gap") else measure.best
    return replace(
        entry, label=label, definition=texts[1], unit=entry.unit if measure.unit == "share" else "", best=best
    )


def declare(states: Mapping[str, ShownState]) -> None:
    """Add the labels and curves of states to the catalogue."""
    for name, state in states.items():
        shown = state.named(name)
        for curve, statistic in (shown.curves or {}).items():
            if curve in _FIXED or statistic not in _WORDS:
                raise ConfigError(
                    f"The state '{name}' has the curve '{curve}': '{statistic}'. Give a name that is not another "
                    f"metric's, and one of {', '.join(_WORDS)}."
                )
            METRICS[curve] = curve_of_a_state(shown.label, statistic)
        STATES[name] = shown


def curve_of_a_state(label: str, statistic: Statistic) -> Metric:
    """The entry of a state's curve."""
    return Metric(f"{label}, {_WORDS[statistic]}", "over the cohort, after the round")


def state_label(name: str) -> str:
    """The label of a state."""
    return STATES.get(name, ShownState()).named(name).label


def metric(name: str) -> Metric:
    """The entry of a name; a metric that only a server callback declares has its name as label."""
    known = METRICS.get(name) or SUMMARY_METRICS.get(name) or MIN_MAX_METRICS.get(name) or metric_of_a_measure(name)
    if known is None and (reached := threshold(name)):
        return reached
    if known is None and is_state_curve(name):
        return curve_of_a_state(state_label(name.removeprefix(_STATE).removesuffix(_MEAN)), "mean")
    return known or Metric(name, "declared by a server callback")


def threshold(name: str) -> Metric | None:
    """The entry of `rounds_to/0.85` or `time_to/0.85`; None for any other name."""
    match = _THRESHOLD.fullmatch(name)
    if match is None:
        return None
    percent = f"{100 * float(match[2]):g} %"
    if match[1] == TIME_TO:
        return Metric(f"time to {percent}", "simulated time of the first round with this global accuracy", "s", "min")
    return Metric(f"rounds to {percent}", SUMMARY_METRICS["rounds_to/0.40"].definition, "", "min")


def is_state_curve(name: str) -> bool:
    """Whether a metric is the mean of a state without declared curves."""
    return name.startswith(_STATE) and name.endswith(_MEAN)


def format_value(name: str, value: float) -> str:
    """The value as people read it: 83.42 %, 0.0123, 12 MB."""
    known = metric(name)
    if known.unit == "share":
        return f"{100 * value:.2f} %"
    if isinstance(value, int):
        return f"{value:,}"  # a count
    number = f"{value:.4g}" if known.unit != "share²" else f"{value:.4f}"
    return f"{number} {known.unit}" if known.unit in ("MB", "s") else number
