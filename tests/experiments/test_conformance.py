"""The suite that every algorithm must pass: on algorithms that pass, and on ones that are wrong on purpose.

It owns four laws: clients outside of a cohort are untouched, the order of clients changes nothing, a run is resumed to
the same bits, engines agree. Options and servers that the suite's own list lacks are cases of `tests/cases.py`.
"""

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit import MLP, Batch, Client, FedAvg, FedBC, FedProx, LeNet, ServerCallback, Softmax
from fedlit.cli.conformance import add_arguments, asked_for, table_lines
from fedlit.client.states import StateSpec
from fedlit.errors import ConfigError
from fedlit.experiments.conformance import Measured, checks
from fedlit.experiments.conformance.entries import ENTRIES, WITH_NORM
from fedlit.experiments.conformance.problem import LOCAL, Problem, ReversedSampler, largest_gap, trained
from tests.cases import CASES, KINDS, slow_but
from tests.conftest import Call
from tests.problems import traced_program

QUICK = [
    checks.resumes_exactly,
    checks.order_does_not_matter,
    checks.differs_from_averaging,
]
"""Those that compile nothing; a run that is resumed to the same bits proves that the same seed gives the same bits."""


FEW_STEPS = Problem(local=LOCAL | {"batch_size": 8})
"""Two to six steps a client, the last one ragged."""
QUICK_VARIANTS = (
    *("FedAvg, momentum kept", "FedDyn, measured over all", "FedBCD-I, over all", "SCAFFOLD + FedAdam"),
    *("SCAFFOLD, cloud", "SCAFFOLD, buffer"),
)


@pytest.fixture
def one_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of these checks compare with the same run, which is made once, by the one that watches it."""
    trained = checks.trained
    references: list[Any] = []

    def once(client: Client, problem: Problem, **options: Any) -> Any:
        if references and not options.keys() & {"rounds", "callbacks", "data"} and not is_reversed(options):
            return references[0]
        references.append(trained(client, problem, **options))
        return references[-1]

    monkeypatch.setattr(checks, "trained", once)
    monkeypatch.setattr(checks, "averaging", plain_averaging)


def is_reversed(options: dict[str, Any]) -> bool:
    return isinstance(options.get("sampler"), ReversedSampler)


@cache
def averaged() -> Any:
    """Nobody changes it."""
    return trained(FedAvg(FEW_STEPS.net(), **FEW_STEPS.local), FEW_STEPS)


def plain_averaging(problem: Problem) -> Any:
    assert problem is FEW_STEPS
    return averaged()


@pytest.mark.usefixtures("few_inner_steps", "one_reference")
@pytest.mark.parametrize("name", slow_but([*ENTRIES, *QUICK_VARIANTS], CASES))
def test_every_algorithm_passes_what_compiles_nothing(name: str) -> None:
    entry = CASES[name]
    found = checks.cohort_is_respected(entry.make, dict(entry.trainer), FEW_STEPS)
    found += [one(entry.make, dict(entry.trainer), FEW_STEPS) for one in QUICK]
    assert [one for one in found if not one.passed] == []


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", slow_but([*KINDS, "SCAFFOLD, cloud", "SCAFFOLD, buffer"], CASES))
def test_neither_newcomers_nor_clients_elsewhere_move_a_bit(name: str) -> None:
    entry = CASES[name]
    found = checks.nodes_agree(entry.make, dict(entry.trainer), FEW_STEPS)
    found.append(checks.newcomers_change_nothing(entry.make, dict(entry.trainer), FEW_STEPS))
    assert [one for one in found if not one.passed] == []


SEVERAL = (
    *("FedAvg", "FedBC, from its own model", "FedDyn", "Ditto, interleaved", "Per-FedAvg, exact", "local only"),
    "FedProx + FedAdam + Exp-α",
)
"""Kinds that tests/engines/test_processes.py lacks."""


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", slow_but(SEVERAL, CASES))
def test_two_processes_give_the_bits_of_one(name: str) -> None:
    entry = CASES[name]
    assert checks.processes_agree(entry.make, dict(entry.trainer), FEW_STEPS).passed


def test_there_are_outsiders_with_rows() -> None:
    """Else nothing is said of them."""
    untouched, _ = checks.cohort_is_respected(ENTRIES["SCAFFOLD I"].make, {}, FEW_STEPS)
    assert untouched.note == "3 times outside", "one of the four in each round, and nobody has rows before the first"


EAGER = (
    *("q-FedAvg", "Exp-α", "SCAFFOLD II", "FedDyn", "FedFor, hinge", "Ditto", "Per-FedAvg, exact", "Per-FedAvg, HF"),
    *("Per-FedAvg, FO", "pFedMe", "pFedMe, all train", "pFedMe, Nesterov, ν", "Per-FedBC, two steps", "FedBCD"),
    *("FedPer (bias)", "FedBC, l2", "FedBCD, l2"),
)
"""Every kind of local step. What else differs is the server's, which is the same code for all engines."""
TRACED = ("SCAFFOLD II", "Ditto", "Per-FedAvg, exact", "FedBCD")
COMPILED = (*TRACED, "FedDyn", "pFedMe", "Per-FedBC", "FedFor, hinge")


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", slow_but(EAGER, CASES))
def test_engines_agree_without_a_compiler(name: str) -> None:
    entry = CASES[name]
    found = checks.engines_agree(entry.make, dict(entry.trainer), FEW_STEPS, compiled=False)
    assert found.passed, found


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", slow_but(TRACED, CASES))
def test_engines_agree_on_the_program_that_is_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlit.engines.vectorized.compile_program", traced_program)
    entry = CASES[name]
    found = checks.engines_agree(entry.make, dict(entry.trainer), FEW_STEPS)
    assert found.passed, found


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_engines_agree_where_the_program_is_compiled(name: str) -> None:
    entry = CASES[name]
    found = checks.engines_agree(entry.make, dict(entry.trainer), FEW_STEPS)
    assert (found.passed, found.note) == (True, "compiled"), found


