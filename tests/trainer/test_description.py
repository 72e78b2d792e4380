"""A run is known by everything that changes its numbers: runs from Python are told apart, grouped and resumed."""

import copy
import functools
import pickle
import re
import threading
from collections.abc import Callable
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import EarlyStopping
from torch import Tensor, nn

from fedlit import (
    IID,
    MLP,
    CharLSTM,
    DigitNet,
    FedAvg,
    FedAvgM,
    FedBC,
    FederatedDataModule,
    FederatedTrainer,
    FixedSampler,
    Parts,
    ServerCallback,
    Softmax,
    TensorData,
)
from fedlit.errors import ConfigError, ResumeError
from fedlit.results.config_file import read_config
from fedlit.results.runs import find_runs, group_runs
from fedlit.server.sampling import Sampler, UniformSampler
from fedlit.server.weights import Samples, Weighed, Weighting
from fedlit.trainer.code_fingerprint import as_in_0_1, code_of
from fedlit.trainer.net_fingerprint import behaviour_of
from fedlit.trainer.plain_values import describe, describe_net, plain
from tests.problems import CLASSES, FEATURES, tiny_data

Activation = Callable[[Tensor], Tensor]


class Functional(nn.Module):
    """A net whose activation no layer shows; a list hides it from anybody who looks at attributes."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.hidden_activation = [activation]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.hidden_activation[0](self.first(x)))
        return logits


class Secretive(Weighting):
    """Weights by samples to a power; the argument is kept under another name."""

    def __init__(self, power: float = 1.0) -> None:
        self._exponent = power

    def weigh(self, cohort: Any) -> Weighed:
        shares = cohort.sizes.double() ** self._exponent
        return Weighed(shares / shares.sum())


class Shrinks(ServerCallback):
    """Shortens the server's step; the argument is not kept under its name."""

    def __init__(self, factor: float) -> None:
        self._by = factor

    def on_pseudo_gradient(self, trainer: Any, client: Any, cohort: Any) -> None:
        for value in cohort.pseudo_gradient.values():
            value *= self._by


class Watches(ServerCallback):
    """Changes nothing."""

    decides = False


class Decays(Callback):
    """A plain callback of Lightning that changes the client."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


class Generated(FederatedDataModule):
    """A data set of the user's own that does not keep its option."""

    def __init__(self, shift: float = 0.0, **common: Any) -> None:
        super().__init__(**common)
        self._x = torch.arange(40.0).reshape(8, FEATURES) + shift

    def build(self) -> tuple[dict[str, Tensor], Parts]:
        return {"x": self._x, "y": torch.arange(8) % CLASSES}, Parts([np.arange(4), np.arange(4, 8)])


def softmax() -> Softmax:
    return Softmax(FEATURES, CLASSES)


