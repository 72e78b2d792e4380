"""How far apart z serves the smallest and the largest client of each round: FedBC's Fig. 4 and 9 to 12 as numbers.

    g_t = |max_user/acc − min_user/acc| in round t      over the evaluated rounds in which both were measured
    rounds   how many these are
    gap      mean of g_t over the last ten of them, or over all where there are fewer
    within   share of all of them with g_t ≤ 0.10

One round tells little: its two clients are those of one drawn cohort. js/gaps.js has the same numbers for a page.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedlit.metrics.measures import Measure

Row = Mapping[str, float]
"""The metrics of a round; what was not measured is absent."""
LAST = 10
"""Evaluated rounds at the end of a run: of `_last10` and `_gap`."""
NEAR = 0.10
"""Ten points."""
_ROUNDING = 1e-6
"""0.4 − 0.3 is more than 0.1 in binary numbers."""


def min_max_metrics(rows: Sequence[Row], measures: Sequence[Measure]) -> dict[str, float]:
    """The metrics of `MIN_MAX_METRICS`, and the same of other measures, as far as they were measured.

    Within ten points is said of shares alone.

    Args:
        rows: the rounds of a run.
        measures: whose metrics are wanted.
    """
    metrics: dict[str, float] = {}
    for measure in measures:
        if pairs := min_and_max(rows, measure):
            gaps = [abs(high - low) for low, high in pairs]
            metrics.setdefault("min_max/rounds", len(pairs))
            metrics[f"min_user/{measure.name}_last{LAST}"] = fmean(low for low, _ in pairs[-LAST:])
            metrics[f"max_user/{measure.name}_last{LAST}"] = fmean(high for _, high in pairs[-LAST:])
            metrics[f"min_max/{measure.name}_gap"] = fmean(gaps[-LAST:])
            if measure.unit == "share":
                metrics[f"min_max/{measure.name}_within10"] = fmean(gap <= NEAR + _ROUNDING for gap in gaps)
    return metrics


def min_and_max(rows: Sequence[Row], measure: Measure) -> list[tuple[float, float]]:
    """(min user's, max user's) in every round in which both were measured."""
    low, high = f"min_user/{measure.name}", f"max_user/{measure.name}"
    return [(row[low], row[high]) for row in rows if low in row and high in row]
