"""How a paper's words are read: its algorithms, metrics and options, and ours. One explicit map for each paper.

`E` counts epochs in FedBC and steps in Exp-α. A user's own table knows algorithm, metric (ours or a paper's word),
dataset, and our settings by their dotted names (`data.partition.exponent`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedlit.report.paper_tables import PaperTable
from fedlit.results.runs import Group

RunValue = str | float | int | None
"""What the runs have in place of a table's column; None where their settings do not say."""
Reader = Callable[[Group, Mapping[str, str]], RunValue]

_NAMES = {
    "QFedAvg": ["q-FedAvg", "qFedAvg"],
    "Scaffold": ["SCAFFOLD"],
    "PerFedAvg": ["Per-FedAvg"],
    "PFedMe": ["pFedMe", "pFedMe-GM", "pFedMe-PM"],
    "PerFedBC": ["Per-FedBC"],
    "FedBCDI": ["FedBCD-I"],
}
_DATA = {
    "CIFAR10": "cifar10",
    "MNIST": "mnist",
    "FashionMNIST": "fashion-mnist",
    "Digits": "digits",
    "OfficeCaltech10": "office-caltech10",
    "Shakespeare": "shakespeare",
}
_BY_SAMPLES = ("FedAvg", "FedProx", "FedFor")
"""Algorithms whose own weights are the sizes: naming them changes nothing."""
_CORRUPTION = {"Imbalance": "imbalance", "LabelFlip": "label_flip"}
BEST_ROUNDS = frozenset(
    {
        "fedbc_table2_cifar10_global_E5",
        "fedbc_table3_cifar10_local_E5",
        "fedbc_table6_cifar10_global_E1",
        "fedbc_table7_mnist_global_E1",
        "fedbc_table8_mnist_global_E5",
        "pfedme_table1",
    }
)
"""Tables that seem to print the best test round of each run; docs/reproduce.md says why."""
_FINETUNED = "FedBC-FineTune"
_NETS = {"Softmax": "MLR", "MLP": "DNN"}


@dataclass(frozen=True)
class Reading:
    """What the columns of a table mean."""

    columns: Mapping[str, Reader]
    metrics: Mapping[str, str]
    """A paper's word -> our metric."""
    finetuned: Mapping[str, str] = field(default_factory=dict)
    """The same in rows whose algorithm is fine-tuned."""
    implied: Mapping[str, str] = field(default_factory=dict)
    """What holds for every row that does not say otherwise."""
    named: frozenset[str] = frozenset()
    """Settings that the table gives in a column, of those that papers often leave out."""
    own_weights: bool = True
    """Whether an algorithm counts only with its own weights; Exp-α's tables have a column for them."""

    def metric_of(self, algorithm: str | None, word: str) -> str | None:
        """Our metric for a paper's word in a row of this algorithm; a name of ours stands for itself."""
        names = {**self.metrics, **(self.finetuned if algorithm == _FINETUNED else {})}
        return word if "/" in word else names.get(word)


def names_of(group: Group) -> list[str]:
    """What papers call the algorithm of these runs."""
    settings = group.runs[0].settings
    optimizer, kept = str(settings.get("trainer.server_optimizer", "SGD")), settings.get("model.keep_local", "none")
    if kept == "norm" and group.algorithm == "FedAvg" and optimizer == "SGD":
        return ["FedBN"]
    if kept != "none":
        return [f"{group.algorithm} with keep_local {kept}"]
    if optimizer != "SGD":
        return [optimizer] if group.algorithm == "FedAvg" else [f"{group.algorithm} with {optimizer}"]
    if group.algorithm == "FedBC" and settings.get("trainer.finetune_lr") is not None:
        return ["FedBC", _FINETUNED]  # the trained models are FedBC's; after one further step they are the other row's
    return [group.algorithm, *_NAMES.get(group.algorithm, [])]


def strategy(group: Group, _: Mapping[str, str] | None = None) -> str:
    """Who counts how much: Exp-α's words for weights."""
    weights = group.runs[0].settings.get("trainer.weights")
    if weights in ("exp_alpha", "ExpAlpha"):
        return "exp-alpha"
    if weights in ("samples", "Samples") or (weights is None and group.algorithm in _BY_SAMPLES):
        return "proportional"
    return "own" if weights is None else str(weights)


def has_own_weights(group: Group) -> bool:
    """Whether the algorithm weighs its clients as its paper does."""
    by_samples = strategy(group) == "proportional" and group.algorithm in _BY_SAMPLES
    return by_samples or group.runs[0].settings.get("trainer.weights") is None


def setting(name: str) -> Reader:
    """A setting of the runs."""
    return lambda group, _: group.runs[0].settings.get(name)


def dataset(group: Group, row: Mapping[str, str]) -> str:
    """The papers' name of the data: `cifar10`, `synthetic(0.5,0.5)`; a number over all digits needs all origins."""
    settings = group.runs[0].settings
    domains = settings.get("data.domains")
    if group.data == "Digits" and "domain" not in row and domains and len(domains) < 5:
        return f"digits of {', '.join(domains)} alone"
    if group.data == "Synthetic":
        return f"synthetic({settings.get('data.alpha')},{settings.get('data.beta')})"
    return _DATA.get(group.data, group.data)


