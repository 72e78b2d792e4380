"""Checks that metrics.csv and summary.json of a folder are of the same run, and refuses a file that is cut or foreign.

summary.json is written when a run ends. While a run goes on, or after it was killed, the folder has a `lock`, and the
summary is missing or old. That is normal, and nothing is checked.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedlit.errors import RunError
from fedlit.results.folder import RunFolder

ALIKE = 1e-4
"""Losses are the same up to this relative difference: a round may have been trained again by another engine."""


def check_consistent(
    files: RunFolder, rounds: Sequence[int], rows: Sequence[Mapping[str, float]], summary: Mapping[str, Any]
) -> None:
    """RunError where metrics.csv lacks rounds that the summary counts, or has other numbers in the last of them."""
    done = summary.get("rounds")
    if not isinstance(done, int) or files.was_not_left:
        return
    missing = sorted(set(range(1, done + 1)) - set(rounds))
    if missing:
        raise RunError(
            f"{files.metrics} is not whole: {len(missing)} of the {done} rounds that summary.json counts are missing, "
            f"first round {missing[0]}. Restore it from a copy, continue the run with 'fedlit fit … --resume', which "
            "writes it anew from the checkpoint, or leave this run out."
        )
    row, final = rows[list(rounds).index(done)], summary.get("final", {})
    other = [name for name in final if "loss" in name and name in row and not is_same(row[name], final[name])]
    if other:
        raise RunError(
            f"{files.metrics} is of another run than {files.summary.name}: {other[0]} of round {done} is "
            f"{row[other[0]]:.6g} there and {final[other[0]]:.6g} here. Restore the file that belongs to this run, "
            "continue it with 'fedlit fit … --resume', or leave this run out."
        )


def is_same(one: float, other: float) -> bool:
    """Whether two numbers are equal up to rounding; NaN equals NaN."""
    return math.isclose(one, other, rel_tol=ALIKE, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))
