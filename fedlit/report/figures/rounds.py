"""Figures by round: a line per group, or a panel per group where a group has several lines of its own.

Where runs have a clock, some are drawn by simulated time too. What is measured on a round's cohort
jumps, because the cohort changes: it is drawn faintly, with its running mean on top.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedlit.metrics.catalogue import metric
from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.report.figures.base import (
    MOST_PANELS,
    Curve,
    Drawn,
    Figure,
    averaged,
    column,
    curve_by_time,
    curve_of,
    definitions,
    panels_note,
    spread_note,
    texts,
)
from fedlit.report.figures.curves import MOST_BANDS, curves_figure, group_panels_figure
from fedlit.report.figures.style import Style, styles_of
from fedlit.results.runs import Group, Run

MOST_CLIENT_GROUPS = 12
_OF_THE_COHORT = ("train/", "min_user/", "max_user/")
_SMALL, _LARGE = Style("#d55e00"), Style("#0072b2")

Panels = dict[str, list[Curve]]


def accuracy(groups: Sequence[Group], styles: Mapping[str, Style], measure: Measure = ACCURACY) -> Iterator[Drawn]:
    """The server's model on pooled test and validation data."""
    names = (f"global/{measure.name}", f"val/{measure.name}")
    yield per_metric(named("accuracy", measure), f"{opening(measure)} by round", groups, names, styles)


