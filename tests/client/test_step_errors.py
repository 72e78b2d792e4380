"""Mistakes in a user's algorithm are told before the first round, in both engines, with what to write instead."""

import importlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlit import Client, Ditto, FedAvg, FederatedTrainer, PerFedAvg, PerFedBC, PFedMe, ResNet20, Sampler
from fedlit.client.cohort import Selection
from fedlit.engines.step_check import check_steps
from fedlit.errors import ConfigError, FedlitError
from tests.conftest import Call
from tests.problems import CLASSES, FEATURES, largest_difference, run, tiny_data, tiny_net, weights_of

MINE = """
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fedlit import ZEROS, Client, Phase
from fedlit.client.cohort import Selection


class NamedLikeAnAttribute(Client):
    def __init__(self, net, **local):
        super().__init__(net, **local)
        self.mood = 0.5

    def state_spec(self):
        return {"mood": 0.5}


class Unpacks(Client):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y)


class UnpacksInAnotherPhase(Client):
    def phases(self):
        return [Phase(), Phase("again", start="trained", step_method="again_step")]

    def again_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y)


class TakesTwoForOne(Client):
    batches_per_step = 2

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch.x), batch.y)


class Branches(Client):
    def training_step(self, batch, batch_idx):
        loss = self.task_loss(batch)
        if loss > 0.5:
            loss = 2 * loss
        return loss


class AsksForAnItem(Client):
    def training_step(self, batch, batch_idx):
        loss = self.task_loss(batch)
        return loss / (1 + loss.item())


class Masks(Client):
    def training_step(self, batch, batch_idx):
        losses = self.sample_losses(batch) * batch.row_weights
        return losses[losses > 0].sum()


class Lists(Client):
    def training_step(self, batch, batch_idx):
        return self.task_loss(batch) * len(batch.row_weights.tolist())


class ReturnsAVector(Client):
    def training_step(self, batch, batch_idx):
        return self.sample_losses(batch)


class LogsAVector(Client):
    def training_step(self, batch, batch_idx):
        return {"loss": self.task_loss(batch), "task": self.sample_losses(batch)}


class ReturnsAFloat(Client):
    def training_step(self, batch, batch_idx):
        return 0.5


class ReturnsNothing(Client):
    def training_step(self, batch, batch_idx):
        self.task_loss(batch)


class ReturnsNoLoss(Client):
    def training_step(self, batch, batch_idx):
        return {"task": self.task_loss(batch)}


class ReturnsWhatItDoesNotCarry(Client):
    def state_spec(self):
        return {"mood": 0.5}

    def training_step(self, batch, batch_idx):
        return {"loss": self.task_loss(batch), "mood": self.mood + 1}


class CarriesAnotherShape(Client):
    def state_spec(self):
        return {"mood": 0.5}

    def carried_states(self):
        return ("mood",)

    def training_step(self, batch, batch_idx):
        return {"loss": self.task_loss(batch), "mood": self.mood + batch.row_weights}


class TakesAModelForADict(Client):
    def state_spec(self):
        return {"drift": ZEROS}

    def training_step(self, batch, batch_idx):
        return self.task_loss(batch) + sum((self.drift[name] * x).sum() for name, x in self.local_params.items())


class TakesANumberForAModel(Client):
    def state_spec(self):
        return {"mood": 0.5}

    def training_step(self, batch, batch_idx):
        return self.task_loss(batch) + self.along(self.kept("mood"))


class HasNoGradient(Client):
    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            return self.task_loss(batch)


class NobodyReports(Client):
    def select(self, selection, population, generator):
        return Selection(selection.train, [])


class AStrangerReports(Client):
    def select(self, selection, population, generator):
        return Selection([0, 1], [0, 2])


@dataclass(frozen=True)
class Plain:
    def init(self, params):
        return {name: torch.zeros_like(value) for name, value in params.items()}

    def point(self, params, state):
        return params

    def step(self, params, grads, state, lr):
        return {name: value - lr * grads[name] for name, value in params.items()}, state


class Flat(Plain):
    def step(self, params, grads, state, lr):
        return {name: (value - lr * grads[name]).flatten() for name, value in params.items()}, state


class Growing(Plain):
    def step(self, params, grads, state, lr):
        return params, {name: torch.stack([value, value]) for name, value in state.items()}


class Forgetful(Plain):
    def step(self, params, grads, state, lr):
        return params, {}


class Elsewhere(Plain):
    def point(self, params, state):
        return {name: value[None] for name, value in params.items()}


class Alone(Plain):
    def step(self, params, grads, state, lr):
        return params


@dataclass
class Unhashed:
    init, point, step = Plain.init, Plain.point, Plain.step


class Pointless:
    init, step = Plain.init, Plain.step


class FlattensParameters(Client):
    optimizer_class = Flat

    def local_optimizer(self):
        return self.optimizer_class()


class GrowsItsState(FlattensParameters):
    optimizer_class = Growing


class ForgetsItsState(FlattensParameters):
    optimizer_class = Forgetful


class LooksElsewhere(FlattensParameters):
    optimizer_class = Elsewhere


class ReturnsOne(FlattensParameters):
    optimizer_class = Alone


class IsNotHashed(FlattensParameters):
    optimizer_class = Unhashed


class LacksAPoint(FlattensParameters):
    optimizer_class = Pointless


class InItsPhase(Client):
    def phases(self):
        return [Phase(), Phase("again", start="trained", optimizer=Flat())]
"""
SAID = {
    "NamedLikeAnAttribute": r"NamedLikeAnAttribute\.state_spec\(\) declares a state named 'mood', but .* 'own_mood'",
    "Unpacks": r"Unpacks\.training_step \(mine\.py, line \d+\) takes a batch apart .*`x, y, row_weights = batch`",
    "UnpacksInAnotherPhase": r"UnpacksInAnotherPhase\.again_step \(mine\.py, line \d+\) takes a batch apart",
    "TakesTwoForOne": r"TakesTwoForOne\.training_step .*batches_per_step is 2.* Write `first, \*others = batch`",
    "ReturnsAVector": r"ReturnsAVector\.training_step returned a loss of shape \(\d+,\).*batch\.row_weights\)\.sum\(\)",
    "LogsAVector": r"LogsAVector\.training_step returned a task of shape \(\d+,\)",
    "ReturnsAFloat": r"ReturnsAFloat\.training_step returned a float as its loss.* End with `return loss`",
    "ReturnsNothing": r"ReturnsNothing\.training_step returned nothing as its loss",
    "ReturnsNoLoss": r"ReturnsNoLoss\.training_step returned a dict without 'loss' \(it has task\)",
    "ReturnsWhatItDoesNotCarry": r"\.training_step returned 'mood', which is .* named in carried_states\(\)",
    "CarriesAnotherShape": r"\.training_step returned 'mood' of shape \(\d+,\), but this state has \(\), one number",
    "TakesAModelForADict": r"TakesAModelForADict\.training_step \(mine\.py, line \d+\) reads a whole model.*self\.sent",
    "TakesANumberForAModel": r"'mood' of TakesANumberForAModel is one number, not a whole model\. Write self\.mood\.",
    "HasNoGradient": r"HasNoGradient\.training_step returned a loss that does not depend on the net's parameters",
    "NobodyReports": r"NobodyReports\.select lets no client report.* Return at least one client",
    "AStrangerReports": r"AStrangerReports\.select lets client 2 report, which does not train",
    "FlattensParameters": r"Flat\.step gave 'linear\.weight' the shape \(\d+,\), but in the parameters it is",
    "GrowsItsState": r"Growing\.step gave 'linear\.weight' the shape .*, but in the state that init gave it is",
    "ForgetsItsState": r"Forgetful\.step must keep the names of the state that init gave, but it left out 'linear",
    "LooksElsewhere": r"Elsewhere\.point gave 'linear\.weight' the shape \(1, .*keep every shape",
    "ReturnsOne": r"Alone\.step must return two dicts, `return parameters, state`; it returned a dict",
    "IsNotHashed": r"optimiser Unhashed cannot be hashed.* @dataclass\(frozen=True\)",
    "LacksAPoint": r"optimiser Pointless has no method 'point'",
    "InItsPhase": r"Flat\.step gave 'linear\.weight' the shape",
}
READS_VALUES = ["Branches", "AsksForAnItem", "Masks", "Lists"]
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized", "compiled": False, "lanes": 2},
}
COMMAND = (
    "fit --config synthetic_fedavg.yaml --data.num_clients 4 --data.size_sigma 0 --data.size_mean 1 --data.size_min 12 "
    "--trainer.clients_per_round 2 --trainer.rounds 1 --trainer.enable_progress_bar false --run run --model mine."
)


