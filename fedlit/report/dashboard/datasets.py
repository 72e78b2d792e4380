"""The data sets of a page. Runs are compared within one, so labels and looks have to tell only its own groups apart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedlit.report.finished import finished_alone, left_out
from fedlit.results.config_file import canonical
from fedlit.results.groups import (
    SEEDS,
    Group,
    differing_settings,
    is_quiet,
    labels_of,
    make_unique,
    mixed,
    named_data,
    options_apart,
)
from fedlit.results.runs import Run


@dataclass(frozen=True)
class DataSet:
    """Groups whose data differ by nothing but the seed."""

    name: str
    """`Synthetic`, or `Synthetic alpha=0.5` where the page has another one: unique in the page."""
    about: str
    """The same with every option in which it differs from others of its class."""
    groups: Sequence[Group]
    """Their labels say what differs between them, and nothing that all of them share."""

    @property
    def remarks(self) -> list[str]:
        """What a reader must know before comparing these groups."""
        return [*left_out(self.groups), *mixed(finished_alone(self.groups))]


def datasets_of(groups: Sequence[Group]) -> list[DataSet]:
    """The groups by their data, in the order in which they come."""
    members: dict[str, list[Group]] = {}
    for group in groups:
        members.setdefault(canonical(data_settings(group.runs[0])), []).append(group)
    runs = [replace(alike[0].runs[0], settings=data_settings(alike[0].runs[0])) for alike in members.values()]
    short = [replace(run, settings={name: run.settings.get(name) for name in telling(kin(run, runs))}) for run in runs]
    names, abouts = make_unique(data_names(short), runs), data_names(runs)
    return [
        DataSet(name, about, relabelled(alike))
        for name, about, alike in zip(names, abouts, members.values(), strict=True)
    ]


def data_settings(run: Run) -> dict[str, object]:
    """The settings that say which data a run had, without its seed."""
    return {
        name: value
        for name, value in run.settings.items()
        if (name == "data" or name.startswith("data.")) and name not in SEEDS
    }


def kin(run: Run, runs: Sequence[Run]) -> list[Run]:
    """The runs whose data are of the same class, and that measure the same."""
    names = {id(other): name for other, name in zip(runs, named_data(runs), strict=True)}
    return [other for other in runs if names[id(other)] == names[id(run)]]


def telling(runs: Sequence[Run]) -> list[str]:
    """The class, and options that tell these data sets apart; left out is what follows from those before it."""
    chosen = ["data"]
    for name in differing_settings(runs):
        if not is_quiet(name) and parts(runs, [*chosen, name]) > parts(runs, chosen):
            chosen.append(name)
    return chosen


def parts(runs: Sequence[Run], names: Sequence[str]) -> int:
    """Into how many parts these settings divide the runs."""
    return len({canonical([run.settings.get(name) for name in names]) for run in runs})


def data_names(runs: Sequence[Run]) -> list[str]:
    """The class, and the options in which the data sets of that class differ."""
    return [
        " ".join([name, *options_apart(run, kin(run, runs), quiet=False)])
        for name, run in zip(named_data(runs), runs, strict=True)
    ]


def relabelled(groups: Sequence[Group]) -> list[Group]:
    """The groups of one data set with labels that tell them apart."""
    labels = labels_of([group.runs[0] for group in groups])
    return [replace(group, label=label) for group, label in zip(groups, labels, strict=True)]
