"""Groups of runs that differ only by their seeds: their labels, and what a reader of one table over them must know."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedlit.results.config_file import canonical, is_fingerprint
from fedlit.results.folder import fingerprint

if TYPE_CHECKING:
    from fedlit.results.runs import Run  # which has this file's public names too

SEEDS = ("seed_everything", "trainer.seed", "data.seed", "data.partition_hash")
"""Settings in which the runs of one group may differ; the hash follows from the seed of the data."""
_SHORT = ("trainer.", "model.", "data.")
_LONGEST = 120
"""Characters of a value in a label."""


@dataclass(frozen=True)
class Group:
    """Runs that differ by nothing but their seeds, each seed once."""

    label: str
    """Short, and unique among the groups made together: `FedBC`, or `FedProx mu=0.1` where options differ."""
    runs: Sequence["Run"]
    options: dict[str, Any] = field(default_factory=dict)
    """The settings in which the groups differ from each other, by dotted name."""
    repeated: Sequence[str] = ()
    """A sentence for each run that is left out because another run has its seed."""

    @property
    def algorithm(self) -> str:
        """The client's class, the same in all runs."""
        return self.runs[0].algorithm

    @property
    def data(self) -> str:
        """The data module's class, the same in all runs."""
        return self.runs[0].data


def group_runs(runs: Sequence["Run"]) -> list[Group]:
    """Group runs that have the same settings except seeds, in their order. A seed that was run twice counts once."""
    members: list[list[Run]] = []
    for run in runs:
        for group in members:
            if belongs(run, group):
                group.append(run)
                break
        else:
            members.append([run])
    first_runs = [group[0] for group in members]
    differing = differing_settings(first_runs)
    return [
        one_run_a_seed(label, group, {name: group[0].settings.get(name) for name in differing})
        for label, group in zip(labels_of(first_runs), members, strict=True)
    ]


def one_run_a_seed(label: str, runs: Sequence["Run"], options: dict[str, Any]) -> Group:
    """A group in which a seed counts once: its finished run, or of several the one that was written last."""
    counted: dict[tuple[int, int], Run] = {}
    for run in sorted(runs, key=lambda run: (run.finished, run.written)):  # stable: of equals the last one stays
        counted[run.seed] = run
    repeated = [
        f"{run.path} is left out, because {counted[run.seed].path} has the same seed and "
        f"{'is newer' if run.finished == counted[run.seed].finished else 'is finished'}."
        for run in runs
        if counted[run.seed] is not run
    ]
    return Group(label, [run for run in runs if counted[run.seed] is run], options, repeated)


def belongs(run: "Run", group: Sequence["Run"]) -> bool:
    """Whether a run differs from a group only by seeds; equal seeds of the data must have given equal partitions."""
    same_data = (other for other in group if other.seed[1] == run.seed[1])
    return not differing_settings([run, group[0]]) and all(
        other.partition_hash == run.partition_hash for other in same_data
    )


