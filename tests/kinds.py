"""Which cases of a long list are quick: for a law that another quick test proves for the whole list."""

from collections.abc import Iterable
from typing import Any

import pytest

KINDS = (
    *("FedAvg", "FedProx, stragglers", "FedBC, from its own model", "SCAFFOLD I", "FedDyn", "Ditto, interleaved"),
    *("Per-FedAvg, exact", "pFedMe", "FedBCD", "FedBCD-I", "local only", "FedProx + FedAdam + Exp-α"),
)
"""Every kind of step, state, phase, draw and server that the conformance list has."""


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases of a test, of which all but these are slow."""
    chosen = list(quick)
    given = list(cases)
    assert all(case in given for case in chosen), "a quick case that does not exist"
    several = [case if isinstance(case, tuple) else (case,) for case in given]
    return [
        pytest.param(*values, marks=() if case in chosen else pytest.mark.slow)
        for case, values in zip(given, several, strict=True)
    ]
