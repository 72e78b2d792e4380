"""Tables as they are laid out, in plain text: what Markdown, LaTeX, HTML and the terminal have in common.

An entry that shows a number keeps the cell it comes from. Nothing here is escaped; each writer does that itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedlit.metrics.catalogue import TIME_TO, metric
from fedlit.metrics.formatting import counted
from fedlit.report.differences import Difference, differences
from fedlit.report.domains import MEAN, Domains
from fedlit.report.formats import ABSENT, Style, heading, style_of
from fedlit.report.signed_ranks import ALPHA, least_pairs, smallest_p
from fedlit.report.tables import Cell, cell_of
from fedlit.results.runs import Group

WIDE = 12
"""More domains than this stand below each other."""
MOST = 8
"""Metrics of one table of results."""
OF_USERS = ("users/", "min_user/", "max_user/", "min_max/")
"""Beginnings of metrics that tell users apart."""
BY_INTERVAL, BY_TEST = "by the interval", "by the test"
"""Headings of the two verdicts on a difference."""


@dataclass(frozen=True)
class Entry:
    """One field of a grid."""

    text: str
    bold: bool = False
    cell: Cell | None = None
    """What the number was computed from."""
    link: Path | None = None
    """A run folder."""


@dataclass(frozen=True)
class Heading:
    """The head of a column."""

    text: str
    name: str = ""
    """The metric's name, where it is one."""
    is_text: bool = False
    """Words stand to the left, numbers to the right."""


@dataclass(frozen=True)
class Grid:
    """One table."""

    name: str
    """Unique in a report: `synthetic-results`."""
    title: str
    caption: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = field(default_factory=list)
    """What its cells cannot say: who lacks a metric, what could not be matched."""


def results_grids(name: str, groups: Sequence[Group], metrics: Sequence[str], last: int) -> list[Grid]:
    """The table of results; where it would be too wide, one of the models and one of who gains and who loses."""
    of_users = [metric_name for metric_name in metrics if metric_name.startswith(OF_USERS)]
    others = [metric_name for metric_name in metrics if metric_name not in of_users]
    if len(metrics) <= MOST or not of_users or not others:
        return [results_grid(f"{name}-results", groups, metrics, last)]
    users = results_grid(f"{name}-users", groups, of_users, last)
    return [results_grid(f"{name}-results", groups, others, last), replace(users, title="Users")]


def results_grid(name: str, groups: Sequence[Group], metrics: Sequence[str], last: int) -> Grid:
    """Rows are groups, columns are metrics: mean ± standard deviation, the best in bold."""
    columns = [[cell_of(group, metric_name, last) for group in groups] for metric_name in metrics]
    entries = [result_column(column, metric(column[0].column).best) for column in columns]
    lengths = [lengths_of(group) for group in groups]
    marked = len(set(lengths)) > 1
    rows = [
        [
            Entry(group.label),
            Entry(str(len(group.runs))),
            *([Entry(lengths[number])] if marked else []),
            *(column[number] for column in entries),
        ]
        for number, group in enumerate(groups)
    ]
    headings = [
        Heading("algorithm", is_text=True),
        Heading("n"),
        *([Heading("rounds")] if marked else []),
        *(Heading(heading(m) + arrow(m), m) for m in metrics),
    ]
    notes = missing_notes([cell for column in columns for cell in column])
    notes += ["The runs have different lengths: the longer ones had more rounds to learn in."] if marked else []
    return Grid(name, "Results", results_caption(groups, last), headings, rows, notes)


def lengths_of(group: Group) -> str:
    """`100`, or `40 to 100`: the rounds of its runs."""
    lengths = sorted({run.rounds[-1] for run in group.runs})
    return str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"


def result_column(cells: Sequence[Cell], best: str | None, style: Style | None = None) -> list[Entry]:
    """One metric of all groups; those that read as the best are bold, unless all read the same or one stands alone."""
    style = style or style_of(cells[0].column, [cell.mean for cell in cells])
    known = [cell.mean for cell in cells if cell.mean is not None and cell.mean == cell.mean]
    differ = len({style.number(mean) for mean in known}) > 1
    shown = style.number((max if best == "max" else min)(known)) if best and differ else None
    return [
        Entry(style.cell(cell), cell.mean is not None and style.number(cell.mean) == shown, cell if cell.n else None)
        for cell in cells
    ]


def arrow(name: str) -> str:
    """Which way is better, never alone on a line."""
    return {"max": "\u00a0↑", "min": "\u00a0↓", None: ""}[metric(name).best]


def results_caption(groups: Sequence[Group], last: int) -> str:
    """What the numbers are."""
    seeds = {len(group.runs) for group in groups}
    spread = "One seed each, so no spread" if seeds == {1} else "Mean ± standard deviation (n − 1) over n seeds"
    when = "the last evaluated round" if last == 1 else f"the mean of the {last} last evaluated rounds"
    return f"{spread}; {when}. The best of a column in bold; ↑ higher is better, ↓ lower is better."


def missing_notes(cells: Sequence[Cell]) -> list[str]:
    """Who lacks what."""
    notes = []
    for cell in cells:
        if not cell.n:
            is_time = cell.column.startswith(TIME_TO)
            why = "is not known: no clock, or never reached" if is_time else "was not measured"
            notes.append(f"{cell.row}: {cell.column} {why}.")
        elif cell.missing:
            folders = ", ".join(path.name for path in cell.missing)
            notes.append(f"{cell.row}: {cell.column} is not known of {folders}; the others count.")
    return notes