def differing_settings(runs: Sequence["Run"]) -> list[str]:
    """Dotted names of settings that are not the same in all these runs, seeds left out."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in SEEDS)
    return [name for name in names if len({canonical(run.settings.get(name)) for run in runs}) > 1]


def labels_of(runs: Sequence["Run"]) -> list[str]:
    """A label for each run, no two alike."""
    return make_unique([label_of(run, runs) for run in runs], runs)


def make_unique(labels: Sequence[str], runs: Sequence["Run"]) -> list[str]:
    """The labels; equal ones also name their quiet settings, and get a number if they are still equal."""
    alike = [[other for other, same in zip(runs, labels, strict=True) if same == label] for label in labels]
    longer = [
        " ".join([label, *options_apart(run, twins, quiet=True)])
        for run, label, twins in zip(runs, labels, alike, strict=True)
    ]
    return [
        f"{label} ({longer[:number].count(label) + 1})" if longer.count(label) > 1 else label
        for number, label in enumerate(longer)
    ]


def label_of(run: "Run", others: Sequence["Run"]) -> str:
    """The algorithm, and the settings in which this run differs from others of the same algorithm."""
    alike = [other for other in others if other.algorithm == run.algorithm]
    datasets = [run.data] if "data" in differing_settings(alike) else []
    return " ".join([run.algorithm, *datasets, *options_apart(run, alike, quiet=False)])


def options_apart(run: "Run", others: Sequence["Run"], *, quiet: bool) -> list[str]:
    """`mu=0.1` for each setting of this run in which the runs differ: either the quiet ones, or all others."""
    apart = [name for name in differing_settings(others) if is_quiet(name) == quiet]
    present = [name for name in apart if name.startswith(_SHORT) and run.settings.get(name) is not None]
    independent = [name for name in present if not follows(name, apart, others)]
    shown = [name for name in independent if not is_shown_by_its_options(name, independent, others)]
    return [option_text(name, run.settings[name]) for name in shown]


def is_quiet(name: str) -> bool:
    """Whether a label names the setting only if it must: fingerprints of nets and code, and `eval_every`."""
    return is_fingerprint(name) or name == "trainer.eval_every"


def follows(name: str, apart: Sequence[str], runs: Sequence["Run"]) -> bool:
    """Whether an option differs only because some runs have another class there: `net=MLP` is enough."""
    return name.rpartition(".")[0] in apart and len(values_of(name, runs)) == 1


def is_shown_by_its_options(name: str, names: Sequence[str], runs: Sequence["Run"]) -> bool:
    """Whether the class is the same in all runs that have one, but an option of it differs: `first=3` is enough."""
    return len(values_of(name, runs)) == 1 and any(option.startswith(f"{name}.") for option in names)


def values_of(name: str, runs: Sequence["Run"]) -> set[str]:
    """The values of a setting in the runs that have it."""
    return {canonical(run.settings[name]) for run in runs if run.settings.get(name) is not None}


def option_text(name: str, value: Any) -> str:
    """`lr=0.1`, `net.behaviour=1a2b3c4d`, or a callback's bare name; a long value is replaced by its fingerprint."""
    parts = name.split(".")
    short = ".".join(parts[-2:] if is_fingerprint(name) else parts[-1:])
    text = str(value) if len(str(value)) <= _LONGEST else fingerprint({short: value})
    return text if text == short else f"{short}={text}"


def named_data(runs: Sequence["Run"]) -> list[str]:
    """Each run's class of data, with its measures if runs of one class have different ones (MSE, accuracy)."""
    measures = [", ".join(measure.label for measure in run.measures) for run in runs]
    kinds = {(run.data, label) for run, label in zip(runs, measures, strict=True)}
    several = {data for data, label in kinds if any(data == other and label != theirs for other, theirs in kinds)}
    return [
        f"{run.data} ({label})" if run.data in several else run.data for run, label in zip(runs, measures, strict=True)
    ]


def mixed(groups: Sequence[Group]) -> list[str]:
    """Sentences that a reader of one table over these groups must know; empty if all runs can be compared."""
    remarks = [remark for group in groups for remark in group.repeated]
    runs = [run for group in groups for run in group.runs]
    datasets = sorted({run.data for run in runs})
    if len(datasets) > 1:
        remarks.append(f"The runs are of different data: {', '.join(datasets)}.")
    by_seed: dict[tuple[str, int], set[str | None]] = {}
    for run in runs:
        by_seed.setdefault((run.data, run.seed[1]), set()).add(run.partition_hash)
    if any(len(hashes) > 1 for hashes in by_seed.values()):
        remarks.append("Runs with the same data seed have different partitions: other clients, other samples.")
    for group in groups:
        lengths = sorted({run.rounds[-1] for run in group.runs})
        if len(lengths) > 1:
            remarks.append(f"{group.label}: runs of different length, {lengths[0]} to {lengths[-1]} rounds.")
    lengths = sorted({group.runs[0].rounds[-1] for group in groups})
    if len(lengths) > 1:
        remarks.append(f"The groups ran for different numbers of rounds: {', '.join(map(str, lengths))}.")
    seeds = {tuple(sorted(run.seed for run in group.runs)) for group in groups}
    if len(seeds) > 1:
        remarks.append("The groups were run with different seeds; differences use the seeds that both have.")
    unfinished = [run.path.name for run in runs if not run.finished]
    if unfinished:
        remarks.append(f"Not finished: {', '.join(unfinished)}.")
    return remarks