def values(shift: float = 0.0) -> TensorData:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, FEATURES)).astype(np.float32) + np.float32(shift)
    return TensorData(x, np.arange(24) % CLASSES, np.arange(24) // 8)


def fit(folder: Path, net: nn.Module | None = None, **options: Any) -> FederatedTrainer:
    """A run of one round in this folder; `model` and `data` are options too."""
    client = options.pop("model", None) or FedAvg(net or softmax(), lr=0.1, local_epochs=1)
    data = options.pop("data", None) or values()
    defaults = {"rounds": 1, "clients_per_round": 2, "engine": "sequential", "enable_progress_bar": False}
    trainer = FederatedTrainer(run=folder, **(defaults | options))
    trainer.fit(client, datamodule=data)
    return trainer


def labels(folder: Path) -> list[tuple[str, int]]:
    return [(group.label, len(group.runs)) for group in group_runs(find_runs([folder]))]


# what is one group, and what is not

DIFFERENT: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]]]] = {
    "net": (lambda: {"net": softmax()}, lambda: {"net": MLP(FEATURES, (8,), CLASSES)}),
    "net's width": (lambda: {"net": MLP(FEATURES, (8,), CLASSES)}, lambda: {"net": MLP(FEATURES, (9,), CLASSES)}),
    "dropout": (
        lambda: {"net": MLP(FEATURES, (8,), CLASSES, dropout=0.1)},
        lambda: {"net": MLP(FEATURES, (8,), CLASSES, dropout=0.2)},
    ),
    "activation": (lambda: {"net": Functional(F.relu)}, lambda: {"net": Functional(torch.tanh)}),
    "lambda": (lambda: {"net": Functional(lambda x: x.relu())}, lambda: {"net": Functional(lambda x: 2 * x.relu())}),
    "fine-tuning": (lambda: {"finetune_lr": 0.1}, lambda: {"finetune_lr": 0.2}),
    "fine-tuning's data": (
        lambda: {"finetune_lr": 0.1},
        lambda: {"finetune_lr": 0.1, "finetune_on": "test"},
    ),
    "values": (lambda: {"data": values()}, lambda: {"data": values(1.0)}),
    "values and data seed": (
        lambda: {"data": values()},
        lambda: {"data": TensorData(torch.ones(24, FEATURES), np.arange(24) % CLASSES, np.arange(24) // 8, seed=1)},
    ),
    "own data": (lambda: {"data": Generated()}, lambda: {"data": Generated(shift=1.0)}),
    "weighting": (lambda: {"weights": Secretive(1.0)}, lambda: {"weights": Secretive(2.0)}),
    "sampler": (lambda: {"sampler": FixedSampler([0, 1])}, lambda: {"sampler": FixedSampler([0, 2])}),
    "server optimiser": (
        lambda: {"server_optimizer": FedAvgM(momentum=0.5)},
        lambda: {"server_optimizer": FedAvgM(momentum=0.9)},
    ),
    "server callback": (lambda: {"callbacks": [Shrinks(0.5)]}, lambda: {"callbacks": [Shrinks(0.6)]}),
    "a callback more": (lambda: {}, lambda: {"callbacks": [Shrinks(0.5)]}),
    "order of callbacks": (
        lambda: {"callbacks": [Shrinks(0.5), Decays(0.5)]},
        lambda: {"callbacks": [Decays(0.5), Shrinks(0.5)]},
    ),
    "Lightning's callback": (lambda: {"callbacks": [Decays(0.5)]}, lambda: {"callbacks": [Decays(0.6)]}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_runs_of_python_that_differ_are_two_groups_and_are_not_resumed_as_one_another(
    tmp_path: Path, what: str
) -> None:
    one, other = DIFFERENT[what]
    fit(tmp_path / "a", **one())
    fit(tmp_path / "b", seed=1, **other())
    found = labels(tmp_path)
    assert [count for _, count in found] == [1, 1]
    assert len({label for label, _ in found}) == 2
    with pytest.raises(ResumeError, match="holds a run with other settings"):
        fit(tmp_path / "a", resume=True, rounds=2, **other())
    fit(tmp_path / "a", resume=True, rounds=2, **one())


def test_seeds_of_a_run_of_python_are_one_group(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        fit(tmp_path / str(seed), Functional(F.relu), seed=seed, callbacks=[Shrinks(0.5)])
    assert labels(tmp_path) == [("FedAvg", 3)]


def test_the_same_objects_in_other_words_are_one_group(tmp_path: Path) -> None:
    fit(tmp_path / "a", sampler="uniform", server_optimizer="SGD", data=values())
    given = {"sampler": UniformSampler(), "data": TensorData(*arrays(), test_fraction=0.2)}
    fit(tmp_path / "b", seed=1, callbacks=[Watches()], **given)
    assert labels(tmp_path) == [("FedAvg", 2)]


def arrays() -> tuple[Tensor, Tensor, Tensor]:
    """Those of `values`, as tensors."""
    store, _ = values().build()
    return store["x"], store["y"], torch.arange(24) // 8


def test_labels_say_in_words_what_differs(tmp_path: Path) -> None:
    fit(tmp_path / "a")
    fit(tmp_path / "b", MLP(FEATURES, (8,), CLASSES))
    fit(tmp_path / "c", MLP(FEATURES, (8,), CLASSES), finetune_lr=0.5)
    fit(tmp_path / "d", MLP(FEATURES, (8,), CLASSES), callbacks=[Shrinks(0.5)])
    assert [label for label, _ in labels(tmp_path)] == [
        "FedAvg net=Softmax",
        "FedAvg net=MLP",
        "FedAvg net=MLP finetune_lr=0.5",
        "FedAvg net=MLP Shrinks",
    ]


def test_a_fingerprint_is_in_a_label_only_where_nothing_else_tells_two_apart(tmp_path: Path) -> None:
    fit(tmp_path / "a", Functional(F.relu))
    fit(tmp_path / "b", Functional(torch.tanh))
    fit(tmp_path / "c")
    relu, tanh, plain_one = (label for label, _ in labels(tmp_path))
    assert relu.startswith("FedAvg net=Functional net.behaviour=")
    assert tanh.startswith("FedAvg net=Functional net.behaviour=")
    assert plain_one == "FedAvg net=Softmax"


# what resuming says


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"net": Functional(torch.tanh)},
            r"model\.net\.behaviour was \w{8}, is \w{8} \(with the same weights.*activation",
        ),
        ({"data": values(1.0)}, r"data\.x was float32 \(24, 5\) \w{12}, is float32 \(24, 5\) \w{12}"),
    ],
    ids=["activation", "values"],
)
def test_what_differs_is_said_when_a_run_is_not_resumed(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    fit(tmp_path, **({"net": Functional(F.relu)}))
    with pytest.raises(ResumeError, match=said):
        fit(tmp_path, resume=True, **({"net": Functional(F.relu)} | changed))


class Counts(nn.Module):
    """A net that counts its passes on its class, in an attribute that a run is known by and in one that it is not."""

    calls = 0
    listed = [0]

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.step = [int(counts)]

    def forward(self, x: Tensor) -> Tensor:
        Counts.calls += self.step[0]
        Counts.listed[0] += 1
        output: Tensor = self.linear(x)
        return output


def test_a_class_attribute_that_moved_is_named_when_a_run_is_not_resumed(tmp_path: Path) -> None:
    fit(tmp_path / "run", Counts(counts=True))
    recorded = read_config(tmp_path / "run" / "config.yaml")["model"]["init_args"]["net"]["class_attributes"]
    with pytest.raises(ResumeError) as refused:
        fit(tmp_path / "run", Counts(counts=True), resume=True)
    words = rf"Counts.calls was {recorded['Counts.calls']}, is \d+. .* into a list or dict"
    assert re.search(words, str(refused.value))


def test_a_counter_in_a_list_of_the_class_does_not_keep_a_run_from_being_resumed(tmp_path: Path) -> None:
    fit(tmp_path / "run", Counts(counts=False))
    fit(tmp_path / "run", Counts(counts=False), resume=True)


def test_a_config_without_class_attributes_is_of_the_same_run(tmp_path: Path) -> None:
    """As an earlier version wrote it."""
    fit(tmp_path / "run", Counts(counts=False))
    path = tmp_path / "run" / "config.yaml"
    config = read_config(path)
    del config["model"]["init_args"]["net"]["class_attributes"]
    path.write_text(yaml.safe_dump(config))
    fit(tmp_path / "run", Counts(counts=False), resume=True)


class NamesFedlit(nn.Module):
    """A user's net whose code names a class of fedlit."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Softmax(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x) if issubclass(FedBC, nn.Module) else x
        return output


def test_a_run_of_fedlit_0_1_is_resumed_though_classes_have_moved_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knew the classes that users' code names by their modules."""
    monkeypatch.setattr(
        "fedlit.trainer.description.as_in_0_1", nullcontext
    )  # the description as of now is not that of then
    with as_in_0_1():
        fit(tmp_path / "run", NamesFedlit())
    with pytest.raises(ResumeError, match="the code of the class is another"):
        fit(tmp_path / "run", NamesFedlit(), resume=True)
    monkeypatch.undo()
    fit(tmp_path / "run", NamesFedlit(), resume=True)


def test_objects_that_have_trained_are_the_same_objects(tmp_path: Path) -> None:
    client, data = FedBC(Functional(F.relu), lr=0.1, keep_optimizer=True), tiny_data()
    for rounds in (1, 2):
        fit(tmp_path, model=client, data=data, resume=True, precision="64-true", rounds=rounds)


def test_what_only_ends_or_watches_a_run_may_change_at_resume(tmp_path: Path) -> None:
    fit(tmp_path, callbacks=[EarlyStopping("global/acc", patience=3), Watches()])
    fit(tmp_path, rounds=2, resume=True)


def test_an_option_that_was_changed_after_building_counts_as_it_is_now(tmp_path: Path) -> None:
    client = FedAvg(softmax(), lr=0.1)
    client.lr = 0.2
    fit(tmp_path, model=client)
    with pytest.raises(ResumeError, match=r"model\.lr was 0\.2, is 0\.1"):
        fit(tmp_path, model=FedAvg(softmax(), lr=0.1), resume=True)


def test_the_config_of_a_run_of_python_is_plain_and_complete(tmp_path: Path) -> None:
    fit(tmp_path, sampler=FixedSampler([0, 1]), weights=Secretive(2.0))
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["trainer"]["init_args"]["sampler"] == {
        "class_path": "fedlit.FixedSampler",
        "init_args": {"clients": [0, 1]},
    }
    assert config["trainer"]["init_args"]["weights"]["init_args"] == {"power": 2.0}
    net = config["model"]["init_args"]["net"]
    assert (net["class_path"], net["parameters"], net["dtype"]) == ("fedlit.Softmax", 18, "float32")
    assert config["data"]["init_args"]["test_fraction"] == 0.2


# arguments


def test_a_part_without_a_constructor_takes_no_arguments() -> None:
    with pytest.raises(TypeError, match="Samples.. takes no arguments"):
        Samples(3)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))])
