"""Which options were searched together: settings in which two or more options vary, each with what it reached."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedlit.report.figures.axes import is_number
from fedlit.report.figures.sweeps import in_order, value_of
from fedlit.results.config_file import is_fingerprint
from fedlit.results.groups import Group, is_quiet

_CHOSEN = ("model.", "trainer.")
"""What a search chooses; options of the data make another task."""
_LEAST = 4
_TRIALS_PER_OPTION = 2
"""Fewer settings are a comparison of a few variants, not a search."""
_MOST_LISTED = 8


@dataclass(frozen=True)
class Search:
    """Settings of the same options that were tried, each with its score."""

    label: str
    """What was searched: `FedBC`."""
    options: Sequence[str]
    """Dotted names of those that vary."""
    settings: Sequence[Mapping[str, Any]]
    """Option -> value, for each trial."""
    scores: Sequence[float]
    """One for each trial."""
    metric: str
    """What a score is."""
    goal: Literal["maximize", "minimize"]

    @property
    def best(self) -> list[int]:
        """The places of the best trials: more than one where they are tied."""
        score = max(self.scores) if self.goal == "maximize" else min(self.scores)
        return [index for index, other in enumerate(self.scores) if other == score]

    def values(self, option: str) -> list[Any]:
        """Of an option, one for each trial."""
        return [setting[option] for setting in self.settings]

    def different(self, option: str) -> list[Any]:
        """Each value once, in order."""
        return in_order(self.values(option))

    def is_drawn(self, option: str) -> bool:
        """Whether its values are draws from a range: nobody lists numbers with more than three digits."""
        values = self.different(option)
        return all(map(is_number, values)) and any(float(f"{value:.3g}") != value for value in values)

    def is_range(self, option: str) -> bool:
        """Whether its values are numbers that cannot all be written on an axis."""
        values = self.different(option)
        return self.is_drawn(option) or (len(values) > _MOST_LISTED and all(map(is_number, values)))


def find_searches(groups: Sequence[Group]) -> Iterator[Search]:
    """The searches among these groups: each is of one algorithm on the same data."""
    tasks: dict[str, list[Group]] = {}
    for group in groups:
        task = {name: value for name, value in group.options.items() if is_of_the_task(name)}
        task |= {"model": group.algorithm, "data": group.data}
        tasks.setdefault(json.dumps(task, sort_keys=True, default=str), []).append(group)
    searches = [search for members in tasks.values() if (search := search_among(members)) is not None]
    labels = [search.label for search in searches]
    for index, search in enumerate(searches):
        if labels.count(search.label) == 1:
            yield search
        else:
            yield Search(**vars(search) | {"label": f"{search.label} ({labels[: index + 1].count(search.label)})"})


def is_of_the_task(name: str) -> bool:
    """Whether runs with another value of a setting are no trials of the same search."""
    return not name.startswith(_CHOSEN) and name != "data.partition_hash" and not is_fingerprint(name)


def search_among(groups: Sequence[Group]) -> Search | None:
    """The search that groups of one task are, if they are one."""
    measure = groups[0].runs[0].measures[0]
    metric, is_max = f"val/{measure.name}", measure.best == "max"
    scores = [mean_best(group, metric, is_max=is_max) for group in groups]
    scored = [(group, score) for group, score in zip(groups, scores, strict=True) if score is not None]
    options = varying([group for group, _ in scored])
    if len(options) < 2 or len(scored) < max(_LEAST, _TRIALS_PER_OPTION * len(options)):
        return None
    settings = [{name: value_of(name, group) for name in options} for group, _ in scored]
    goal: Literal["maximize", "minimize"] = "maximize" if is_max else "minimize"
    return Search(groups[0].algorithm, options, settings, [score for _, score in scored], metric, goal)


def varying(groups: Sequence[Group]) -> list[str]:
    """The options of algorithm and trainer in which these groups differ.

    Arguments of an object count with it; so does an option that has another one's values throughout, as the rate of
    FedBC's tolerance has that of its dual unless it is given.
    """
    names = dict.fromkeys(name for group in groups for name in group.options if name.startswith(_CHOSEN))
    shown = [name for name in names if not is_fingerprint(name) and not is_quiet(name)]
    values = {name: tuple(str(group.options.get(name)) for group in groups) for name in shown}
    apart = [name for name in shown if len(set(values[name])) > 1]
    firsts = {values[name]: name for name in reversed(apart)}.values()
    return [name for name in apart if name in firsts and not any(name.startswith(f"{other}.") for other in apart)]


def mean_best(group: Group, name: str, *, is_max: bool) -> float | None:
    """The best value of each run, by which `fedlit sweep` ranks, as a mean over seeds; None where a run has none."""
    ends = []
    for run in group.runs:
        finite = [value for value in run.series(name)[1] if math.isfinite(value)]
        if not finite:
            return None
        ends.append(max(finite) if is_max else min(finite))
    return math.fsum(ends) / len(ends)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Name -> its last part, or all of it where another ends alike."""
    last = [name.rsplit(".", 1)[-1] for name in names]
    return {name: end if last.count(end) == 1 else name for name, end in zip(names, last, strict=True)}
