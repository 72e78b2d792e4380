"""The order in which groups are drawn where there are more than a chart has room for."""

import math
from collections.abc import Sequence

from fedlit.results.runs import Group, Run


def ranks_of(groups: Sequence[Group]) -> list[int]:
    """Each group's place among those of its data set, 0 for the best by the global measure at the end of its runs."""
    best_first = sorted(range(len(groups)), key=lambda number: -worth(groups[number].runs))
    return [best_first.index(number) for number in range(len(groups))]


def worth(runs: Sequence[Run]) -> float:
    """The mean of the final values, greater for the better; lowest where they are not known or not finite."""
    measure = runs[0].measures[0]
    finals = [value for run in runs if (value := run.final(f"global/{measure.name}")) is not None]
    mean = sum(finals) / len(finals) if finals else math.nan
    return (mean if measure.best == "max" else -mean) if math.isfinite(mean) else -math.inf