@pytest.fixture
def mine(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The user's file, as a module."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (workplace / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(workplace))
    sys.modules.pop("mine", None)
    yield importlib.import_module("mine")
    sys.modules.pop("mine", None)  # other tests have a file of this name too


def build(mine: ModuleType, name: str) -> Client:
    client: Client = getattr(mine, name)(tiny_net(), lr=0.05, batch_size=4, local_epochs=1)
    return client


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SAID)
def test_mistake_is_told_before_the_first_round(mine: ModuleType, name: str, engine: str) -> None:
    with pytest.raises(ConfigError, match=SAID[name]) as failed:
        run(build(mine, name), run="run", **ENGINES[engine])
    assert "in round" not in str(failed.value)
    assert not Path("run").exists(), "nothing was begun"


@pytest.mark.parametrize("name", SAID)
def test_mistake_is_one_paragraph_of_fedlit_fit(mine: ModuleType, refusal: Callable[..., str], name: str) -> None:
    said = refusal(f"{COMMAND}{name}")
    with pytest.raises(FedlitError, match=SAID[name]):
        raise FedlitError(said)


@pytest.mark.parametrize(
    "form", [{"compiled": False, "lanes": 2}, {"compiled": True, "lanes": 1}], ids=["eager", "one"]
)
@pytest.mark.parametrize("name", READS_VALUES)
def test_step_that_reads_values_is_refused_by_the_vectorized_engine(
    mine: ModuleType, name: str, form: dict[str, Any]
) -> None:
    said = rf"{name}\.training_step \(mine\.py, line \d+\) asks for the value of a tensor.* Write torch\.where"
    with pytest.raises(ConfigError, match=said) as failed:
        run(build(mine, name), engine="vectorized", **form)
    assert "in round" not in str(failed.value)