def differences_grid(
    name: str, groups: Sequence[Group], reference: Group, metrics: Sequence[str], last: int
) -> Grid | None:
    """Each group against the reference, metric by metric; None where there is nobody to compare with."""
    others = [group for group in groups if group is not reference]
    if not others:
        return None
    tests, rows = [], []
    for metric_name in metrics:
        style = style_of(metric_name, [cell_of(group, metric_name, last).mean for group in groups])
        tested = [one for one in differences(others, reference, metric_name, last) if one.n]
        rows += [difference_row(one, style) for one in tested]
        tests += tested
    headings = [
        Heading("metric", is_text=True),
        Heading("algorithm", is_text=True),
        Heading("difference"),
        Heading("95 % interval"),
        Heading("pairs"),
        Heading(BY_INTERVAL, is_text=True),
        Heading("Wilcoxon p"),
        Heading("after Holm"),
        Heading(BY_TEST, is_text=True),
    ]
    caption = (
        f"Each group less {reference.label}, seed by seed; Student-t interval of the mean difference. Bold: 0 lies "
        "outside the interval, which is not corrected for many comparisons. Beside it the exact two-sided p of "
        "Wilcoxon's signed-rank test, and after Holm's correction for the groups that are compared in the metric; "
        "several metrics are not corrected for. Significant: at most 0.05 after it. Differences of percentages are in "
        "points."
    )
    notes = [
        f"{group.label} has no seed in common with {reference.label}." for group in others if no_pair(group, reference)
    ]
    return Grid(name, f"Differences to {reference.label}", caption, headings, rows, [*notes, *test_notes(tests)])


def test_notes(tested: Sequence[Difference]) -> list[str]:
    """What the tests cannot say: of runs with different lengths, and of too few pairs."""
    refused = {f"{one.row} ({' and '.join(map(str, one.lengths))} rounds)": None for one in tested if one.lengths}
    notes = (
        [f"No interval and no test, because the runs have different lengths: {', '.join(refused)}."] if refused else []
    )
    few = [one for one in tested if one.holm is not None and one.tests * smallest_p(one.n) > ALPHA]
    for pairs, tests in sorted({(one.n, one.tests) for one in few}):
        corrected = f", {tests * smallest_p(pairs):.3g} after Holm's correction of {tests} tests," if tests > 1 else ""
        notes.append(
            f"With {counted(pairs, 'pair')} the smallest possible p is {smallest_p(pairs):.4g}{corrected} so that "
            f"nothing can be significant at 5 %. It takes {least_pairs(tests)} seeds."
        )
    return notes


def no_pair(group: Group, reference: Group) -> bool:
    """Whether two groups share no seed."""
    return not {run.seed for run in group.runs} & {run.seed for run in reference.runs}


def difference_row(one: Difference, style: Style) -> list[Entry]:
    """Metric, group, difference, interval, pairs, verdict; p, corrected p, verdict."""
    assert one.mean is not None, "a difference without a pair has no row"
    clear = one.verdict in ("better", "worse", "higher", "lower")
    significant = one.by_the_test.startswith("significant")
    low, high = one.interval or (None, None)
    between = ABSENT if low is None or high is None else f"{style.signed(low)} to {style.signed(high)}"
    return [
        Entry(heading(one.column)),
        Entry(one.row),
        Entry(style.signed(one.mean), clear, one),
        Entry(between),
        Entry(str(one.n)),
        Entry(one.verdict, clear),
        Entry(p_text(one.p)),
        Entry(p_text(one.holm)),
        Entry(one.by_the_test, significant),
    ]


def p_text(p: float | None) -> str:
    """`0.0625`, `0.00049`."""
    return ABSENT if p is None else f"{p:.4f}" if p >= 0.001 else f"{p:.2g}"


def domains_grid(name: str, groups: Sequence[Group], domains: Domains, last: int) -> Grid | None:
    """Accuracy by domain; None where no client has one."""
    if not domains.names:
        return None
    columns = [[domains.cell(group, domain) for group in groups] for domain in (*domains.names, MEAN)]
    entries = [result_column(cells, "max", Style(100.0, 2)) for cells in columns]
    personal = [group.label for group in groups if any(run.path in domains.personal for run in group.runs)]
    notes = missing_notes([cell for column in columns for cell in column])
    if personal:
        notes.append(f"{', '.join(personal)}: z is not a whole model, so these are the users' personal models.")
    caption = (
        "Accuracy [%] of z on the clients' own test data, plain mean over the clients of each domain (their `group`); "
        f"the last column is the plain mean over the domains. {results_caption(groups, last)}"
    )
    title = "Accuracy by domain"
    if len(entries) > WIDE:
        heads = [Heading("domain", is_text=True), *(Heading(group.label) for group in groups)]
        names = [*domains.names, MEAN]
        return Grid(name, title, caption, heads, [[Entry(n), *e] for n, e in zip(names, entries, strict=True)], notes)
    heads = [Heading("algorithm", is_text=True), *(Heading(domain) for domain in (*domains.names, MEAN))]
    rows = [[Entry(group.label), *(column[number] for column in entries)] for number, group in enumerate(groups)]
    return Grid(name, title, caption, heads, rows, notes)
