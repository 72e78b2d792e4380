"""Which classes of torchmetrics' classification and regression packages are measures: found, tried, and written down.

`python -m tests.metrics.torchmetrics_table` writes docs/torchmetrics.md.
"""

import fedlit as fedlit  # isort: skip  # first: it lets torchmetrics be imported beside a CPU-only torch

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from torch import Tensor

from fedlit.client.tasks import Classification, MultiLabel, Regression, Task
from fedlit.errors import ConfigError
from fedlit.metrics.from_torchmetrics import TorchMetric

PAGE = Path(__file__).parents[2] / "docs" / "torchmetrics.md"
PACKAGES = (torchmetrics.classification, torchmetrics.regression)
NEEDED: dict[str, Any] = {
    "beta": 1.0,
    "min_precision": 0.5,
    "min_recall": 0.5,
    "min_sensitivity": 0.5,
    "min_specificity": 0.5,
    "p": 3.0,
    "threshold": 0.5,
}
"""What constructors need that no data can tell."""
_NUMBER = "gives no single number"
ROWS, CLASSES = 60, 4


def _drawn(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) + 0.1


def _labels(most: int, *shape: int) -> Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(1))


PROBLEMS: dict[str, Callable[[], tuple[Task, Tensor, Tensor]]] = {
    "classification": lambda: (Classification(), _drawn(ROWS, CLASSES), _labels(CLASSES, ROWS)),
    "two classes": lambda: (Classification(), _drawn(ROWS, 2), _labels(2, ROWS)),
    "multilabel": lambda: (MultiLabel(), _drawn(ROWS, CLASSES), _labels(2, ROWS, CLASSES).float()),
    "one number": lambda: (Regression(), _drawn(ROWS), _drawn(ROWS + 1)[1:]),
    "several numbers": lambda: (Regression(), _drawn(ROWS, 3).softmax(1), _drawn(ROWS + 1, 3)[1:].softmax(1)),
}
"""Task with what its net gives, and the targets; one per column of the table."""
_PREFIX = {"classification": "Multiclass", "two classes": "Binary", "multilabel": "Multilabel"}


def takes_output_and_target(kind: type) -> bool:
    """Whether `update` needs predictions and targets, and nothing else; those that choose a task hand them on."""
    if "__new__" in vars(kind):
        return True
    parameters = list(inspect.signature(kind.update).parameters.values())[1:]  # type: ignore[attr-defined]
    return sum(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters) == 2


def classes() -> list[str]:
    """All classes of the packages, as they list them."""
    return [name for package in PACKAGES for name in package.__all__ if name[0].isupper()]


def arguments(name: str) -> dict[str, Any]:
    """What has to be given in init_args, `average` among them where the default is none."""
    kind = getattr(torchmetrics.classification, name, None) or getattr(torchmetrics.regression, name)
    parameters = inspect.signature(kind.__new__ if "__new__" in vars(kind) else kind.__init__).parameters
    needed = {
        key: value
        for key, value in NEEDED.items()
        if key in parameters and parameters[key].default is inspect.Parameter.empty
    }
    averages = "average" in parameters and parameters["average"].default is None
    return needed | ({"average": "macro"} if averages and not name.startswith("Binary") else {})


def tried(name: str, problem: str) -> TorchMetric:
    """The metric, which has been computed on this problem; ConfigError if it cannot."""
    task, output, y = PROBLEMS[problem]()
    metric = TorchMetric({"class_path": name, "init_args": arguments(name)}, task.predicts, task.predicted)
    metric.measure(None)
    metric.check(output, y)
    return metric


def outcome(name: str, problem: str) -> str:
    """`yes`, or in a word why not."""
    try:
        tried(name, problem)
    except ConfigError as error:
        return _NUMBER if "not a score" in str(error) or "not one." in str(error) else "no"
    return "yes"


def base(name: str) -> str:
    """The name without the form of the task."""
    return re.sub(r"^(Binary|Multiclass|Multilabel)(?=[A-Z])", "", name)


def rows() -> list[list[str]]:
    """A row for each metric: its name, how it does on each problem, what it needs, its direction."""
    names = [name for name in classes() if takes_output_and_target(_class(name))]
    lines = []
    for metric in sorted({base(name) for name in names}, key=str.lower):
        found = {problem: _in_column(metric, problem, names) for problem in PROBLEMS}
        cells = [{"yes": "yes"}.get(found[problem][1], "–") for problem in PROBLEMS]
        worked = [(problem, name) for problem, (name, how) in found.items() if how == "yes"]
        if worked:
            measure = tried(worked[0][1], worked[0][0]).measure(None)
            given = ", ".join(f"{key}: {value}" for key, value in _needs(worked).items())
            better = "more" if measure.best == "max" else "less"
            shown = metric if metric in names else worked[0][1]
            lines.append([shown, *cells, better, "%" if measure.unit else "", given])
        else:
            why = _NUMBER if any(how == _NUMBER for _, how in found.values()) else "takes other predictions"
            lines.append([metric, *cells, "", "", why])
    return lines


def _class(name: str) -> type:
    found: type = getattr(torchmetrics.classification, name, None) or getattr(torchmetrics.regression, name)
    return found


def _in_column(metric: str, problem: str, names: list[str]) -> tuple[str, str]:
    """The class of a metric for this problem, and how it does."""
    name = _PREFIX.get(problem, "") + metric
    name = name if name in names else metric
    return (name, outcome(name, problem)) if name in names else (name, "no")


def _needs(worked: list[tuple[str, str]]) -> dict[str, Any]:
    needed: dict[str, Any] = {}
    for _, name in worked:
        needed |= arguments(name)
    return needed


def page() -> str:
    """docs/torchmetrics.md."""
    table = rows()
    count = sum("yes" in line for line in table)
    head = ["metric", *PROBLEMS, "better", "unit", "init_args, or why not"]
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(line) for line in table)]
    text = _TEXT.format(version=torchmetrics.__version__, worked=count, tried=len(table))
    return text + "\n".join(f"| {line} |" for line in lines) + "\n"


_TEXT = """# Metrics of torchmetrics

All metrics of torchmetrics {version}'s classification and regression packages that take predictions and targets.
{worked} of {tried} can stand in `model.metrics` ([how](metrics.md#metrics-of-torchmetrics)). The page is written, and
compared, by a test that finds the classes (`python -m tests.metrics.torchmetrics_table`).

`classification` is the metric with `task: multiclass`, as it is filled in; `two classes` with `task: binary`
(`BinaryAUROC`), which gets the probability of class 1; `multilabel` with `model.task: multilabel`; the last two are
regressions with one and with three targets in a row. A number in the last column is an example. *Yes* says that the
metric gives a number, not that it means something: ContinuousRankedProbabilityScore takes the probabilities of classes
for an ensemble.

"""

if __name__ == "__main__":
    PAGE.write_text(page())
