"""Tasks: what a net is to learn from (x, y): the loss of each row, and what is measured of its predictions.

A task is an option of every algorithm (`model.task`). It knows nothing of clients: sums over rows are made elsewhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedlit.errors import ConfigError, nearest
from fedlit.metrics.catalogue import declare_measure
from fedlit.metrics.measures import ACCURACY, MAE, MSE, NOT_COUNTED, PERPLEXITY, R2, TOKEN_ACCURACY, Measure, columns
from fedlit.recorded import Recorded

LOSSES = "losses"
"""Among what is summed of rows: their losses."""


@dataclass(frozen=True)
class Named:
    """What a refusal names."""

    net: str
    data: str
    classes: int
    """Or tokens; 0 where y has none."""


class Task(Recorded, ABC):
    """A loss per row, and measures; the first one selects models and heads tables and figures."""

    name: ClassVar[str] = ""
    """As in `model.task`."""
    measures: ClassVar[tuple[Measure, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for measure in cls.measures:
            declare_measure(measure)
        if len({measure.name for measure in cls.measures} - {LOSSES}) < max(1, len(cls.measures)):
            raise ConfigError(
                f"The task {cls.__name__} has the measures {[measure.name for measure in cls.measures]}. Give one or "
                f"more, each with a name of its own that is not '{LOSSES}'."
            )

    @property
    def first(self) -> Measure:
        """The measure that counts first."""
        return self.measures[0]

    @abstractmethod
    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        """(rows,) the loss of each row of the net's output. Traced into compiled programs: no branch on a value."""

    @abstractmethod
    def misfit(self, output: Tensor, y: Tensor, named: Named) -> str | None:
        """Why this net's output or these targets are not for this task, and what to do; None where they are.

        Args:
            output: of the net, for some rows.
            y: of the same rows.
            named: what net and data are called, and how many classes or tokens there are.
        """

    def probe_targets(self, labels: Tensor, output: Callable[[], Tensor]) -> Tensor:
        """Targets of this task's form for rows on which a step is tried before the first round.

        Args:
            labels: (rows,) 0 or 1, which are to be told apart in the targets.
            output: gives the net's output for these rows.
        """
        return labels

    def row_sums(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Measure -> (rows, k): what adds up over rows."""
        found = {measure.name: measure.rows(output, y) for measure in self.measures}
        return {name: columns(value.double()) for name, value in found.items()}


class Classification(Task):
    """One of several classes: cross-entropy, accuracy. y (rows,) whole numbers; outputs (rows, classes)."""

    name = "classification"
    measures = (ACCURACY,)

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="none")

    def misfit(self, output: Tensor, y: Tensor, named: Named) -> str | None:
        if y.is_floating_point():
            return (
                f"y of {named.data} is {_kind(y)}, but model.task is 'classification', whose labels are whole "
                "numbers from 0. Set model.task to 'regression' for numbers, or number the classes (y.long())."
            )
        if y.dim() != 1:
            return (
                f"y of {named.data} has shape {tuple(y.shape[1:])} in each row, but model.task is 'classification', "
                "which has one label. Set model.task to 'next_token' for sequences of tokens."
            )
        if output.dim() != 2 or output.shape[1] < named.classes:
            return (
                f"{named.net} gives outputs of shape {tuple(output.shape[1:])}, but {named.data} has {named.classes} "
                f"classes. Give the net at least {named.classes} outputs."
            )
        return None


class Regression(Task):
    """Numbers: squared error; MSE, MAE and R². y (rows,) or (rows, targets) floating point, outputs likewise."""

    name = "regression"
    measures = (MSE, MAE, R2)

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        return columns((output.reshape(y.shape) - y).square()).mean(1)

    def probe_targets(self, labels: Tensor, output: Callable[[], Tensor]) -> Tensor:
        like = output()
        return labels.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1)).expand_as(like)

    def misfit(self, output: Tensor, y: Tensor, named: Named) -> str | None:
        if not y.is_floating_point():
            return (
                f"y of {named.data} is {_kind(y)}, but model.task is 'regression', whose targets are floating "
                "point. Give y.float() for numbers, or set model.task to 'classification' for labels."
            )
        if output.shape != y.shape and output.shape != (*y.shape, 1):
            return (
                f"{named.net} gives outputs of shape {tuple(output.shape[1:])}, but the targets of {named.data} have "
                f"shape {tuple(y.shape[1:])}. Give the net {y[0].numel()} output{'s' * (y[0].numel() > 1)}."
            )
        return None


class NextToken(Task):
    """The next token, at the end or at every place of a sequence: cross-entropy; accuracy and perplexity per token.

    y (rows,) with outputs (rows, tokens), or y (rows, length) with outputs (rows, length, tokens); a place where y is
    -100 does not count. The loss of a row is the mean over its places.
    """

    name = "next_token"
    measures = (TOKEN_ACCURACY, PERPLEXITY)

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(output.flatten(0, -2), y.flatten(), ignore_index=NOT_COUNTED, reduction="none")
        counted = columns(y != NOT_COUNTED).to(output.dtype).sum(1)
        return columns(losses.reshape(y.shape)).sum(1) / counted.clamp(min=1)

    def probe_targets(self, labels: Tensor, output: Callable[[], Tensor]) -> Tensor:
        places = output().shape[:-1]
        return labels.reshape(-1, *[1] * (len(places) - 1)).expand(places)

    def misfit(self, output: Tensor, y: Tensor, named: Named) -> str | None:
        if y.is_floating_point():
            return (
                f"y of {named.data} is {_kind(y)}, but model.task is 'next_token', whose targets are token ids. "
                "Give whole numbers, or set model.task to 'regression'."
            )
        if output.shape[:-1] != y.shape or output.shape[-1] < named.classes:
            wanted = (*y.shape[1:], f"at least {named.classes}")
            return (
                f"{named.net} gives outputs of shape {tuple(output.shape[1:])} for a row, but it has to give a score "
                f"to each of {named.classes} tokens at every place: ({', '.join(map(str, wanted))}). Change the net."
            )
        return None


TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Classification, Regression, NextToken)}


def find_task(task: str | Task | None) -> Task:
    """A task by its name, or the one that was given; classification by default."""
    if isinstance(task, Task):
        return task
    name = Classification.name if task is None else task
    if name not in TASKS:
        raise ConfigError(f"model.task is '{name}'. {nearest(name, TASKS)}Known: {', '.join(TASKS)}.")
    return TASKS[name]()


def _kind(y: Tensor) -> str:
    return str(y.dtype).removeprefix("torch.")