def epochs(group: Group, _: Mapping[str, str]) -> RunValue:
    """FedBC's E."""
    settings = group.runs[0].settings
    steps = settings.get("model.local_steps")
    return settings.get("model.local_epochs") if steps is None else f"{steps} steps"


def steps(group: Group, _: Mapping[str, str]) -> RunValue:
    """Exp-α's E."""
    settings = group.runs[0].settings
    count = settings.get("model.local_steps")
    return f"{settings.get('model.local_epochs')} epochs" if count is None else count


def rounds(group: Group, row: Mapping[str, str]) -> RunValue:
    """Exp-α's t: the round of the number, so half of all rounds for an accuracy at half time."""
    lengths = sorted({run.rounds[-1] for run in group.runs})
    if len(lengths) > 1:
        return f"{lengths[0]} to {lengths[-1]}"
    return lengths[0] / 2 if row["metric"].endswith("_half") else lengths[0]


def heterogeneity(group: Group, _: Mapping[str, str]) -> str:
    """What Exp-α does to the clients' data."""
    corruption = group.runs[0].settings.get("data.corruption")
    return "iid" if corruption is None else _CORRUPTION.get(str(corruption), str(corruption))


def imbalance_ratio(group: Group, _: Mapping[str, str]) -> RunValue:
    """The ratio of the clients that are not balanced (Exp-α, tables 8 and 9: six of ten)."""
    ratios: Any = group.runs[0].settings.get("data.corruption.ratios") or []
    unequal = sorted({ratio for ratio in ratios if ratio != 1})
    return unequal[0] if len(unequal) == 1 else ", ".join(map(str, unequal)) or None


def temperature(group: Group, _: Mapping[str, str]) -> RunValue:
    """Exp-α's α; 0.2 is the default of the weighting."""
    return group.runs[0].settings.get("trainer.weights.alpha", 0.2) if strategy(group) == "exp-alpha" else None


def net(group: Group, _: Mapping[str, str]) -> RunValue:
    """pFedMe's MLR and DNN."""
    name = str(group.runs[0].settings.get("model.net"))
    return _NETS.get(name, name)


def first_rate(group: Group, _: Mapping[str, str]) -> RunValue:
    """pFedMe's column `lr_eta_or_alpha`: α of Per-FedAvg's users, else the local rate."""
    return group.runs[0].settings.get("model.adapt_lr" if group.algorithm == "PerFedAvg" else "model.lr")


def second_rate(group: Group, _: Mapping[str, str]) -> RunValue:
    """pFedMe's column `lr_beta`: β of Per-FedAvg."""
    return group.runs[0].settings.get("model.lr") if group.algorithm == "PerFedAvg" else None


_FEDBC = Reading(
    columns={
        "dataset": dataset,
        "E": epochs,
        "C": setting("data.partition.classes_per_client"),
        "exponent": setting("data.partition.exponent"),
    },
    # Every sample counts once, and it is the model that the algorithm gives its users: the printed numbers fit these.
    metrics={"global_accuracy": "global/acc", "local_accuracy": "personal/pooled_acc"},
    finetuned={"local_accuracy": "finetuned/pooled_acc"},
)
_PFEDME = Reading(
    columns={
        "dataset": dataset,
        "model": net,
        "lambda": setting("model.prox"),
        "lr_eta_or_alpha": first_rate,
        "lr_beta": second_rate,
    },
    metrics={"global": "global/acc", "personal": "personal/pooled_acc"},
    named=frozenset({"model.net", "model.lr"}),
)
_EXPALPHA = Reading(
    columns={
        "dataset": dataset,
        "heterogeneity": heterogeneity,
        "imbalance_ratio": imbalance_ratio,
        "E": steps,
        "t": rounds,
        "strategy": strategy,
        "alpha": temperature,
    },
    metrics={
        "acc40_rounds": "rounds_to/0.40",
        "val_accuracy_half": "halftime/acc",
        "val_accuracy_final": "val/acc",
        "val_accuracy": "val/acc",
        "test_accuracy_final": "global/acc",
        "test_accuracy": "global/acc",
    },
    own_weights=False,
)
_IMPLIED = {
    **dict.fromkeys((1, 2, 10, 11, 12), {"dataset": "cifar10"}),
    **dict.fromkeys((8, 9), {"backbone": "FedAvg", "strategy": "exp-alpha", "heterogeneity": "imbalance"}),
}
"""Of Exp-α's tables, by number. Tables 8 and 9 do not name their algorithm; FedAvg is our reading."""


def reading_of(table: PaperTable) -> Reading:
    """How to read a table, by the name of its paper; a user's own has the words of all, without their columns."""
    paper, _, rest = table.name.partition("_table")
    if not table.is_shipped:
        columns: dict[str, Reader] = {"dataset": dataset}
        columns |= {name: setting(name) for row in table.rows for name in row.fields if "." in name}
        return Reading(columns, {**_FEDBC.metrics, **_EXPALPHA.metrics}, _FEDBC.finetuned)
    if paper == "expalpha":
        return replace(_EXPALPHA, implied=_IMPLIED.get(int(rest.partition("_")[0]), {}))
    return {"fedbc": _FEDBC, "pfedme": _PFEDME}[paper]
