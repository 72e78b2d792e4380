"""One colour per algorithm, in reports and dashboards alike: which tone and which dash a group is drawn with."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle, product


@dataclass(frozen=True)
class Tone:
    """A colour on light paper, and its counterpart on a dark screen."""

    light: str
    dark: str


TONES = (
    Tone("#005cab", "#4a9be8"),
    Tone("#d55e00", "#f0883e"),
    Tone("#2fa06f", "#7fe3b8"),
    Tone("#8c0364", "#e8479f"),
    Tone("#3a3512", "#f3ea55"),
    Tone("#7d3cf0", "#f0bdf0"),
)
"""Told apart by people with any colour vision, and dark or light enough for their background."""
DASHES = 5
"""Forms of a line: solid, and so many less one that are dashed."""
DIFFERENT = len(TONES) * DASHES
"""So many groups can be told apart."""
_HOMES = (
    *("FedAvg", "FedBC", "FedProx", "Scaffold", "PFedMe", "FedBCD"),
    *("Centralized", "PerFedBC", "FedFor", "PerFedAvg", "Ditto", "FedBCDI"),
    *("QFedAvg", "FedDyn"),
)
"""Algorithms in the order in which they choose; the tone of each is its place, counted around."""


@dataclass(frozen=True)
class Look:
    """How a group is drawn, by number of tone and dash (0 is solid)."""

    tone: int
    dash: int = 0


def looks_of(algorithms: Sequence[str]) -> list[Look]:
    """A look for each group of one data set, given by the names of their algorithms.

    An algorithm's first group has the algorithm's own tone, on every page. Where two algorithms share it, the first of
    `_HOMES` has it. All others get what is free: solid tones first.
    """
    looks: dict[int, Look] = {}
    for rank, name in enumerate(_HOMES):
        home = Look(rank % len(TONES))
        if name in algorithms and home not in looks.values():
            looks[algorithms.index(name)] = home
    every = [Look(tone, dash) for dash, tone in product(range(DASHES), range(len(TONES)))]
    free = chain((look for look in every if look not in looks.values()), cycle(every))
    return [looks[index] if index in looks else next(free) for index in range(len(algorithms))]