class Forgetful(FedProx):
    """Draws from a stream that no checkpoint knows."""

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        step = super().training_step(batch, batch_idx)
        return {**step, "loss": step["loss"] * (1 + np.random.rand())}  # noqa: NPY002  # the mistake itself


class Meddling(FedBC):
    """Moves the duals of clients that do not take part."""

    def server_callbacks(self) -> list[Any]:
        return [*super().server_callbacks(), Meddler()]


class Meddler(ServerCallback):
    """Adds one to every row."""

    def on_server_step_end(self, trainer: Any, client: Client, cohort: Any) -> None:
        trainer.loop.states.column("dual").add_(1.0)


class Lost(FedProx):
    """Its anchor is the model that is being trained."""

    def distance_to_global(self) -> Tensor:
        return sum((x - x.detach()).square().sum() for x in self.local_params.values())  # type: ignore[return-value]


class Unsaved(Client):
    """A server state that is not in the callback's state_dict."""

    def state_spec(self) -> StateSpec:
        return {}

    def server_callbacks(self) -> list[Any]:
        return [Growing()]


class Growing(ServerCallback):
    """Steps further from round to round."""

    def __init__(self) -> None:
        self.rounds = 0

    def on_pseudo_gradient(self, trainer: Any, client: Client, cohort: Any) -> None:
        self.rounds += 1
        for value in cohort.pseudo_gradient.values():
            value.mul_(1 + 0.1 * self.rounds)


def caught(measured: Measured) -> bool:
    return not measured.passed


def test_a_term_that_is_lost_is_caught() -> None:
    assert caught(checks.differs_from_averaging(Lost, {}))


def test_rows_of_clients_outside_the_cohort_that_move_are_caught() -> None:
    assert caught(checks.cohort_is_respected(Meddling, {})[0])


class Fickle(FedBC):
    """Moves them between the rounds, when nobody trains."""

    def server_callbacks(self) -> list[Any]:
        return [*super().server_callbacks(), MeddlesLater()]


class MeddlesLater(ServerCallback):
    """Once the round is measured."""

    def on_round_metrics(self, trainer: Any, client: Client, cohort: Any, metrics: Any) -> None:
        if cohort is not None:
            trainer.loop.states.column("dual").add_(1.0)