def test_a_copy_is_described_like_its_original(duplicate: Callable[[Any], Any]) -> None:
    part = Secretive(3.0)
    assert describe(duplicate(part), "w") == describe(part, "w")


def test_every_argument_of_a_chain_of_constructors_is_described() -> None:
    described = describe(FedBC(softmax(), dual_lr=0.5, lr=0.2), "model")["init_args"]
    assert (described["dual_lr"], described["lr"], described["batch_size"]) == (0.5, 0.2, 20)
    assert describe(IID(num_clients=3), "p")["init_args"]["num_clients"] == 3


# values


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (Path("a/b"), "a/b"),
        (Colour.RED, "Colour.RED"),
        ((1, 2), [1, 2]),
        ({"b", "a"}, ["a", "b"]),
        (torch.relu, "torch._VariableFunctionsClass.relu"),
        (F.gelu, "torch._C._nn.gelu"),
        (torch.float64, "torch.float64"),
        (FedAvg, "fedlit.FedAvg"),
    ],
)
def test_values_are_described_as_plain_data(value: Any, described: Any) -> None:
    assert plain(value, "x") == described
    assert yaml.safe_load(yaml.safe_dump(plain(value, "x"))) == described


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(50), np.ones(50)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (np.zeros(3, np.float32), np.zeros(3)),
        (list(range(100)), list(range(1, 101))),
        (lambda x: x + 1, lambda x: x + 2),
        (functools.partial(F.leaky_relu, negative_slope=0.1), functools.partial(F.leaky_relu, negative_slope=0.2)),
        (np.random.default_rng(0), np.random.default_rng(1)),
        (np.array(["a", "b"], dtype=object), np.array(["a", "c"], dtype=object)),
    ],
    ids=["array", "shape", "type", "list", "lambda", "partial", "generator", "objects"],
)
def test_different_values_have_different_descriptions_of_a_line(one: Any, other: Any) -> None:
    assert plain(one, "x") != plain(other, "x")
    assert len(yaml.safe_dump(plain(one, "x"))) < 200


