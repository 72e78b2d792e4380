"""A paper's table beside our runs: which number belongs to which group, and in words what could not be matched."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedlit.errors import ConfigError
from fedlit.metrics.catalogue import SUMMARY_METRICS, metric
from fedlit.report.domains import MEAN, Domains
from fedlit.report.formats import heading, style_of
from fedlit.report.grids import Entry, Grid, Heading
from fedlit.report.paper_tables import PaperRow, PaperTable, in_our_unit
from fedlit.report.paper_vocabulary import BEST_ROUNDS, Reading, RunValue, has_own_weights, names_of, reading_of
from fedlit.report.tables import Cell, cell_of
from fedlit.results.runs import Group

_NO_CONDITIONS = ("algorithm", "backbone", "metric", "evaluated", "domain")
_DOMAINS = {"mnist-m": "mnistm", "avg": MEAN}
"""A paper's name of a domain -> ours, where they differ."""
_OFTEN_UNNAMED = {
    "network": "model.net",
    "learning rate": "model.lr",
    "batch size": "model.batch_size",
    "clients": "data.num_clients",
    "clients of the partition": "data.partition.num_clients",
    "clients per round": "trainer.clients_per_round",
    "split": "data.split",
    "domains": "data.domains",
}
_FINETUNING = {"fine-tuning rate": "trainer.finetune_lr", "fine-tuning on": "trainer.finetune_on"}


@dataclass(frozen=True)
class Match:
    """A number of the table and our cell for it."""

    row: PaperRow
    metric: str
    cell: Cell