def test_rows_that_move_between_rounds_are_caught() -> None:
    assert caught(checks.cohort_is_respected(Fickle, {})[0])


@pytest.mark.parametrize(
    ("one", "other", "gap"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([np.inf, 2.0], [np.inf, 2.5], 0.5),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([1.0, np.inf], [1.0, -np.inf], np.inf),
        ([], [], 0.0),
    ],
)
def test_a_number_that_is_missing_is_an_infinite_gap(one: list[float], other: list[float], gap: float) -> None:
    same = {"b": torch.ones(2)}
    assert largest_gap({"a": torch.tensor(one)} | same, {"a": torch.tensor(other)} | same) == gap


def test_server_state_that_is_not_saved_is_caught() -> None:
    assert caught(checks.resumes_exactly(Unsaved, {}))


def test_draws_from_a_shared_stream_are_caught() -> None:
    assert caught(checks.resumes_exactly(Forgetful, {}))


def test_the_command_checks_one_algorithm_and_writes_what_it_measured(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlit.engines.vectorized.compile_program", traced_program)  # tests/engines compile it
    answer = call("conformance --algorithm FedProx --json found.json --out found.md")
    assert (answer.code, "1 algorithm: all checks passed" in answer.out) == (0, True)
    found = json.loads(Path("found.json").read_text())["FedProx"]
    assert {one["check"] for one in found} >= {"engines agree", "resumes exactly", "differs from FedAvg"}
    assert "| FedProx |" in Path("found.md").read_text()


def test_a_pipe_gets_the_table_and_stderr_a_line_for_each_algorithm(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretended(make: Any, *_: Any) -> list[Measured]:
        return [Measured(f"check {k}", make is not FedBC or k != 2, 0.0, "= 0") for k in range(checks.FIGURES)]

    monkeypatch.setattr("fedlit.cli.conformance.figures", pretended)
    answer = call("conformance --algorithm FedProx --algorithm fedlit.FedBC")
    assert answer.code == 1
    assert answer.err.splitlines() == [
        "checked 1 of 2: FedProx, all checks passed",
        "checked 2 of 2: fedlit.FedBC, failed: check 2",
    ]
    assert answer.out.startswith("| algorithm |")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FedProxx", "--algorithm FedProxx is not an algorithm. Did you mean 'FedProx'"),
        ("no.such.Thing", "--algorithm no.such.Thing cannot be imported"),
        ("fedlit.Softmax", "is not an algorithm"),
    ],
)
def test_what_is_no_algorithm_is_refused(call: Call, name: str, said: str) -> None:
    answer = call(f"conformance --algorithm {name}")
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.parametrize(
    ("net", "shape", "classes"),
    [
        (lambda: MLP(7, [4], 3), (7,), 3),
        (lambda: LeNet(1, 10), (1, 32, 32), 10),
        (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(108, 4)), (2, 8, 8), 4),
    ],
    ids=["vector", "picture", "own picture"],
)
def test_samples_are_made_for_the_net(net: Any, shape: tuple[int, ...], classes: int) -> None:
    data = Problem(net).data()
    data.setup("fit")
    x, _ = data.rows(data.store, torch.arange(4))
    assert tuple(x.shape[1:]) == shape
    assert data.num_classes == classes
    assert Problem(net).net()(x.double() if x.is_floating_point() else x).shape == (4, classes)


def test_a_net_that_takes_something_else_is_refused_in_plain_words() -> None:
    with pytest.raises(ConfigError, match="found no samples that Bilinear takes"):
        Problem(lambda: nn.Bilinear(3, 3, 3)).data()


