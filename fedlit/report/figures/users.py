"""Figures of users: their coefficients, what they keep and how much data they have, and who is served how well."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlit.metrics.catalogue import record_columns, state_label
from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.report.figures.base import MOST_PANELS, Drawn, Figure, Floats, column, panels_note, states_of
from fedlit.report.figures.rounds import named
from fedlit.report.figures.scatter import Cloud, Users, clouds_figure, users_figure
from fedlit.report.figures.style import Style
from fedlit.results.runs import Group, Run

STATE_ROUNDS = (1, 50, 100, 200)
"""FedBC's Fig. 7e; a shorter run is shown at those that it has, and at its end."""
MOST_CLOUDS = 4
"""Clouds of points that can be told apart in one panel."""
_SIZE, _WEIGHT = "training samples", "aggregation coefficient"
_EACH = "one point for each client and seed"

Rows = dict[str, Floats]
"""Columns of clients.parquet, and SHARE: a client's part of the samples of its cohort."""
SHARE = "share of the cohort's samples"
"""Not a name that a column can have."""


def weight_by_state(groups: Sequence[Group], styles: Mapping[str, Style], state: str) -> Iterator[Drawn]:
    """FedBC's Fig. 3b, 8 and 13, client by client: the coefficient against what the client keeps, there λ."""
    caption = f"Each client in the last round in which it took part, {_EACH}.{panels_note(groups)}"
    panels = {group.label: [cloud(group, last_part, state, "weight")] for group in groups[:MOST_PANELS]}
    picture = clouds_figure(panels, styles, state_label(state), _WEIGHT)
    yield Drawn(Figure(f"weight_by_{state}", f"Coefficient against {state_label(state)}", caption), picture)


def weight_by_size(groups: Sequence[Group], styles: Mapping[str, Style]) -> Iterator[Drawn]:
    """The same against the client's share of its cohort's samples, which is FedAvg's coefficient."""
    caption = (
        f"Each client in the last round in which it took part, {_EACH}; on the grey line the coefficient is the "
        f"client's share of the samples of that round's cohort.{panels_note(groups)}"
    )
    panels = {group.label: [cloud(group, last_part, SHARE, "weight")] for group in groups[:MOST_PANELS]}
    picture = clouds_figure(panels, styles, SHARE, _WEIGHT, diagonal=True)
    yield Drawn(Figure("weight_by_size", "Coefficient beside the share of samples", caption), picture)


def state_by_size(groups: Sequence[Group], styles: Mapping[str, Style], state: str) -> Iterator[Drawn]:
    """FedBC's Fig. 3c, λ against n_i at the end, and 7e, the same in several rounds; likewise any other state."""
    clouds = [cloud(group, last_round, "size", state) for group in groups[:MOST_PANELS]]
    is_mixed = 1 < len(clouds) <= MOST_CLOUDS
    panels = {"": clouds} if is_mixed else {one.label: [one] for one in clouds}
    caption = (
        f"{opening(state)} of each client at the end against its number of training samples, {_EACH}; clients that "
        f"never took part have none.{panels_note(groups)}"
    )
    picture = clouds_figure(panels, styles, _SIZE, state_label(state))
    title = f"{opening(state)} against the number of samples"
    yield Drawn(Figure(f"{state}_by_size", title, caption), picture)
    rounds = state_rounds(groups)
    if len(rounds) > 1:
        yield state_by_size_rounds(groups[:MOST_CLOUDS], rounds, styles, state, len(groups))


def state_by_size_rounds(
    groups: Sequence[Group], rounds: Sequence[int], styles: Mapping[str, Style], state: str, total: int
) -> Drawn:
    """A panel for each of these rounds; `total` is how many groups there would be."""
    panels = {
        f"round {at:,}": [cloud(group, partial(in_round, round=at), "size", state) for group in groups] for at in rounds
    }
    left = f" The first {len(groups)} of {total} groups are shown." if len(groups) < total else ""
    caption = (
        f"{opening(state)} of each client against its number of training samples as training goes on, {_EACH}.{left}"
    )
    picture = clouds_figure(panels, styles, _SIZE, state_label(state))
    title = f"{opening(state)} against the number of samples, by round"
    return Drawn(Figure(f"{state}_by_size_rounds", title, caption), picture)


def opening(state: str) -> str:
    """A state's label at the beginning of a sentence."""
    label = state_label(state)
    return f"{label[0].upper()}{label[1:]}"