def loss(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """The losses that were measured (FedBC's Fig. 3a: `global/train_loss`)."""
    names = ("global/loss", "global/train_loss", "train/loss")
    yield per_metric("loss", "Loss by round", groups, names, styles)


def user_accuracy(groups: Sequence[Group], styles: Mapping[str, Style], measure: Measure = ACCURACY) -> Iterator[Drawn]:
    """FedBCD's Fig. 3, pFedMe's 6 and 7: z for all and for users on their own data, and their personal models."""
    title = f"{opening(measure)} by round: the server's model, pooled and for users, and personal models"
    names = (f"global/{measure.name}", f"global/user_{measure.name}", f"personal/{measure.name}")
    yield per_metric(named("user_accuracy", measure), title, groups, names, styles)


def accuracy_by_time(
    groups: Sequence[Group], styles: Mapping[str, Style], measure: Measure = ACCURACY
) -> Iterator[Drawn]:
    """FedBCD's Fig. 4: what is reached when."""
    names = (f"global/{measure.name}", f"personal/{measure.name}")
    title = f"{opening(measure)} by simulated time"
    yield from by_time(named("accuracy_by_time", measure), title, groups, names, styles)


def consensus(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """How far servers are apart, by round."""
    yield per_metric("consensus", "Distance between servers by round", groups, ("cloud/consensus",), styles)


def consensus_by_time(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """The same by simulated time."""
    title = "Distance between servers by simulated time"
    yield from by_time("consensus_by_time", title, groups, ("cloud/consensus",), styles)


def by_time(
    name: str, title: str, groups: Sequence[Group], metrics: Sequence[str], styles: Mapping[str, Style]
) -> Iterator[Drawn]:
    """A panel per metric, a staircase per group; nothing where no group has any of it."""
    known = [measured for measured in metrics if any(curve_by_time(group, measured) for group in groups)]
    if not known:
        return
    drawn = per_metric(name, title, groups, known, styles, curve_by_time)
    several = " Seeds are averaged at the times of any of them." * any(len(group.runs) > 1 for group in groups)
    caption = f"{drawn.figure.caption} A value holds until the next one was measured.{several}"
    yield replace(drawn, figure=replace(drawn.figure, caption=caption))


def per_metric(
    name: str,
    title: str,
    groups: Sequence[Group],
    metrics: Sequence[str],
    styles: Mapping[str, Style],
    curve_of: Callable[[Group, str], Curve | None] = curve_of,
) -> Drawn:
    """A panel per metric that any group has, a line per group."""
    panels: Panels = {}
    for measured in metrics:
        curves = [curve for group in groups if (curve := curve_of(group, measured))]
        panels |= {measured: smoothed(curves, measured)} if curves else {}
    caption = f"{definitions(panels)} {spread_note(groups, is_drawn=len(groups) <= MOST_BANDS)}{smoothing_note(panels)}"
    return Drawn(Figure(name, title, caption), curves_figure(panels, styles))


def min_max_user(groups: Sequence[Group], styles: Mapping[str, Style], measure: Measure = ACCURACY) -> Iterator[Drawn]:
    """FedBC's Fig. 4 and 9 to 12: z on the data of each round's smallest and largest client."""
    lines = {f"min_user/{measure.name}": _SMALL, f"max_user/{measure.name}": _LARGE}
    title = f"{opening(measure)} for the smallest and the largest client of a round"
    yield per_group(named("min_max_user", measure), title, groups, lines, measure.label)


def worst_best_user(
    groups: Sequence[Group], styles: Mapping[str, Style], measure: Measure = ACCURACY
) -> Iterator[Drawn]:
    """The range of all users' accuracies under z."""
    worst, best = (_SMALL, _LARGE) if measure.best == "max" else (_LARGE, _SMALL)
    styles_of_ends = {"min": worst, "mean": Style("#444444"), "max": best}
    lines = {f"users/{measure.name}_{name}": style for name, style in styles_of_ends.items()}
    title = "Worst, mean and best user by round"
    yield per_group(named("worst_best_user", measure), title, groups, lines, measure.label)


def coefficients_by_round(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """FedBC's Fig. 3b, 8 and 13: coefficients beside what they would be by numbers of samples."""
    lines = {
        "min_user/weight": _SMALL,
        "max_user/weight": _LARGE,
        "min_user/size_share": Style(_SMALL.colour, (0, (1, 1))),
        "max_user/size_share": Style(_LARGE.colour, (0, (1, 1))),
    }
    title = "Coefficients of the smallest and the largest client of a round"
    yield per_group("coefficients_by_round", title, groups, lines, "aggregation coefficient")


def per_group(name: str, title: str, groups: Sequence[Group], lines: Mapping[str, Style], label: str) -> Drawn:
    """A panel for each group, in it a line per metric; `label` stands beside the y axis."""
    panels: Panels = {}
    for group in groups[:MOST_PANELS]:
        curves = {line: curve_of(group, line, metric(line).label) for line in lines}
        panels[group.label] = [smoothed([curve], line)[0] for line, curve in curves.items() if curve]
    styles = {metric(line).label: style for line, style in lines.items()}
    caption = f"{definitions(lines)} {notes(groups, panels)}"
    percent = all(metric(line).unit == "share" for line in lines)
    picture = group_panels_figure(panels, styles, label, percent=percent)
    return Drawn(Figure(name, title, caption), picture)


def weight_by_client_group(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """Exp-α's Fig. 2: what clean and corrupted clients, or domains, count for."""
    curves = {group.label: client_group_curves(group) for group in groups}
    grouped = [group for group in groups if len(curves[group.label]) > 1]
    if not grouped:
        return
    names = sorted({curve.label for group in grouped for curve in curves[group.label]})
    first = names[:MOST_CLIENT_GROUPS]
    panels = {
        group.label: smoothed([curve for curve in curves[group.label] if curve.label in first], "min_user/weight")
        for group in grouped[:MOST_PANELS]
    }
    caption = (
        "Aggregation coefficient of the clients that took part in a round, mean over those of each client group. "
        f"{notes(grouped, panels)}"
    )
    if len(names) > len(first):
        caption += f" The first {len(first)} of {len(names)} client groups are shown."
    picture = group_panels_figure(panels, styles_of(first), "mean coefficient", percent=False)
    yield Drawn(Figure("weight_by_client_group", "Coefficients by group of clients", caption), picture)


def client_group_curves(group: Group) -> list[Curve]:
    """The mean weight of each client group by round, in rounds in which all seeds have it in the cohort."""
    measured = [mean_weights(run) for run in group.runs]
    names = sorted(set.intersection(*(set(means) for means in measured)))
    curves = []
    for name in names:
        common = sorted(set.intersection(*(set(means[name]) for means in measured)))
        values = np.array([[means[name][round] for round in common] for means in measured])
        curves += [averaged(name, np.array(common, dtype=float), values)] if common else []
    return curves


def mean_weights(run: Run) -> dict[str, dict[int, float]]:
    """Client group -> round -> mean weight of its clients in that round's cohort."""
    weight, rounds, names = column(run, "weight"), column(run, "round"), texts(run, "group")
    took_part = np.isfinite(weight) & (names != "") if len(names) else np.zeros(len(weight), dtype=bool)
    means: dict[str, dict[int, float]] = {}
    for name in np.unique(names[took_part]).tolist() if took_part.any() else []:
        selected = took_part & (names == name)
        which, position = np.unique(rounds[selected], return_inverse=True)
        mean = np.bincount(position, weight[selected]) / np.bincount(position)
        means[name] = dict(zip(which.astype(int).tolist(), mean.tolist(), strict=True))
    return means


def named(name: str, measure: Measure) -> str:
    """The name of a figure that is drawn of several measures: that of accuracy has none of its own in it."""
    if measure.name == "acc":
        return name
    return name.replace("accuracy", measure.name) if "accuracy" in name else f"{name}_{measure.name}"


def opening(measure: Measure) -> str:
    """A measure's label at the beginning of a title."""
    return f"{measure.label[0].upper()}{measure.label[1:]}"


def smoothed(curves: Sequence[Curve], name: str) -> list[Curve]:
    """Metrics of the cohort get a running mean over about a tenth of their points; others stay as they are."""
    if not name.startswith(_OF_THE_COHORT):
        return list(curves)
    window = max(len(curve.x) for curve in curves) // 10 // 2 * 2 + 1
    return [replace(curve, window=window) for curve in curves]


def notes(groups: Sequence[Group], panels: Mapping[str, Sequence[Curve]]) -> str:
    """The end of a caption of small multiples; lines with a running mean have no band."""
    is_banded = any(curve.window == 1 for curves in panels.values() for curve in curves)
    return f"{spread_note(groups, is_drawn=is_banded)}{smoothing_note(panels)}{panels_note(groups)}"


def smoothing_note(panels: Mapping[str, Sequence[Curve]]) -> str:
    """The sentence of a caption about running means, where there are any."""
    windows = {curve.window for curves in panels.values() for curve in curves} - {1}
    if not windows:
        return ""
    many = f"{min(windows)} to {max(windows)}" if len(windows) > 1 else f"{min(windows)}"
    return f" Faint: what was measured on the cohort of each round; thick: its running mean over {many} rounds."
