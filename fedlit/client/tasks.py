"""Tasks: what a net is to learn from (x, y). A task gives the loss of each row and the measures of predictions.

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
from fedlit.metrics.from_torchmetrics import Kind
from fedlit.metrics.measures import (
    ACCURACY,
    LABEL_ACCURACY,
    MAE,
    MSE,
    NOT_COUNTED,
    PERPLEXITY,
    PIXEL_ACCURACY,
    R2,
    TOKEN_ACCURACY,
    Measure,
    columns,
)
from fedlit.recorded import Recorded

LOSSES = "losses"
"""The name of the losses among the sums over rows."""
OUTPUTS, TARGETS = "outputs", "targets"
"""The names of what measures that are not sums are computed from."""


@dataclass(frozen=True)
class Named:
    """Names for the error of `Task.misfit`."""

    net: str
    data: str
    classes: int
    """Number of classes or tokens; 0 if y has none."""


class Task(Recorded, ABC):
    """A loss per row, and measures. The first measure selects the best model and comes first in tables and figures."""

    name: ClassVar[str] = ""
    """Its name in `model.task`."""
    measures: ClassVar[tuple[Measure, ...]] = ()
    predicts: ClassVar[Kind] = "own"
    """The form of `predicted`, in torchmetrics' words: `multiclass`, `multilabel` or `regression`."""

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
        """The first measure, which selects the best model."""
        return self.measures[0]

    @abstractmethod
    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        """(rows,) the loss of each row of the net's output. Traced into compiled programs: no branch on a value."""

    @abstractmethod
    def misfit(self, output: Tensor, y: Tensor, named: Named) -> str | None:
        """Why this net's output or these targets do not fit the task, and what to do; None if they fit.

        Args:
            output: output of the net, for some rows.
            y: targets of the same rows.
            named: names of net and data, and the number of classes or tokens.
        """

    def probe_targets(self, labels: Tensor, output: Callable[[], Tensor]) -> Tensor:
        """Targets of this task's form for rows on which a step is tried before the first round.

        Args:
            labels: (rows,) 0 or 1; the targets of rows with different labels must differ.
            output: gives the net's output for these rows.
        """
        return labels

    def predicted(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and targets of these rows, as a metric of torchmetrics gets them; by default, as they are."""
        return output, y

    def row_sums(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Measure -> (rows, k): the numbers of each row that the measure sums over rows."""
        summands = {one.name: one.rows(output, y) for one in self.measures if one.of_outputs is None}
        return {name: columns(value.double()) for name, value in summands.items()}


class Classification(Task):
    """One of several classes: cross-entropy, accuracy. y (rows,) whole numbers; outputs (rows, classes)."""

    name = "classification"
    measures = (ACCURACY,)
    predicts = "multiclass"

    def predicted(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return output.softmax(1), y

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
    predicts = "regression"

    def predicted(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wanted = y.squeeze(1) if y.dim() == 2 and y.shape[1] == 1 else y
        return output.reshape(wanted.shape), wanted

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
    """The next token, at the end or at every position of a sequence: cross-entropy; accuracy and perplexity per token.

    y (rows,) with outputs (rows, tokens), or y (rows, length) with outputs (rows, length, tokens). Positions where y is
    -100 do not count. The loss of a row is the mean over its positions.
    """

    name = "next_token"
    measures = (TOKEN_ACCURACY, PERPLEXITY)
    predicts = "multiclass"

    def predicted(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        counts = y != NOT_COUNTED
        return output[counts].softmax(-1), y[counts]

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(output.flatten(0, -2), y.flatten(), ignore_index=NOT_COUNTED, reduction="none")
        counted = columns(y != NOT_COUNTED).to(output.dtype).sum(1)
        return columns(losses.reshape(y.shape)).sum(1) / counted.clamp(min=1)

    def probe_targets(self, labels: Tensor, output: Callable[[], Tensor]) -> Tensor:
        positions = output().shape[:-1]
        return labels.reshape(-1, *[1] * (len(positions) - 1)).expand(positions)

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


class MultiLabel(Task):
    """Several labels that are there or not: binary cross-entropy and accuracy, both the mean over labels.

    y (rows, labels) floating point, 0 or 1; outputs likewise, as logits.
    """

    name = "multilabel"
    measures = (LABEL_ACCURACY,)
    predicts = "multilabel"

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, y.to(output.dtype), reduction="none").mean(1)

    def predicted(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return output.sigmoid(), y.long()

    def probe_targets(self, labels: Tensor, output: Callable[[], Tensor]) -> Tensor:
        like = output()
        return labels.to(like.dtype).unsqueeze(1).expand_as(like)

    def misfit(self, output: Tensor, y: Tensor, named: Named) -> str | None:
        if not y.is_floating_point() or y.dim() != 2 or not bool(((y == 0) | (y == 1)).all()):
            return (
                f"y of {named.data} is {_kind(y)} of shape {tuple(y.shape[1:])} in each row, but model.task is "
                "'multilabel': give a column of 0 and 1 for each label, as floating point (y.float())."
            )
        if output.shape != y.shape:
            return (
                f"{named.net} gives outputs of shape {tuple(output.shape[1:])}, but {named.data} has {y.shape[1]} "
                f"labels. Give the net {y.shape[1]} outputs."
            )
        return None


class Segmentation(Task):
    """A class for each pixel: cross-entropy and accuracy per pixel; pixels where y is -100 do not count.

    y (rows, height, width) whole numbers; outputs (rows, classes, height, width). The loss of a row is the mean over
    its pixels.
    """

    name = "segmentation"
    measures = (PIXEL_ACCURACY,)
    predicts = "multiclass"

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(output, y, ignore_index=NOT_COUNTED, reduction="none")
        counted = columns(y != NOT_COUNTED).to(output.dtype).sum(1)
        return columns(losses).sum(1) / counted.clamp(min=1)

    def predicted(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        counts = y != NOT_COUNTED
        return output.movedim(1, -1)[counts].softmax(1), y[counts]

    def probe_targets(self, labels: Tensor, output: Callable[[], Tensor]) -> Tensor:
        return labels.reshape(-1, 1, 1).expand(-1, *output().shape[2:])

    def misfit(self, output: Tensor, y: Tensor, named: Named) -> str | None:
        if y.is_floating_point() or y.dim() != 3:
            return (
                f"y of {named.data} is {_kind(y)} of shape {tuple(y.shape[1:])} in each row, but model.task is "
                "'segmentation', which has a class for each pixel: whole numbers of shape (height, width)."
            )
        if output.dim() != 4 or output.shape[2:] != y.shape[1:] or output.shape[1] < named.classes:
            wanted = (f"at least {named.classes}", *y.shape[1:])
            return (
                f"{named.net} gives outputs of shape {tuple(output.shape[1:])} for a row, but it has to give a score "
                f"to each of {named.classes} classes at every pixel: ({', '.join(map(str, wanted))}). Change the net."
            )
        return None


_SHIPPED = (Classification, Regression, NextToken, MultiLabel, Segmentation)
TASKS: dict[str, type[Task]] = {kind.name: kind for kind in _SHIPPED}


def find_task(task: str | Task | None) -> Task:
    """The task of a name, or the Task that was passed; classification by default."""
    if isinstance(task, Task):
        return task
    name = Classification.name if task is None else task
    if name not in TASKS:
        raise ConfigError(f"model.task is '{name}'. {nearest(name, TASKS)}Known: {', '.join(TASKS)}.")
    return TASKS[name]()


def _kind(y: Tensor) -> str:
    return str(y.dtype).removeprefix("torch.")
