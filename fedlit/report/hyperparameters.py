"""The table of hyper-parameters: what was searched, what was chosen; from config.yaml and the records of searches."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedlit.report.formats import ABSENT
from fedlit.report.grids import Entry, Grid, Heading, lengths_of
from fedlit.report.searches import Search, searches_of, value_text
from fedlit.results.config_file import canonical, is_fingerprint
from fedlit.results.runs import SEEDS, Group

ALL = "all"
"""The label of rows that hold for every group."""
UNUSED: dict[str, object] = {
    **{"optimizer": "sgd", "extrapolation": 0.0, "weight_decay": 0.0, "l2": 0.0, "lr_decay": 1.0},
    **{"local_unit": "step", "drop_last": False, "keep_optimizer": False, "keep_local": "none"},
    **{"average_kept": False, "server_optimizer": "SGD", "sampler": "uniform", "finetune_on": "train"},
}
"""Options with the value at which they change nothing, and are left out."""
OF_ADAM = ("model.betas", "model.eps")
"""Options that count with the optimizers `adam` and `adamw` alone."""
OF_THE_ROUND = ("clients_per_round", "sampler", "weights", "server_optimizer", "finetune_lr", "finetune_on")
OF_THE_WORLD = ("clock", "cloud", "buffer")
"""Options of the trainer that papers list, and objects whose options they list."""


def hyperparameters_grid(name: str, groups: Sequence[Group], searched: Sequence[Path] = ()) -> Grid:
    """A row for every option of a group, with what was searched; what all groups share stands once, at the top."""
    searches = searches_of(groups, searched)
    shown = [group for group in groups if is_chosen(group, searches.get(group.label))]
    shown = shown or list(groups)
    options = {group.label: options_of(group) for group in shown}
    shared = shared_by(list(options.values())) if len(shown) > 1 else {}
    common = {name: value for name, value in shared.items() if not is_searched(name, searches.values())}
    rows = [[Entry(ALL), Entry(short(name)), Entry(ABSENT), Entry(value)] for name, value in common.items()]
    for label, values in options.items():
        ranges = searches[label].searched if label in searches else {}
        left = {option: value for option, value in values.items() if option not in common}
        for option in sorted(left, key=lambda option: option not in ranges):  # what was searched comes first
            chosen = Entry(left[option], option in ranges)
            rows.append([Entry(label), Entry(short(option)), Entry(ranges.get(option, ABSENT)), chosen])
    headings = [Heading(text, is_text=True) for text in ("algorithm", "option", "searched", "chosen")]
    caption = (
        "What was chosen, from the config.yaml of the runs; bold: by a search, over the values or the range beside it. "
        "Options that change nothing are left out."
    )
    return Grid(name, "Hyper-parameters", caption, headings, rows, notes_of(groups, shown, searches))


def is_chosen(group: Group, search: Search | None) -> bool:
    """Whether a group is more than a trial that was made to choose and did not win."""
    folders = {run.path.name for run in group.runs if search and run.path.parent == search.folder}
    return search is None or not folders & search.trials or search.chosen in folders


def options_of(group: Group) -> dict[str, str]:
    """The options that a paper lists, by dotted name."""
    settings = group.runs[0].settings
    options = {"model.net": settings.get("model.net")}
    options |= {name: value for name, value in settings.items() if name.startswith("model.")}
    options |= {name: value for name, value in settings.items() if is_of_the_trainer(name)}
    options |= {name: value for name, value in group.options.items() if name.startswith("data.")}
    kept = {name: value for name, value in options.items() if value is not None and counts(name, value, settings)}
    return {"rounds": lengths_of(group)} | {name: value_text(value) for name, value in kept.items()}


def is_of_the_trainer(name: str) -> bool:
    """Whether papers list an option of the trainer."""
    room, _, option = name.partition(".")
    return room == "trainer" and option.split(".")[0] in (*OF_THE_ROUND, *OF_THE_WORLD)


def counts(name: str, value: object, settings: Mapping[str, object]) -> bool:
    """Whether an option can have changed anything, and is for people."""
    option = name.rpartition(".")[2]
    if is_fingerprint(name) or name in SEEDS or option == "module":
        return False
    if name in OF_ADAM:
        return str(settings.get("model.optimizer")) in ("adam", "adamw")
    if name == "trainer.finetune_on":
        return settings.get("trainer.finetune_lr") is not None
    return not (name.count(".") == 1 and option in UNUSED and canonical(UNUSED[option]) == canonical(value))


def shared_by(options: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What all groups have with one value."""
    first, *others = options
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def is_searched(name: str, searches: Iterable[Search]) -> bool:
    """Whether any of these searches tried values of an option."""
    return any(name in search.searched for search in searches)


def short(name: str) -> str:
    """`dual_lr` of `model.dual_lr`; what is the trainer's or the data's says so in its own word."""
    return name.removeprefix("model.").removeprefix("trainer.")


def notes_of(groups: Sequence[Group], shown: Sequence[Group], searches: Mapping[str, Search]) -> list[str]:
    """How it was searched, and who is not listed."""
    notes = [f"{group.label}: {searches[group.label].told}." for group in shown if group.label in searches]
    trials = len(groups) - len(shown)
    if trials:
        notes.append(f"Left out: {trials} groups that were run to choose these values, and were not chosen.")
    return notes
