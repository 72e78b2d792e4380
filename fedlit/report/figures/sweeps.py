"""Which options were swept: groups that differ in nothing but one option."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedlit.report.figures.axes import is_number, number
from fedlit.results.config_file import FINGERPRINTS, is_fingerprint
from fedlit.results.runs import Group

_NO_OPTIONS = ("model", "data", "data.partition_hash")
"""The algorithm and the data set have other options each, and a partition follows from options."""


@dataclass(frozen=True)
class Line:
    """Groups that differ in one option only, in the order of its values."""

    label: str
    values: Sequence[Any]
    groups: Sequence[Group]


@dataclass(frozen=True)
class Sweep:
    """An option with all lines along it, such as one per algorithm."""

    option: str
    lines: Sequence[Line]

    @property
    def values(self) -> list[Any]:
        """All values that any line has, in order."""
        return in_order(value for line in self.lines for value in line.values)


def find_sweeps(groups: Sequence[Group]) -> list[Sweep]:
    """Every option along which there are two groups or more."""
    differing = dict.fromkeys(name for group in groups for name in group.options)
    names = [name for name in differing if name not in _NO_OPTIONS and not is_fingerprint(name)]
    sweeps = [Sweep(option, lines_along(option, groups)) for option in names]
    return [sweep for sweep in sweeps if sweep.lines]


def lines_along(option: str, groups: Sequence[Group]) -> list[Line]:
    """The lines of one option, each of at least two of its values."""
    gathered: dict[str, list[Group]] = {}
    for group in groups:
        gathered.setdefault(json.dumps(fixed(option, group), sort_keys=True, default=str), []).append(group)
    several = [
        members for members in gathered.values() if len({str(group.options.get(option)) for group in members}) > 1
    ]
    apart = [fixed(option, members[0]) for members in several]
    lines = []
    for members, settings in zip(several, apart, strict=True):
        by_value = {value_of(option, group): group for group in members}
        if len(by_value) < len(members):
            continue  # two groups at one value: something else tells them apart, and no line can be drawn
        values = in_order(by_value)
        lines.append(Line(line_label(settings, apart), values, [by_value[value] for value in values]))
    return lines


def fixed(option: str, group: Group) -> dict[str, Any]:
    """What must be the same along the option: all others, but not those that follow from it.

    These are its own options (`trainer.weights.alpha`) and, of a net's option, what the net then looks like.
    """
    within = [name for name in group.options if name.startswith(f"{option}.")]
    looks = [f"{option.rpartition('.')[0]}.{name}" for name in FINGERPRINTS if name != "code"]
    varying = (option, *within, *looks, "data.partition_hash")
    return {name: value for name, value in group.options.items() if name not in varying} | {"model": group.algorithm}


def value_of(option: str, group: Group) -> Any:
    """A number or a text; an object with its own options: `ExpAlpha alpha=0.2`."""
    value = group.options.get(option)
    within = {name: set_to for name, set_to in group.options.items() if name.startswith(f"{option}.")}
    detail = [f"{name.rsplit('.', 1)[1]}={number(set_to)}" for name, set_to in within.items() if set_to is not None]
    if is_number(value) and not detail:
        return value
    return " ".join([number(value), *detail])


def in_order(values: Iterable[Any]) -> list[Any]:
    """Each value once: numbers from small to large, texts after them as they come."""
    known = list(dict.fromkeys(values))
    return sorted((v for v in known if is_number(v)), key=float) + [v for v in known if not is_number(v)]


def line_label(settings: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """The algorithm, and what tells this line from others of the same algorithm."""
    alike = [other for other in others if other["model"] == settings["model"]]
    apart = [name for name in settings if len({str(other.get(name)) for other in alike}) > 1]
    shown = [f"{name.rsplit('.', 1)[-1]}={number(settings[name])}" for name in apart if settings[name] is not None]
    return " ".join([str(settings["model"]), *shown])