@dataclass
class Comparison:
    """A table, how it is read, and what was found for our groups."""

    table: PaperTable
    reading: Reading
    domains: Domains
    last: int
    matches: list[Match] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """What could not be matched, and why."""
    strangers: list[str] = field(default_factory=list)
    """Groups that the table does not know."""

    def add(self, group: Group) -> None:
        """The numbers that belong to a group, or the words that say why there are none."""
        rows = self.rows_of(group)
        if not rows:
            self.strangers.append(group.label)
            return
        if self.reading.own_weights and not has_own_weights(group):
            self.words.append(f"{group.label}: not run with its algorithm's own weights, so not compared.")
            return
        fitting = [row for row in rows if not self.mismatches(group, row)]
        if not fitting:
            self.words.append(f"{group.label}: no row fits. {self.why_not(group, rows)}")
        for alike in self.by_number(fitting):
            self.add_number(group, alike)

    def rows_of(self, group: Group) -> list[PaperRow]:
        """The rows of its algorithm; a user's table may also name groups by their labels, and then means just those."""
        named = [
            (row, self.fields(row).get("algorithm") or self.fields(row).get("backbone")) for row in self.table.rows
        ]
        exact = [row for row, name in named if name == group.label and not self.table.is_shipped]
        return exact or [row for row, name in named if name in names_of(group)]

    def add_number(self, group: Group, alike: Sequence[PaperRow]) -> None:
        """One number of a group: only one row may fit, and it must be measured on the same kind of data."""
        row, word = alike[0], alike[0].fields.get("metric", "")
        name = self.metric_of(row)
        if len(alike) > 1:
            lines = ", ".join(str(one.line) for one in alike)
            self.words.append(f"{group.label}: lines {lines} fit alike as {word}; none is compared.")
        elif name is None:
            self.words.append(f"{group.label}: fedlit has no metric for '{word}'.")
        elif name in SUMMARY_METRICS and not all("val/acc" in run.metrics for run in group.runs):
            self.words.append(f"{group.label}: {word} is of validation data, which the runs do not have.")
        elif row.fields.get("domain") == "avg" and (other := self.other_domains(group, row)):
            self.words.append(f"{group.label}: the mean over domains is not compared, {other}.")
        else:
            cell = self.our_cell(group, row, name)
            if cell.n:
                self.matches.append(Match(row, name, cell))
            else:
                self.words.append(f"{group.label}: {cell.column} was not measured; the table has it as {word}.")

    def our_cell(self, group: Group, row: PaperRow, name: str) -> Cell:
        """Our number for a row: a metric, or the accuracy in a domain."""
        domain = row.fields.get("domain")
        if domain is None:
            return cell_of(group, name, self.last)
        return self.domains.cell(group, _DOMAINS.get(domain, domain))

    def other_domains(self, group: Group, row: PaperRow) -> str:
        """Why a mean over domains is not of the same ones; empty if it is."""
        alike = [one.fields for one in self.table.rows if one.fields.get("dataset") == row.fields.get("dataset")]
        printed = {_DOMAINS.get(fields["domain"], fields["domain"]) for fields in alike} - {MEAN}
        ours = {name for run in group.runs for name in self.domains.scores.get(run.path, {})}
        return "" if ours == printed else f"the table's is over {', '.join(sorted(printed))}"

    def metric_of(self, row: PaperRow) -> str | None:
        """Our name for a row's metric; None where there is none."""
        word = row.fields.get("evaluated") or row.fields.get("metric", "")
        return self.reading.metric_of(row.fields.get("algorithm"), word)

    def fields(self, row: PaperRow) -> Mapping[str, str]:
        """A row's columns together with what holds for the whole table."""
        return {**self.reading.implied, **row.fields}

    def by_number(self, rows: Sequence[PaperRow]) -> list[list[PaperRow]]:
        """Rows that claim to be the same number, together."""
        gathered: dict[tuple[str | None, ...], list[PaperRow]] = {}
        for row in rows:
            same = (self.metric_of(row), *map(row.fields.get, ("metric", "evaluated", "domain")))
            gathered.setdefault(same, []).append(row)
        return list(gathered.values())

    def mismatches(self, group: Group, row: PaperRow) -> list[str]:
        """The columns in which a row does not agree with the runs' settings."""
        fields = self.fields(row)
        readers = self.reading.columns
        return [name for name in readers if name in fields and not agree(fields[name], readers[name](group, fields))]

    def why_not(self, group: Group, rows: Sequence[PaperRow]) -> str:
        """The columns that the nearest rows disagree in: our value and those of the table."""
        failed = [(row, self.mismatches(group, row)) for row in rows]
        fewest = min(len(columns) for _, columns in failed)
        near = [(row, columns) for row, columns in failed if len(columns) == fewest]
        said = []
        for column in dict.fromkeys(column for _, columns in near for column in columns):
            printed = dict.fromkeys(self.fields(row)[column] for row, columns in near if column in columns)
            ours = self.reading.columns[column](group, self.fields(near[0][0]))
            has = "the runs' settings do not tell" if ours is None else f"the runs have {ours}"
            said.append(f"{column}: {has}, the table {', '.join(printed)}")
        return "; ".join(said) + "."

    def unread(self) -> list[str]:
        """Groups and columns that are not compared, and numbers that have no run."""
        columns = dict.fromkeys(name for row in self.table.rows for name in row.fields)
        strange = [name for name in columns if name not in (*_NO_CONDITIONS, *self.reading.columns)]
        used = {one.row.line for one in self.matches}
        left = sum(row.line not in used for row in self.table.rows)
        notes = [f"The table has no row for {', '.join(self.strangers)}."] if self.strangers else []
        notes += [f"Columns that were not compared: {', '.join(strange)}."] if strange else []
        return notes + ([f"{left} of the table's {len(self.table.rows)} numbers have no run here."] if left else [])

    def read_as(self) -> list[str]:
        """Which of our metrics stands for the paper's word."""
        pairs = dict.fromkeys(
            (" ".join(filter(None, (one.row.fields.get("evaluated"), one.row.fields.get("metric")))), one.metric)
            for one in self.matches
            if "domain" not in one.row.fields
        )
        return [f"Read as: {'; '.join(f'{word} = {ours}' for word, ours in pairs)}."] if pairs else []

    def other_rounds(self) -> list[str]:
        """That the table seems to print another round of a run than our cells have."""
        if self.table.name not in BEST_ROUNDS or not self.table.is_shipped or not self.matches:
            return []
        have = "the last evaluated round" if self.last == 1 else f"the mean of the last {self.last} evaluated rounds"
        return [
            f"The table seems to print the best test round of each run; ours is {have}, which is fair. "
            "`fedlit reproduce` shows both."
        ]


