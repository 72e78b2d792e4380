"""Runs read back from their folders: what tables, pictures, the dashboard and comparisons are made of.

A run is what `fit` left in a folder, finished or not. Runs that differ by nothing but their seeds are one `Group`.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlit.errors import ConfigError, RunError
from fedlit.metrics.catalogue import MEASURES, STATES, ShownState, declare, declare_measure, first_measure, measures_in
from fedlit.metrics.measures import Measure, unknown
from fedlit.results.config_file import canonical, flatten, is_fingerprint, read_config, result_settings
from fedlit.results.consistency import check_consistent
from fedlit.results.folder import RunFolder, fingerprint, read_clients, read_metrics

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]  # pyarrow ships no types

log = logging.getLogger("fedlit")

SEEDS = ("seed_everything", "trainer.seed", "data.seed", "data.partition_hash")
"""Settings in which the runs of one group may differ; the hash follows from the seed of the data."""
SERVERS = "servers.parquet"
SERVER_COLUMNS = (
    *("round", "server", "time_s", "rounds", "start_s", "finish_s", "waited_s"),
    *("distance", "clients", "stepped"),
)
"""Of servers.parquet, beside the first measure's; docs/metrics.md says what they mean."""
_SHORT = ("trainer.", "model.", "data.")
_LONGEST = 120
"""Characters of a value in a label."""


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path
    settings: dict[str, Any]
    """What decides its results, as dotted names: `trainer.clients_per_round`, `model.lr`, `data.alpha`, ..."""
    rounds: list[int]
    rows: list[dict[str, float]]
    """The metrics of each of these rounds; what was not measured is absent."""
    summary: dict[str, Any]
    """summary.json; empty while the run is unfinished."""
    partition: dict[str, Any]
    """partition.json: who holds which samples."""

    @property
    def algorithm(self) -> str:
        """The client's class: `FedBC`."""
        return str(self.settings["model"])

    @property
    def data(self) -> str:
        """The data module's class: `Synthetic`."""
        return str(self.settings["data"])

    @property
    def seed(self) -> tuple[int, int]:
        """(seed of the run, seed of the data): runs with the same one are paired."""
        own = self.settings.get("seed_everything") or self.settings.get("trainer.seed")  # the latter: Python's
        return int(own or 0), int(self.settings.get("data.seed") or 0)

    @property
    def finished(self) -> bool:
        """Whether it came to its last round."""
        return bool(self.summary.get("finished"))

    @property
    def written(self) -> int:
        """When its last row was written, in nanoseconds since 1970."""
        return RunFolder(self.path).metrics.stat().st_mtime_ns

    @property
    def partition_hash(self) -> str | None:
        """Tells whether two runs had the same clients with the same samples."""
        return self.partition.get("hash")

    @property
    def metrics(self) -> list[str]:
        """Names of everything that was measured at least once, in the order of metrics.csv."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def measures(self) -> list[Measure]:
        """What its task measures; the first is what it is judged by."""
        return measures_in(self.metrics) or [first_measure(())]

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """(rounds, values) of one metric, where it was measured."""
        known = [(r, row[name]) for r, row in zip(self.rounds, self.rows, strict=True) if name in row]
        return [r for r, _ in known], [value for _, value in known]

    def final(self, name: str, last: int = 1) -> float | None:
        """The metric at the end of the run: the mean of its `last` newest values, or None if it was never measured."""
        _, values = self.series(name)
        newest = values[-last:]
        return sum(newest) / len(newest) if newest else None

    @cached_property
    def clients(self) -> "pyarrow.Table":
        """One row per client and evaluated round; RunError where there are none, or where they are damaged."""
        try:
            return read_clients(self.path)
        except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
            why = " ".join(str(error).split())
            raise RunError(
                f"The client records in {self.path} cannot be read ({why}). Delete clients.parquet there, or the "
                "damaged one of the files in clients/, which hold the same rows."
            ) from error

    @cached_property
    def servers(self) -> "pyarrow.Table":
        """One row per server and evaluated round; RunError where there are none, or where they are damaged."""
        return read_servers(self.path)


@dataclass(frozen=True)
class Group:
    """Runs that differ by nothing but their seeds, each seed once."""

    label: str
    """Short, unique among the groups it was made with: `FedBC`, or `FedProx mu=0.1` where options differ."""
    runs: Sequence[Run]
    options: dict[str, Any] = field(default_factory=dict)
    """The settings in which the groups differ from each other, by dotted name."""
    repeated: Sequence[str] = ()
    """A sentence for each run that does not count, because another one has its seed."""

    @property
    def algorithm(self) -> str:
        """The client's class, the same in all runs."""
        return self.runs[0].algorithm

    @property
    def data(self) -> str:
        """The data module's class, the same in all runs."""
        return self.runs[0].data