def test_what_cannot_be_described_is_refused_by_name(tmp_path: Path) -> None:
    class Waits(ServerCallback):
        def __init__(self, lock: Any) -> None:
            self.lock = lock

    with pytest.raises(ConfigError, match=r"trainer\.callbacks\.Waits\.lock is a lock.*without a run folder"):
        fit(tmp_path / "run", callbacks=[Waits(threading.Lock())])
    assert not (tmp_path / "run").exists()


# code


def rule(source: str) -> type:
    """A class as a notebook would define it."""
    scope: dict[str, Any] = {"__name__": "notebook", "Sampler": Sampler}
    exec(source, scope)
    made = scope["Rule"]
    assert isinstance(made, type)
    return made


CODE = """
MU = 1
def add(x):
    return x + 1
class Rule(Sampler):
    def choose(self, x):
        return add(x) * MU
"""


@pytest.mark.parametrize(("old", "new"), [("* MU", "- MU"), ("x + 1", "x + 2"), ("MU = 1", "MU = 2")])
def test_a_users_class_with_other_code_is_another_class(old: str, new: str) -> None:
    assert code_of(rule(CODE)) != code_of(rule(CODE.replace(old, new)))


def test_comments_layout_and_docstrings_do_not_count() -> None:
    words = CODE.replace("(self, x):\n", "(self, x):\n        'Choose.'\n\n        # by hand\n")
    assert code_of(rule(CODE)) == code_of(rule(words))


