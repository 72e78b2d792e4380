"""Which runs of a group are averaged: those that came to their last round, if any did."""

from collections.abc import Sequence
from dataclasses import replace

from fedlit.results.runs import Group


def finished_alone(groups: Sequence[Group]) -> list[Group]:
    """The groups without their unfinished runs; a group in which none is finished keeps all."""
    return [replace(group, runs=[run for run in group.runs if run.finished] or group.runs) for group in groups]


def left_out(groups: Sequence[Group]) -> list[str]:
    """A sentence for each run that these groups have and `finished_alone` leaves out."""
    return [
        f"{run.path} is left out of the means of {group.label}, because it is not finished (last round: "
        f"{run.rounds[-1]})."
        for group, kept in zip(groups, finished_alone(groups), strict=True)
        for run in group.runs
        if run not in kept.runs
    ]
