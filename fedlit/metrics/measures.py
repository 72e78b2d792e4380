"""Measures of predictions, such as accuracy or R²: label, numbers that are summed over rows, and formula.

A measure has numbers for each row that are summed (`rows`), and a formula for the sums (`value`). So one pass over the
data gives it for every user and for all samples pooled, in several processes, and for users' own models. A new measure
per user is one `Measure` in the `measures` of a task: columns, tables, figures, the dashboard and W&B follow.
The formulas are those of torchmetrics. Only methods of tensors are used: `fedlit list` needs no torch.
A measure that is not a sum over rows, such as AUROC, is a function of the outputs and targets of exactly a user's rows
(`of_outputs`); `from_torchmetrics.py` makes such measures.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

NOT_COUNTED = -100
"""Target of a token that does not count, such as padding; torch's cross-entropy ignores the same number."""
_CONSTANT = 1e-12
"""Below this share of the squares, the spread of targets is rounding error: they are all equal."""


def share(sums: "Tensor", counts: "Tensor") -> "Tensor":
    """The mean over rows of what was summed."""
    return sums[..., 0] / counts


def ratio(sums: "Tensor", counts: "Tensor") -> "Tensor":
    """The first sum divided by the second: for rows that hold several samples, such as tokens."""
    return sums[..., 0] / sums[..., 1]


def columns(values: "Tensor") -> "Tensor":
    """(rows, k): each row flattened; also for 0 rows."""
    return values.unsqueeze(1) if values.dim() == 1 else values.flatten(1)


def no_sums(output: "Tensor", y: "Tensor") -> "Tensor":
    """Stands for the numbers of a measure that is not a sum over rows."""
    raise NotImplementedError("This measure is not a sum over rows: `of_outputs` gives it.")


def as_given(sums: "Tensor", counts: "Tensor") -> "Tensor":
    """The value itself, which stands among the sums of a user; NaN without rows."""
    return sums[..., 0].where(counts > 0, float("nan"))


def unknown(output: "Tensor", y: "Tensor") -> "Tensor":
    """Stands for the formula of a measure that was read from a run's folder, which holds only its label."""
    raise NotImplementedError("This measure was read from a run's folder, which holds its words but not its formula.")


class Valued(NamedTuple):
    """The value of a measure on some rows, and what there is to say of it."""

    value: float
    """NaN where the measure is not defined."""
    remark: str = ""
    """Why it is not defined, or doubtful; empty if it is neither."""


@dataclass(frozen=True)
class Measure:
    """One number of a model on some rows.

    Args:
        name: in metrics: global/<name>, users/<name>_min, and in columns of clients.parquet: <name>_global.
        label: what people call it.
        rows: output of the net and y, of a batch -> (rows,) or (rows, k) numbers that add up over rows.
        value: the sums (..., k) and counts of rows (...) -> the measure (...); the mean unless given.
        unit: `share` for what lies in [0, 1] and is shown in percent.
        best: which way is better.
        of_outputs: outputs of the net and y, of exactly a user's rows -> the measure; for one that is not a sum over
            rows. `rows` is `no_sums` then, and `value` `as_given`.
    """

    name: str
    label: str
    rows: "Callable[[Tensor, Tensor], Tensor]"
    value: "Callable[[Tensor, Tensor], Tensor]" = share
    unit: Literal["share", ""] = ""
    best: Literal["max", "min"] = "max"
    of_outputs: "Callable[[Tensor, Tensor], Valued] | None" = None

    @property
    def tail(self) -> str:
        """The quantile of users that fare badly: p10, or p90 where less is better."""
        return "p10" if self.best == "max" else "p90"

    @property
    def spread(self) -> tuple[str, ...]:
        """The statistics over users that are reported."""
        return ("min", "max", "mean", "var", self.tail, "worst10")


def _hits(output: "Tensor", y: "Tensor") -> "Tensor":
    return output.argmax(1) == y


def _token_hits(output: "Tensor", y: "Tensor") -> "Tensor":
    return _over_tokens((output.argmax(-1) == y).double(), y)


def _label_hits(output: "Tensor", y: "Tensor") -> "Tensor":
    return ((output > 0) == (y > 0)).double().mean(1)


def _pixel_hits(output: "Tensor", y: "Tensor") -> "Tensor":
    return _over_tokens((output.argmax(1) == y).double(), y)


def _token_losses(output: "Tensor", y: "Tensor") -> "Tensor":
    known = output.double().log_softmax(-1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return _over_tokens(-known, y)


def _over_tokens(values: "Tensor", y: "Tensor") -> "Tensor":
    """(rows, 2): the sum over a row's tokens that count, and how many these are."""
    counts = (y != NOT_COUNTED).double()
    sums = [columns(part).sum(1) for part in (values * counts, counts)]
    both = sums[0].new_empty(len(y), 2)
    both[:, 0], both[:, 1] = sums
    return both


def _errors(output: "Tensor", y: "Tensor") -> "Tensor":
    """(rows, targets) in float64: sums of squares lose digits otherwise."""
    return columns(output.double().reshape(y.shape) - y.double())


def _squares(output: "Tensor", y: "Tensor") -> "Tensor":
    return _errors(output, y).square().mean(1)


def _sizes(output: "Tensor", y: "Tensor") -> "Tensor":
    return _errors(output, y).abs().mean(1)


def _explained(output: "Tensor", y: "Tensor") -> "Tensor":
    """(rows, 3 targets): squared errors, targets, squared targets."""
    wanted = columns(y.double())
    width = wanted.shape[1]
    parts = wanted.new_empty(len(y), 3 * width)
    for index, part in enumerate((_errors(output, y).square(), wanted, wanted.square())):
        parts[:, index * width : (index + 1) * width] = part
    return parts


def _r2(sums: "Tensor", counts: "Tensor") -> "Tensor":
    """1 - Σ (ŷ - y)² / Σ (y - ȳ)², mean over targets; if all y are equal: 1 if predicted exactly, else 0.

    One row has no spread, and so no R².
    """
    width = sums.shape[-1] // 3
    missed, total, squares = (sums[..., index * width : (index + 1) * width] for index in range(3))
    spread = squares - total.square() / counts.unsqueeze(-1)
    equal = spread <= _CONSTANT * squares
    explained = (1 - missed / spread.masked_fill(equal, 1)).where(~equal, (missed == 0).double())
    return explained.mean(-1).where(counts > 1, float("nan"))


def _perplexity(sums: "Tensor", counts: "Tensor") -> "Tensor":
    return ratio(sums, counts).exp()


ACCURACY = Measure("acc", "accuracy", _hits, unit="share")
TOKEN_ACCURACY = Measure("acc", "accuracy", _token_hits, ratio, unit="share")
LABEL_ACCURACY = Measure("acc", "accuracy", _label_hits, unit="share")
PIXEL_ACCURACY = Measure("acc", "accuracy", _pixel_hits, ratio, unit="share")
PERPLEXITY = Measure("ppl", "perplexity", _token_losses, _perplexity, best="min")
MSE = Measure("mse", "MSE", _squares, best="min")
MAE = Measure("mae", "MAE", _sizes, best="min")
R2 = Measure("r2", "R²", _explained, _r2)