# what a net computes


class Normed(nn.Module):
    """BatchNorm, and an activation as an argument."""

    def __init__(self, activation: Activation = F.relu) -> None:
        super().__init__()
        self.norm, self.last, self.activation = nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES), activation

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.activation(self.norm(x)))
        return logits


class Insists(nn.Module):
    """Takes single precision alone."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.last, self.activation = nn.Linear(FEATURES, CLASSES), activation

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.activation(x.float()))
        return logits


@pytest.mark.parametrize("make", [Functional, Normed, Insists])
def test_another_activation_is_another_behaviour_whatever_the_weights(make: Callable[[Activation], nn.Module]) -> None:
    x = torch.zeros(FEATURES)
    torch.manual_seed(0)
    relu, again, gelu = make(F.relu), make(F.relu), make(F.gelu)
    assert behaviour_of(relu, x) == behaviour_of(again, x) != behaviour_of(gelu, x)


def test_the_probe_leaves_the_net_and_the_draws_as_they_are() -> None:
    net = Normed().train()
    net.last.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    behaviour_of(net, torch.zeros(FEATURES))
    assert (net.training, net.norm.training, net.last.training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_training_does_not_change_what_a_net_is() -> None:
    net = Normed()
    before = describe_net(net, "net"), behaviour_of(net, torch.zeros(FEATURES))
    net(torch.randn(20, FEATURES)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    net.double()
    assert (describe_net(net, "net"), behaviour_of(net, torch.zeros(FEATURES))) == before


def test_frozen_weights_and_constant_buffers_are_part_of_a_net() -> None:
    torch.manual_seed(0)
    one, other = softmax(), softmax()
    assert describe_net(one, "net") == describe_net(other, "net")
    for net in (one, other):
        net.linear.weight.requires_grad_(False)
    assert describe_net(one, "net") != describe_net(other, "net")


@pytest.mark.parametrize(
    ("net", "sample"),
    [
        (CharLSTM(hidden=8), torch.zeros(12, dtype=torch.int64)),
        (DigitNet(channels=1), torch.zeros(1, 28, 28)),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.zeros(2, 2, dtype=torch.float16)),
    ],
    ids=["text", "pictures", "half"],
)
def test_every_kind_of_net_has_a_behaviour(net: nn.Module, sample: Tensor) -> None:
    assert behaviour_of(net, sample) == behaviour_of(copy.deepcopy(net), sample)


def test_a_net_that_looks_floating_point_numbers_up_in_a_table_can_be_asked() -> None:
    class Looking(nn.Module):
        def __init__(self, turned: bool) -> None:
            super().__init__()
            self.table, self.turned = nn.Embedding(4, 3), turned

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.table(x.long()).sum(1)
            return found.sin() if self.turned else found

    sample = torch.tensor([0.0, 3.0, 1.0])
    assert behaviour_of(Looking(False), sample) == behaviour_of(Looking(False), sample)
    assert behaviour_of(Looking(False), sample) != behaviour_of(Looking(True), sample)


def test_an_optimiser_that_was_built_before_is_the_same_code() -> None:
    """torch wraps the method `step` of a class when the first object of it is built."""

    class OwnOptimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()

    before = code_of(OwnOptimizer)
    OwnOptimizer([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert code_of(OwnOptimizer) == before


def test_weights_that_a_net_brings_tell_two_runs_apart(tmp_path: Path) -> None:
    for name, factor in (("one", 1.0), ("other", 2.0)):
        net = Softmax(FEATURES, CLASSES)
        torch.nn.init.constant_(net.linear.weight, factor)
        trainer = FederatedTrainer(
            rounds=1, clients_per_round=2, initial_weights="net", run=tmp_path / name, enable_progress_bar=False
        )
        trainer.fit(FedAvg(net), datamodule=tiny_data())
    assert len(group_runs(find_runs([tmp_path]))) == 2