def test_command_line_says_it_in_one_paragraph_too(mine: ModuleType, call: Call) -> None:
    answer = call(f"{COMMAND}Branches --trainer.engine vectorized --trainer.compiled false")
    assert (answer.code, "Traceback" in answer.err) == (2, False)
    assert "Branches.training_step (mine.py, line" in answer.err.splitlines()[-1]


@pytest.mark.parametrize("name", READS_VALUES)
def test_auto_trains_a_step_that_reads_values_one_by_one_and_says_why(mine: ModuleType, name: str) -> None:
    trainer = run(build(mine, name), engine="auto", compiled=True)
    assert trainer.summary["engine"] == "sequential"
    assert f"{name}.training_step (mine.py, line" in trainer.summary["why"]
    assert "torch.where" in trainer.summary["why"]
    asked = run(build(mine, name), engine="sequential")
    assert largest_difference(weights_of(trainer), weights_of(asked)) == 0


def test_script_ends_with_the_paragraph(mine: ModuleType, workplace: Path) -> None:
    (workplace / "script.py").write_text(
        "from fedlit import FederatedTrainer, Softmax, Synthetic\n"
        "from mine import Unpacks\n"
        "data = Synthetic(num_clients=4, size_sigma=0)\n"
        "FederatedTrainer(rounds=1, clients_per_round=2).fit(Unpacks(Softmax(60, 10)), datamodule=data)\n"
    )
    with pytest.raises(ConfigError) as failed:
        runpy.run_path("script.py")
    printed = "".join(traceback.format_exception(failed.value))
    assert "ConfigError: Unpacks.training_step (mine.py, line" in printed.splitlines()[-1]


# ---- what is not a mistake -------------------------------------------------------------------------------------------


class Torn(FedAvg):
    """A ValueError of its own, which has nothing to do with a batch."""

    def training_step(self, batch, batch_idx):
        return self.apart([1, 2, 3])

    @staticmethod
    def apart(three):
        one, two = three
        return one