def against_grid(name: str, groups: Sequence[Group], table: PaperTable, domains: Domains, last: int) -> Grid:
    """The paper's value, ours and the difference, for every number of the table that has runs here."""
    comparison = Comparison(table, reading_of(table), domains, last)
    check_percent(comparison)
    for group in groups:
        comparison.add(group)
    headings = [Heading(text, is_text=True) for text in ("algorithm", "metric", "row of the table")]
    headings += [Heading(text) for text in ("paper", "ours", "n", "ours\u00a0−\u00a0paper")]
    caption = (
        f"The numbers of {table.name} beside ours: mean ± standard deviation as printed there, and over our n seeds. "
        "Differences of percentages are in points."
    )
    notes = [*comparison.words, *comparison.unread(), *not_named(groups, comparison.reading), *comparison.read_as()]
    notes += [*comparison.other_rounds(), *unlike_lengths([one.cell.row for one in comparison.matches], groups)]
    return Grid(name, f"Against {table.name}", caption, headings, [match_row(one) for one in comparison.matches], notes)


def check_percent(comparison: Comparison) -> None:
    """Shares in place of percentages would be off by a factor of 100 without anybody noticing."""
    shares = [row.mean for row in comparison.table.rows if metric(comparison.metric_of(row) or "").unit == "share"]
    if shares and max(shares) <= 1:
        raise ConfigError(
            f"--against {comparison.table.name}: no accuracy in it is above 1, but tables give percent. Multiply the "
            "mean and std of accuracies by 100."
        )


def agree(printed: str, value: RunValue) -> bool:
    """Whether a printed value is ours: as numbers where both are."""
    try:
        return value is not None and math.isclose(float(printed), float(value), rel_tol=1e-9)
    except (TypeError, ValueError):
        return printed.casefold() == str(value).casefold()


def not_named(groups: Sequence[Group], reading: Reading) -> list[str]:
    """What tables leave out and may still differ, as our runs have it."""
    runs = [run for group in groups for run in group.runs]
    said = {} if "t" in reading.columns else {"rounds": [str(r) for r in sorted({run.rounds[-1] for run in runs})]}
    is_finetuned = any(run.settings.get("trainer.finetune_lr") is not None for run in runs)
    for words, name in (_OFTEN_UNNAMED | (_FINETUNING if is_finetuned else {})).items():
        if name not in (*reading.named, *reading.columns):
            said[words] = list(dict.fromkeys(str(run.settings[name]) for run in runs if name in run.settings))
    shown = "; ".join(f"{words} {', '.join(values)}" for words, values in said.items() if values)
    return [f"Not in the table, and so not compared; our runs have {shown}."] if shown else []


def unlike_lengths(labels: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """That the groups of these labels have runs of different lengths, and which."""
    lengths = {group.label: sorted({run.rounds[-1] for run in group.runs}) for group in groups if group.label in labels}
    if len({rounds for each in lengths.values() for rounds in each}) < 2:
        return []
    said = "; ".join(f"{label} {' and '.join(map(str, each))}" for label, each in lengths.items())
    return [f"Runs of different lengths are compared, in rounds: {said}."]


def match_row(match: Match) -> list[Entry]:
    """Algorithm, metric, row of the table, paper, ours, n, difference."""
    paper = in_our_unit(match.metric, match.row.mean)
    std = None if match.row.std is None else in_our_unit(match.metric, match.row.std)
    style = style_of(match.metric, [paper, match.cell.mean])
    assert match.cell.mean is not None, "a match has been measured"
    fields = match.row.fields
    named = {name: value for name, value in fields.items() if name not in _NO_CONDITIONS}
    which = ", ".join(value if name == "dataset" else f"{name} = {value}" for name, value in named.items())
    return [
        Entry(match.cell.row),
        Entry(f"{match.cell.column} [%]" if "domain" in fields else heading(match.metric)),
        Entry(f"{which} (line {match.row.line})" if which else f"line {match.row.line}"),
        Entry(style.number(paper) + ("" if std is None else f" ± {style.number(std)}")),
        Entry(style.cell(match.cell), cell=match.cell),
        Entry(str(match.cell.n)),
        Entry(style.signed(match.cell.mean - paper)),
    ]
