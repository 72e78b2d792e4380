"""Metrics of torchmetrics as measures: found by name, completed from the task, computed from predictions and targets.

A metric gets what the net predicts for exactly a user's rows, or for all rows pooled. What that is (probabilities, or
the outputs as they are) is the task's to say: `Task.predicted`.
"""

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import torchmetrics
from torch import Tensor
from torchmetrics import Metric

from fedlit.errors import ConfigError, nearest, require
from fedlit.metrics.catalogue import MEASURES, declare_measure
from fedlit.metrics.measures import Measure, Valued, as_given, no_sums

Setting = str | int | float | bool | None | list[int | float | str | None]
Entry = str | dict[str, str | dict[str, Setting]] | Metric
"""A name, a class_path with init_args, or an object. No `Any`: the command line would fill in a class's defaults."""
Metrics = list[Entry] | dict[str, Entry]
"""As a dict, each has a name of one's own."""
Kind = Literal["multiclass", "multilabel", "regression", "own"]
"""The form of a task's predictions, in torchmetrics' words; `own` for a task that says nothing."""
Predict = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Outputs of the net and targets -> predictions and targets as metrics get them."""

_LEFT_OPEN: dict[str, Literal["max", "min"]] = {
    **dict.fromkeys(("EER", "TweedieDevianceScore"), "min"),
    **dict.fromkeys(("Specificity", "NegativePredictiveValue", "KendallRankCorrCoef", "PearsonCorrCoef"), "max"),
    **dict.fromkeys(("PrecisionAtFixedRecall", "RecallAtFixedPrecision"), "max"),
    **dict.fromkeys(("SensitivityAtSpecificity", "SpecificityAtSensitivity"), "max"),
}
"""Which way is better, for scores whose `higher_is_better` is None in torchmetrics."""
_TRIED_WIDTH = 100
"""Number of classes of the metric that is built before the net was called; `top_k` must not be above it."""
_MISSING = (
    ". A macro average may count 0 for a class without samples; init_args: {average: weighted} leaves such classes out."
)
_WRONG = (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError)


def measures_of(metrics: Any, kind: Kind, predict: Predict, taken: Sequence[Measure]) -> tuple[Measure, ...]:
    """The measures of `model.metrics` (`Metrics` or None), for a task of this kind that has the measures `taken`."""
    measures: dict[str, Measure] = {measure.name: measure for measure in taken}
    for given_name, entry in _entries(metrics):
        metric = TorchMetric(entry, kind, predict)
        measure = metric.measure(given_name)
        require(
            measure.name not in measures,
            f"model.metrics has two measures of the name '{measure.name}'. Give each a name of its own: a mapping such "
            f"as {{{measure.name}: …, {measure.name}2: …}} in the place of the list.",
        )
        declare_measure(measure)
        measures[measure.name] = measure
    return tuple(measures.values())[len(taken) :]


def _entries(metrics: Any) -> Iterator[tuple[str | None, Any]]:
    """(name or None, what was given) of each metric."""
    if metrics is None:
        return
    is_list = isinstance(metrics, Sequence) and not isinstance(metrics, str)
    require(
        is_list or (isinstance(metrics, Mapping) and "class_path" not in metrics),
        f"model.metrics is {metrics!r}. Give a list, such as [F1Score, AUROC], or a mapping from names of your own.",
    )
    yield from metrics.items() if isinstance(metrics, Mapping) else ((None, entry) for entry in metrics)


class TorchMetric:
    """A metric of torchmetrics, as a function of the net's outputs and the targets of some rows.

    Args:
        entry: a name, a class path with init_args, or a Metric.
        kind: the form of the task's predictions.
        predict: makes them.
    """

    def __init__(self, entry: Any, kind: Kind, predict: Predict) -> None:
        self.kind, self.predict = kind, predict
        self.path, self.options = _read(entry)
        self._metric: Metric | None = None
        if isinstance(entry, Metric):
            self._metric = entry.clone().cpu()
            self._metric.sync_on_compute = False
        self._form = self._metric or self.built(_TRIED_WIDTH)
        self.name = re.sub(r"^(Binary|Multiclass|Multilabel)(?=[A-Z])", "", type(self._form).__name__)

    def measure(self, name: str | None) -> Measure:
        """The measure, under this name or the class's own, with torchmetrics' direction and unit."""
        form = self._form
        best = {True: "max", False: "min"}.get(form.higher_is_better, _LEFT_OPEN.get(self.name))  # type: ignore[arg-type]  # None is left open
        if best is None:
            raise ConfigError(
                f"model.metrics: {self.path} is not a score: torchmetrics does not say whether more is better "
                "(higher_is_better is None), as for curves and matrices. Leave it out; for a class of your own, set "
                "higher_is_better = True or False in it."
            )
        is_share = (form.plot_lower_bound, form.plot_upper_bound) == (0.0, 1.0)
        return Measure(
            name or re.sub(r"\W|_", "", self.name).lower(),
            name or self._label(),
            rows=no_sums,
            value=as_given,
            unit="share" if is_share else "",
            best="max" if best == "max" else "min",
            of_outputs=self,
        )

    def _label(self) -> str:
        words = re.findall(r"[A-Z0-9]+(?![a-z])|[A-Z][a-z0-9]*|[a-z]+", self.name)
        label = " ".join(word if word.isupper() else word.lower() for word in words)
        known = {measure.label for measure in MEASURES.values() if measure.of_outputs is None}
        return f"{label} (torchmetrics)" if label in known else label

    def __call__(self, output: Tensor, y: Tensor) -> Valued:
        """The metric of these rows; NaN where it is not defined.

        Where all targets are of one class, torchmetrics warns and gives some number: this is NaN. A number of which it
        warns otherwise stays.
        """
        predictions, targets = self.predict(output, y)
        return valued(lambda: self._number(self._computed(predictions, targets)), targets)

    def check(self, output: Tensor, y: Tensor) -> None:
        """Compute it once, before any work; ConfigError if it cannot take these predictions and targets."""
        predictions, targets = self.predict(output, y)
        if self.kind == "own" and type(self._form).__module__.startswith("torchmetrics.classification"):
            low, high = float(predictions.min()), float(predictions.max())
            require(
                not predictions.is_floating_point() or (low >= 0 and high <= 1),
                f"model.metrics: {self.path} needs probabilities, but of this task it gets the net's outputs as they "
                f"are, here from {low:.4g} to {high:.4g}. Override `predicted` in the task, and return "
                "(output.softmax(1), y), or what else makes them probabilities.",
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._number(self._computed(predictions, targets))
        except ConfigError:
            raise
        except _WRONG as error:
            raise ConfigError(
                f"model.metrics: {self.path} cannot take what it gets here: {self._gets()} of shape "
                f"{tuple(predictions.shape)} with targets of shape {tuple(targets.shape)} "
                f"({' '.join(str(error).split())}). Choose a metric of this task, or correct its init_args."
            ) from error

    def _gets(self) -> str:
        return "probabilities" if self.kind in ("multiclass", "multilabel") else "predictions"

    def _computed(self, predictions: Tensor, targets: Tensor) -> Any:
        if self._metric is None:
            self._metric = self.built(_width(predictions))
        metric = self._metric
        if type(metric).__name__.startswith("Binary") and predictions.dim() == 2 and predictions.shape[1] == 2:
            predictions = predictions[:, 1]
        metric.reset()
        metric.update(predictions, targets)
        computed = metric.compute()
        metric.reset()  # it may hold all predictions
        return computed

    def _number(self, computed: Any) -> float:
        """The one number of a result; a mean over the targets of a regression."""
        first = computed[0] if isinstance(computed, tuple) else computed  # a value, and the threshold that reaches it
        if isinstance(first, Tensor) and first.numel() == 1:
            return float(first)
        if isinstance(first, Tensor) and self.kind == "regression" and first.dim() == 1:
            return float(first.double().mean())
        what = f"{first.numel()} numbers" if isinstance(first, Tensor) else f"a {type(computed).__name__}"
        raise ConfigError(
            f"model.metrics: {self.path} gives {what}, not one. Give init_args that make it one number, such as "
            "average: macro; curves and matrices are not measures."
        )

    def built(self, width: int) -> Metric:
        """The metric for so many classes, labels or targets, which are filled in where the user gives none."""
        kind = find_class(self.path)
        parameters = inspect.signature(kind.__new__ if "__new__" in vars(kind) else kind.__init__).parameters
        fills: dict[str, Any] = {
            "multiclass": {"task": "multiclass", "num_classes": width},
            "multilabel": {"task": "multilabel", "num_labels": width},
            "regression": {"num_outputs": width},
            "own": {"num_classes": width, "num_labels": width},
        }
        filled = {name: value for name, value in fills[self.kind].items() if name in parameters}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it keeps all predictions; it has those of one user at a time
                made = kind(**(filled | {"sync_on_compute": False} | self.options))
        except _WRONG as error:
            takes = ", ".join(name for name in parameters if name not in ("self", "cls", "kwargs"))
            raise ConfigError(
                f"model.metrics: {self.path} cannot be built with {self.options or 'no init_args'}: "
                f"{' '.join(str(error).split())}. It takes {takes}."
            ) from error
        assert isinstance(made, Metric)
        return made


def valued(compute: Callable[[], float], targets: Tensor) -> Valued:
    """The number that a metric gives for these targets; NaN for one class of which it warns, or where it raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = compute()
        except ValueError as error:  # such as R² of a single row
            return Valued(float("nan"), " ".join(str(error).split()))
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    if not texts:
        return Valued(value)
    if not targets.is_floating_point() and bool((targets == targets.flatten()[:1]).all()):
        return Valued(float("nan"), f"all targets are of one class ({texts[0]})")
    return Valued(value, texts[0].rstrip(".") + (_MISSING if "samples in targets" in texts[0] else "."))