class Prox(FedAvg):
    def __init__(self, net: torch.nn.Module, *, strength: float = 1.0, **local: Any) -> None:
        super().__init__(net, **local)


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (FedAvg, "learning_rate", r"^FedAvg has no argument 'learning_rate'\. It takes net, lr, optimizer, "),
        (FedAvg, "batchsize", r"^FedAvg has no argument 'batchsize'\. Did you mean 'batch_size'\? It takes net, "),
        (
            Prox,
            "strenght",
            r"^Prox has no argument 'strenght'\. Did you mean 'strength'\? It takes net, strength, lr, ",
        ),
    ],
)
def test_unknown_argument_of_an_algorithm_is_named_with_the_nearest(kind: type[Client], name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kind(tiny_net(), **{name: 0.1})


def test_unknown_argument_of_the_trainer_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no argument 'round'\. Did you mean 'rounds'\? help\(FederatedTrainer\)"):
        FederatedTrainer(round=5)


def test_other_errors_keep_their_type_and_say_when_they_came() -> None:
    with pytest.raises(ValueError, match="too many values to unpack") as failed:
        run(Torn(tiny_net(), lr=0.05, batch_size=4))
    [note] = failed.value.__notes__
    assert note == "This happened while Torn.training_step was tried on 4 rows before the first round."


def test_trying_steps_moves_nothing() -> None:
    client = FedAvg(tiny_net().eval(), lr=0.05, batch_size=4, momentum=0.5)
    client.prepare()
    before = {name: value.clone() for name, value in client.state_dict().items()}
    x, draws = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(4, 5), torch.get_rng_state()
    check_steps(client, x, torch.tensor([0, 1, 2, 0]))
    assert torch.equal(torch.get_rng_state(), draws)
    assert all(torch.equal(value, before[name]) for name, value in client.state_dict().items())
    assert all(value.grad is None for value in client.parameters())
    assert not client.net.training


class Chooses(Sampler):
    def __init__(self, chosen: list[int]) -> None:
        self.chosen = chosen

    def choose(self, rng, sizes, count):
        return self.chosen


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ([], r"trainer\.sampler \(Chooses\) lets no client report"),
        ([1, 9], r"trainer\.sampler \(Chooses\) chose client 9, but there are 4 clients"),
        ([1, 1], r"trainer\.sampler \(Chooses\) chose a client twice"),
    ],
    ids=["nobody", "a stranger", "twice"],
)
def test_sampler_that_chooses_wrongly_is_refused(chosen: list[int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(FedAvg(tiny_net()), sampler=Chooses(chosen))


class LaterNobody(FedAvg):
    """Nobody reports in a later round, which only that round can tell."""

    calls = 0

    def select(self, selection: Selection, population: int, generator: Any) -> Selection:
        self.calls += 1
        return selection if self.calls < 6 else Selection(selection.train, [])


def test_nobody_who_reports_in_a_later_round_is_told_too() -> None:
    with pytest.raises(ConfigError, match=r"LaterNobody\.select lets no client report"):
        run(LaterNobody(tiny_net(), lr=0.05, batch_size=4))


class WithBatchNorm(nn.Module):
    """What a user writes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8))
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.first(x).relu())
        return output


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("make", [PerFedAvg, PerFedBC, PFedMe, partial(Ditto, order="interleaved")])
def test_batchnorm_is_named_where_a_step_passes_its_net_at_several_models(
    make: Callable[..., Client], engine: str
) -> None:
    words = "'first.1' of model.net .WithBatchNorm., a BatchNorm1d, .* GroupNorm .*norm: group.*personal_first"
    with pytest.raises(ConfigError, match=words):
        run(make(WithBatchNorm().double()), engine=engine)


@pytest.mark.parametrize(
    ("norm", "outcome"), [("batch", pytest.raises(ConfigError, match="'norm'")), ("group", nullcontext())]
)
def test_resnet20_with_batchnorm_is_named_too_and_its_option_is_the_way_out(norm: Any, outcome: Any) -> None:
    client = PerFedAvg(ResNet20(num_classes=CLASSES, norm=norm).double(), local_steps=1)
    data = tiny_data(shape=(3, 8, 8))
    with outcome:
        run(client, data, rounds=1)


def test_ditto_in_its_usual_order_trains_a_net_with_batchnorm() -> None:
    run(Ditto(WithBatchNorm().double(), local_steps=1), rounds=1)