def read_run(folder: Path) -> Run:
    """One run, or a RunError that says what is missing."""
    files = RunFolder(folder)
    if not files.config.is_file():
        raise RunError(
            f"{folder} is not a run folder: it has no config.yaml. Give a folder that 'fedlit fit' has written."
        )
    rows = read_metrics(files.metrics)
    if not any(row["round"] >= 1 for row in rows):
        raise RunError(f"{folder} has no finished round. Continue it with 'fedlit fit … --resume', or leave it out.")
    rounds = [int(row.pop("round")) for row in rows]
    settings = plain_settings(read_settings(files.config))
    summary = read_json(files.summary)
    check_consistent(files, rounds, rows, summary)
    declare_states(summary, files.summary)
    run = Run(folder, settings, rounds, rows, summary, read_json(files.partition))
    check_seeds(run)
    return run


def check_seeds(run: Run) -> None:
    """RunError where what tells runs apart is not what fedlit writes."""
    try:
        is_right = min(run.seed) >= 0
    except (TypeError, ValueError):
        is_right = False
    if not is_right:
        raise RunError(f"{run.path / 'config.yaml'} has a seed that is not a whole number. Restore it.")
    if not isinstance(run.partition_hash, str | None):
        raise RunError(f"{run.path / 'partition.json'} has a hash that is not a text. Restore it, or delete the file.")


def read_servers(folder: Path) -> "pyarrow.Table":
    """servers.parquet of a run with several servers, by round and server."""
    from pyarrow import parquet

    path = folder / SERVERS
    if not path.is_file():
        raise RunError(f"{folder} holds no server records. Give the folder of a run with several servers.")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
        why = " ".join(str(error).split())
        raise RunError(f"{path} cannot be read ({why}). Restore it, or delete it to do without its servers.") from error
    absent = [name for name in SERVER_COLUMNS if name not in table.column_names]
    absent += [] if any(name in MEASURES for name in table.column_names) else ["acc"]
    if absent:
        raise RunError(f"{path} has no column {', '.join(absent)}. Restore it, or delete it to do without its servers.")
    return table.sort_by([("round", "ascending"), ("server", "ascending")])


def declare_states(summary: dict[str, Any], path: Path) -> None:
    """Take in the words for a run's states and measures, where no class of this process has said them."""
    try:
        for name, words in summary.get("measures", {}).items():
            declare_measure(Measure(name, rows=unknown, **words))
        given = {name: ShownState(**words) for name, words in summary.get("states", {}).items() if name not in STATES}
        declare(given)
    except (AttributeError, TypeError, ConfigError) as error:
        raise RunError(
            f"{path}: its 'states' or 'measures' cannot be read ({error}). Delete them there, or the file."
        ) from error


def read_settings(path: Path) -> dict[str, Any]:
    """config.yaml of a run; RunError if it is damaged or does not say what was trained on what."""
    config = read_config(path)
    absent = [name for name in ("model", "data") if not config.get(name)]
    if absent:
        raise RunError(f"{path} does not name {' and '.join(absent)}. Restore it, or leave this run out.")
    return config


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file, empty if there is none; RunError if it is damaged."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({error}). Delete it and continue the run with --resume.") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} holds no keys. Delete it and continue the run with --resume.")
    return content


def find_runs(places: Iterable[Path]) -> list[Run]:
    """The runs in these folders, each a run folder or a folder that holds some at any depth, in the order of names.

    What was named itself must be readable; an unreadable run that was only found is left out with a line that says so.
    """
    runs: dict[Path, Run] = {}
    for place in places:
        if not place.is_dir():
            raise RunError(f"{place} is not a folder. Give run folders, or a folder that holds some (such as 'runs').")
        if RunFolder(place).config.is_file():
            runs[place.resolve()] = read_run(place)
            continue
        for config in sorted(place.rglob("config.yaml")):
            try:
                runs[config.parent.resolve()] = read_run(config.parent)
            except RunError as error:
                log.warning(f"left out: {error}")
    if not runs:
        where = ", ".join(str(place) for place in places)
        raise RunError(f"There is no run with a finished round in {where}. Run 'fedlit fit' or 'fedlit compare' first.")
    return list(runs.values())


def plain_settings(config: dict[str, Any]) -> dict[str, Any]:
    """What decides the results of a config, as dotted names."""
    return dotted(result_settings(config))