def user_ranks(groups: Sequence[Group], styles: Mapping[str, Style], measure: Measure = ACCURACY) -> Iterator[Drawn]:
    """Who loses: every user's accuracy under z and under its own model."""
    panels = {group.label: users_of(group, measure) for group in groups[:MOST_PANELS]}
    caption = (
        f"Each user's {measure.label} on its own test data at the end of training, under the server's model and under "
        f"its own (personal) model; the line between them has the colour of the better one.{panels_note(groups)}"
    )
    if any(len(group.runs) > 1 for group in groups):
        caption += " Seeds with the same clients are averaged user by user, others stand side by side."
    picture = users_figure(panels, measure)
    yield Drawn(Figure(named("user_ranks", measure), "Who is served how well", caption), picture)


# from clients.parquet to arrays


def rows_of(run: Run) -> Rows:
    """The numbers of every client and evaluated round."""
    numbers = [name for name in record_columns(run.measures) if name != "group"]
    names = [*numbers, *states_of([Group("", [run])])]
    rows = {name: column(run, name) for name in names}
    length = len(rows["round"])
    rows = {name: values if len(values) else np.full(length, np.nan) for name, values in rows.items()}
    took_part = np.isfinite(rows["weight"])
    _, position = np.unique(rows["round"], return_inverse=True)
    total = np.bincount(position, np.where(took_part, rows["size"], 0), minlength=1)[position]
    share = np.divide(rows["size"], total, out=np.full(length, np.nan), where=took_part & (total > 0))
    return rows | {SHARE: share}


def chosen(rows: Rows, which: NDArray[Any]) -> Rows:
    """These rows of all columns, given by a mask or by their places."""
    return {name: values[which] for name, values in rows.items()}


def last_part(rows: Rows) -> Rows:
    """Each client in the last evaluated round in which it took part."""
    weighed = chosen(rows, np.isfinite(rows["weight"]))
    _, newest = np.unique(weighed["client"][::-1], return_index=True)  # rows are sorted by round
    return chosen(weighed, len(weighed["client"]) - 1 - newest)


def in_round(rows: Rows, round: int) -> Rows:
    """All clients in one round."""
    return chosen(rows, rows["round"] == round)


def last_round(rows: Rows) -> Rows:
    """All clients at the end."""
    return in_round(rows, rows["round"].max())


def cloud(group: Group, choose: Callable[[Rows], Rows], x: str, y: str) -> Cloud:
    """Two columns of the chosen rows of all runs, where both are known."""
    tables = [choose(rows_of(run)) for run in group.runs]
    both = np.array([np.concatenate([rows[name] for rows in tables]) for name in (x, y)])
    known = both[:, np.isfinite(both).all(0)]
    return Cloud(group.label, known[0], known[1])


def users_of(group: Group, measure: Measure = ACCURACY) -> Users:
    """A measure at the end; user by user over the seeds where all runs have the same users, else all of them."""
    tables = [with_test(last_round(rows_of(run)), measure) for run in group.runs]
    values = [np.array([rows[f"{measure.name}_global"], own_value(rows, measure)]) for rows in tables]
    same = len({run.partition_hash for run in group.runs}) == 1 and len({len(rows["client"]) for rows in tables}) == 1
    server, own = np.mean(values, axis=0) if same else np.concatenate(values, axis=1)
    return Users(server, own)


def with_test(rows: Rows, measure: Measure) -> Rows:
    """The users that have test data."""
    return chosen(rows, np.isfinite(rows[f"{measure.name}_global"]))


def own_value(rows: Rows, measure: Measure) -> Floats:
    """The personal model's, or the local model's where there is no personal one."""
    personal, local = rows[f"{measure.name}_personal"], rows[f"{measure.name}_local"]
    values: Floats = np.where(np.isfinite(personal), personal, local)
    return values


def state_rounds(groups: Sequence[Group]) -> list[int]:
    """Rounds that all runs have evaluated: those of the paper or the nearest ones, and the last of shorter runs."""
    evaluated = [set(column(run, "round").astype(int).tolist()) - {0} for group in groups for run in group.runs]
    common = sorted(set.intersection(*evaluated))
    if not common:
        return []
    wanted = [round for round in STATE_ROUNDS if round <= common[-1]]
    near = {common[int(np.abs(np.array(common) - round).argmin())] for round in wanted}
    return sorted(near | {common[-1]} if len(near) < len(STATE_ROUNDS) else near)