@pytest.mark.parametrize(
    ("words", "name", "net"),
    [
        ("--algorithm FedProx --net MLP --net.num_features 6 --net.hidden [4] --net.num_classes 3", "FedProx", MLP),
        ("--config synthetic_fedbc --model.dual_lr 0.5", "FedBC", Softmax),
    ],
)
def test_the_net_and_the_config_that_were_asked_for_are_checked(words: str, name: str, net: type[nn.Module]) -> None:
    problem, entries = asked_for(parsed(words))
    (entry,) = entries.values()
    assert list(entries) == [name]
    client = checks.new(entry.make, problem)
    assert type(client).__name__ == name
    assert isinstance(client.net, net)
    assert checks.same_seed_same_bits(entry.make, dict(entry.trainer), problem).passed
    assert checks.differs_from_averaging(entry.make, dict(entry.trainer), problem).passed


def test_options_of_a_config_change_it() -> None:
    _, entries = asked_for(parsed("--config synthetic_fedbc --model.dual_lr 0.5"))
    (entry,) = entries.values()
    client = entry.make(Softmax(5, 3))
    assert isinstance(client, FedBC)
    assert (client.dual_lr, client.batch_size) == (0.5, 4)


def test_a_config_of_plain_averaging_is_known_as_such() -> None:
    problem, entries = asked_for(parsed("--config synthetic_fedavg"))
    assert (
        checks.differs_from_averaging(entries["FedAvg"].make, entries["FedAvg"].trainer, problem).note == "it is FedAvg"
    )


def test_a_config_whose_special_term_does_nothing_is_caught() -> None:
    problem, entries = asked_for(parsed("--config synthetic_fedprox --model.mu 0"))
    (entry,) = entries.values()
    assert caught(checks.differs_from_averaging(entry.make, dict(entry.trainer), problem))


class Halves(ServerCallback):
    """Of a config: the server takes half of every step."""

    def on_pseudo_gradient(self, trainer: Any, client: Client, cohort: Any) -> None:
        cohort.pseudo_gradient = {name: value / 2 for name, value in cohort.pseudo_gradient.items()}


def test_callbacks_of_a_config_come_along_and_those_of_lightning_do_not() -> None:
    plain = "--config synthetic_fedavg"
    both = "--trainer.callbacks+=tests.experiments.test_conformance.Halves --trainer.callbacks+=EarlyStopping"
    _, entries = asked_for(parsed(f"{plain} {both} --trainer.callbacks.monitor global/acc"))
    (entry,) = entries.values()
    first, second = (entry.trainer["make_callbacks"]() for _ in range(2))
    assert [type(one).__name__ for one in first] == ["Halves"]
    assert first[0] is not second[0], "every run gets its own: a callback remembers"
    problem, entries = asked_for(parsed(plain))
    assert entries["FedAvg"].trainer == {}
    found = checks.differs_from_averaging(entry.make, entry.trainer, problem)
    assert found.passed
    assert found.figure > 1e-3


@pytest.mark.parametrize("name", slow_but(["FedBN"], WITH_NORM))
def test_algorithms_with_norm_pass(name: str) -> None:
    entry = WITH_NORM[name]
    assert entry.problem is not None
    found = checks.cohort_is_respected(entry.make, {}, entry.problem)
    found += [one(entry.make, {}, entry.problem) for one in QUICK]
    found.append(checks.newcomers_change_nothing(entry.make, {}, entry.problem))
    found.append(checks.engines_agree(entry.make, {}, entry.problem, compiled=False))
    assert [one for one in found if not one.passed] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--config synthetic_fedbc --algorithm FedBC", "both say what to check"),
        ("--config synthetic_fedbc --net MLP", "--config names a net"),
        ("--algorithm FedBC --net.hidden 3", "needs --net or --config"),
        ("--net MLPP", "model.net names the class 'MLPP', which does not exist. Did you mean 'fedlit.MLP'"),
    ],
)
def test_words_that_contradict_each_other_are_refused(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        asked_for(parsed(words))


def parsed(words: str) -> argparse.Namespace:
    """As `fedlit conformance` is called."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args, args.overrides = parser.parse_known_args(words.split())
    return args


def test_the_table_survives_a_pipe() -> None:
    found = [Measured(f"a check with many words {number}", True, 1e-16, "≤ 1e-10") for number in range(8)]
    head, _, row = table_lines({"FedProx + FedAdam + Exp-α": found})
    assert all(one.check in head for one in found)
    assert row.count("1.0e-16") == 8