def dotted(config: dict[str, Any]) -> dict[str, Any]:
    """Names as on the command line: `model` is the class, `model.lr` its option, without `init_args` in between.

    A class that is not fedlit's also has its `module`: another package's FedAvg is another algorithm.
    """
    flat: dict[str, Any] = {}
    for name, value in flatten(config).items():
        short = ".".join(part for part in name.split(".") if part not in ("init_args", "class_path"))
        module, _, kind = (
            value.rpartition(".") if name.endswith("class_path") and isinstance(value, str) else ("", "", "")
        )
        flat[short] = kind or value
        if module not in ("", "fedlit"):
            flat[f"{short}.module"] = module
    return flat


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs by their settings without seeds, in the order in which they come. A seed that was run twice counts once."""
    members: list[list[Run]] = []
    for run in runs:
        for group in members:
            if belongs(run, group):
                group.append(run)
                break
        else:
            members.append([run])
    first = [group[0] for group in members]
    differing = differing_settings(first)
    return [
        one_run_a_seed(label, group, {name: group[0].settings.get(name) for name in differing})
        for label, group in zip(labels_of(first), members, strict=True)
    ]


def one_run_a_seed(label: str, runs: Sequence[Run], options: dict[str, Any]) -> Group:
    """A group in which a seed counts once: by its finished run, of several by the one that was written last."""
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


def belongs(run: Run, group: Sequence[Run]) -> bool:
    """Whether a run differs from a group's by its seeds alone: the same seed of the data must be the same partition."""
    same_data = (other for other in group if other.seed[1] == run.seed[1])
    return not differing_settings([run, group[0]]) and all(
        other.partition_hash == run.partition_hash for other in same_data
    )


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Dotted names of settings that are not the same in all these runs, seeds left out."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in SEEDS)
    return [name for name in names if len({canonical(run.settings.get(name)) for run in runs}) > 1]


def labels_of(runs: Sequence[Run]) -> list[str]:
    """A label for each, no two alike."""
    return told_apart([label_of(run, runs) for run in runs], runs)


def told_apart(labels: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The labels, with what is quiet where nothing else tells two runs apart, with a number where nothing does."""
    alike = [[other for other, same in zip(runs, labels, strict=True) if same == label] for label in labels]
    longer = [
        " ".join([label, *options_apart(run, twins, quiet=True)])
        for run, label, twins in zip(runs, labels, alike, strict=True)
    ]
    return [
        f"{label} ({longer[:number].count(label) + 1})" if longer.count(label) > 1 else label
        for number, label in enumerate(longer)
    ]


def label_of(run: Run, others: Sequence[Run]) -> str:
    """The algorithm, and what a reader can tell this run by from others of the same algorithm."""
    alike = [other for other in others if other.algorithm == run.algorithm]
    datasets = [run.data] if "data" in differing_settings(alike) else []
    return " ".join([run.algorithm, *datasets, *options_apart(run, alike, quiet=False)])


def options_apart(run: Run, others: Sequence[Run], *, quiet: bool) -> list[str]:
    """`mu=0.1` for each setting in which these runs differ and that this one has: the quiet ones, or all but them."""
    apart = [name for name in differing_settings(others) if is_quiet(name) == quiet]
    own = [name for name in apart if name.startswith(_SHORT) and run.settings.get(name) is not None]
    telling = [name for name in own if not follows(name, apart, others)]
    shown = [name for name in telling if not is_told_by_its_options(name, telling, others)]
    return [option_text(name, run.settings[name]) for name in shown]


def is_quiet(name: str) -> bool:
    """Fingerprints of nets and code, and how often a run was measured."""
    return is_fingerprint(name) or name == "trainer.eval_every"


def follows(name: str, apart: Sequence[str], runs: Sequence[Run]) -> bool:
    """Whether an option differs only because some runs have another class there: `net=MLP` is enough."""
    return name.rpartition(".")[0] in apart and len(values_of(name, runs)) == 1


def is_told_by_its_options(name: str, telling: Sequence[str], runs: Sequence[Run]) -> bool:
    """Whether all runs that have a class there have the same, with another option: `first=3` is enough."""
    return len(values_of(name, runs)) == 1 and any(option.startswith(f"{name}.") for option in telling)


def values_of(name: str, runs: Sequence[Run]) -> set[str]:
    """The values of a setting, as far as these runs have it."""
    return {canonical(run.settings[name]) for run in runs if run.settings.get(name) is not None}


def option_text(name: str, value: Any) -> str:
    """`lr=0.1`, `net.behaviour=1a2b3c4d`, the bare name of a callback; what is long is shown by its fingerprint."""
    parts = name.split(".")
    short = ".".join(parts[-2:] if is_fingerprint(name) else parts[-1:])
    text = str(value) if len(str(value)) <= _LONGEST else fingerprint({short: value})
    return text if text == short else f"{short}={text}"


def named_data(runs: Sequence[Run]) -> list[str]:
    """Each run's class of data, with its measures where runs of that class have others: MSE is not beside accuracy."""
    measures = [", ".join(measure.label for measure in run.measures) for run in runs]
    kinds = {(run.data, own) for run, own in zip(runs, measures, strict=True)}
    several = {data for data, own in kinds if any(data == other and own != theirs for other, theirs in kinds)}
    return [f"{run.data} ({own})" if run.data in several else run.data for run, own in zip(runs, measures, strict=True)]


def mixed(groups: Sequence[Group]) -> list[str]:
    """What a reader of one table over these groups must know: sentences, empty if all can be compared."""
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