def _width(predictions: Tensor) -> int:
    """How many classes, labels or targets there are."""
    return predictions.shape[1] if predictions.dim() > 1 else 1


def _read(entry: Any) -> tuple[str, dict[str, Any]]:
    """The class path of an entry of model.metrics, and its arguments."""
    if isinstance(entry, Metric):
        return type(entry).__name__, {}
    if isinstance(entry, type) and issubclass(entry, Metric):
        return f"{entry.__module__}.{entry.__qualname__}", {}
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and "class_path" in entry and set(entry) <= {"class_path", "init_args"}:
        return str(entry["class_path"]), dict(entry.get("init_args") or {})
    raise ConfigError(
        f"model.metrics has the entry {entry!r}. Give the name of a metric of torchmetrics (AUROC), a class_path with "
        "init_args, or from Python a Metric."
    )


def find_class(path: str) -> type[Metric]:
    """The class of a metric, by its name in torchmetrics or its import path."""
    module, _, name = path.rpartition(".")
    known = [*torchmetrics.__all__, *torchmetrics.classification.__all__, *torchmetrics.regression.__all__]
    if not module:
        places = [torchmetrics, torchmetrics.classification, torchmetrics.regression]
        found = next((getattr(place, name) for place in places if name in place.__all__), None)
    else:
        try:
            found = getattr(import_module(module), name, None)
        except ImportError as error:
            raise ConfigError(f"model.metrics: {path} cannot be imported ({error}). Correct the class path.") from error
    if isinstance(found, type) and issubclass(found, Metric):
        return found
    raise ConfigError(
        f"model.metrics: {f'{module} has' if module else 'torchmetrics has'} no metric '{name}'. "
        f"{nearest(name, [one for one in dict.fromkeys(known) if one[:1].isupper()])}Give the name of a class of "
        "torchmetrics, such as AUROC, or the import path of a Metric."
    )
