"""The worked examples: against NumPy from the papers, in both engines, in their limits, and through conformance."""

import math
import re
import textwrap
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from examples.apfl import APFL
from examples.fedala import FedALA
from examples.fedexp import FedExP
from examples.fednova import FedNova
from examples.fedpac import FedPAC
from examples.fedproto import FedProto
from examples.fedrep import FedRep
from examples.moon import MOON
from examples.topk import TopK
from fedlit import Client, FedAvg, FederatedTrainer
from fedlit.experiments.conformance import checks
from fedlit.experiments.conformance.problem import everything, largest_gap
from tests.algorithms.test_oracles import BATCH, EPOCHS, ROUNDS, Problem
from tests.conftest import Call
from tests.examples import oracles, prototypes
from tests.examples.code import code_lines
from tests.problems import CLASSES, FEATURES, run, tiny_net, weights_of

ROOT = Path(__file__).parents[2]
EXAMPLES: dict[str, type[Client]] = {
    "fednova": FedNova,
    "fedexp": FedExP,
    "fedrep": FedRep,
    "apfl": APFL,
    "moon": MOON,
    "fedala": FedALA,
    "topk": TopK,
    "fedproto": FedProto,
    "fedpac": FedPAC,
}
FIGURES = {"beyond_consensus": "algorithms/fedbc.md"}
"""Scripts that draw a figure, with tests of their own, and the page that shows it."""
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized", "compiled": False, "lanes": 2, "workers": 1},
}
LR, DECAY = 0.1, 0.8
COHORT = 3


class Setting:
    """The tiny softmax problem, as an example and as its oracle get it."""

    def __init__(self, **engine: Any) -> None:
        self.engine = engine
        self.problem = Problem()
        self.clients = oracles.Clients(self.problem.given.x, self.problem.given.y)
        net = tiny_net()
        self.z = np.column_stack([net.linear.weight.detach().numpy(), net.linear.bias.detach().numpy()])

    def fitted(self, algorithm: type[Client], **options: Any) -> FederatedTrainer:
        client = algorithm(tiny_net(), batch_size=BATCH, local_epochs=EPOCHS, **({"lr": LR} | options))
        trainer = run(client, self.problem.data, rounds=ROUNDS, clients_per_round=COHORT, **self.engine)
        select, sizes = trainer.loop.options.sampler.select, self.problem.data.sizes.numpy()
        self.cohorts = [select(0, t, sizes, COHORT).report for t in range(ROUNDS)]
        assert len({tuple(cohort) for cohort in self.cohorts}) > 1, "partial participation must vary"
        return trainer

    def batches(self) -> oracles.Plan:
        return self.plan(lambda passes: EPOCHS * passes)

    def first(self, steps_of: Any) -> oracles.Plan:
        return self.plan(steps_of, stream=1)

    def plan(self, steps_of: Any, stream: int = 0) -> oracles.Plan:
        """Mini-batches of every client of every round, of which there are so many for a pass of so many."""
        passes = [-(-len(rows) // BATCH) for rows in self.problem.rows]
        return [
            {i: self.problem.batches(i, t, steps=steps_of(passes[i]), stream=stream) for i in cohort}
            for t, cohort in enumerate(self.cohorts)
        ]


def theta(model: dict[str, Tensor]) -> np.ndarray:
    return np.column_stack([model["linear.weight"].detach().numpy(), model["linear.bias"].detach().numpy()])


def row(trainer: FederatedTrainer, name: str, client: int) -> np.ndarray:
    states = trainer.loop.states
    return theta({part: states.row(f"{name}.{part}", client) for part in ("linear.weight", "linear.bias")})


def gap(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max())


engines = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


@engines
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_fednova_matches_its_oracle(engine: dict[str, Any], momentum: float) -> None:
    setting = Setting(**engine)
    found = setting.fitted(FedNova, momentum=momentum)
    z = oracles.fednova(setting.clients, setting.z, setting.cohorts, setting.batches(), LR, momentum)
    assert gap(theta(weights_of(found)), z) < 1e-10


@engines
def test_fedexp_matches_its_oracle(engine: dict[str, Any]) -> None:
    setting = Setting(**engine)
    found = setting.fitted(FedExP, epsilon=1e-3)
    trace = oracles.fedexp(setting.clients, setting.z, setting.cohorts, setting.batches(), LR, 1e-3)
    assert max(trace["steps"]) > 1.1, "the server must extrapolate for the test to say something"
    assert gap(theta(weights_of(found)), trace["z"]) < 1e-10
    assert gap(theta(found.loop.server.global_model), trace["measured"]) < 1e-10


@engines
def test_fedrep_matches_its_oracle(engine: dict[str, Any]) -> None:
    setting = Setting(**engine)
    found = setting.fitted(FedRep, head_epochs=3)
    first = setting.first(lambda passes: 3 * passes)
    trace = oracles.fedrep(setting.clients, setting.z, setting.cohorts, first, setting.batches(), LR)
    assert gap(weights_of(found)["linear.weight"].numpy(), trace["body"]) < 1e-10
    for user in found.loop.states.touched:
        assert gap(found.loop.states.row("own.linear.bias", user).numpy(), trace["heads"][user]) < 1e-10


@engines
@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_matches_its_oracle(engine: dict[str, Any], adaptive: bool) -> None:
    setting = Setting(**engine)
    found = setting.fitted(APFL, mix=0.4, adaptive=adaptive, lr_decay=DECAY)
    rates = [LR * DECAY**t for t in range(ROUNDS)]
    trace = oracles.apfl(setting.clients, setting.z, setting.cohorts, setting.batches(), rates, 0.4, adaptive)
    assert gap(theta(weights_of(found)), trace["z"]) < 1e-10
    for user in found.loop.states.touched:
        assert gap(row(found, "own_model", user), trace["own_model"][user]) < 1e-10
        assert gap(row(found, "mixed", user), trace["mixed"][user]) < 1e-10
        assert abs(float(found.loop.states.row("alpha", user)) - trace["alpha"][user]) < 1e-10
    assert (len({round(value, 6) for value in trace["alpha"].values()}) > 1) is adaptive


@engines
def test_moon_matches_its_oracle(engine: dict[str, Any]) -> None:
    setting = Setting(**engine)
    found = setting.fitted(MOON, mu=2.0, temperature=0.5)
    trace = oracles.moon(setting.clients, setting.z, setting.cohorts, setting.batches(), LR, 2.0, 0.5)
    assert gap(theta(weights_of(found)), trace["z"]) < 1e-10
    for user in found.loop.states.touched:
        assert gap(row(found, "local", user), trace["local"][user]) < 1e-10


@engines
def test_fedala_matches_its_oracle(engine: dict[str, Any]) -> None:
    setting = Setting(**engine)
    found = setting.fitted(FedALA, mix_lr=3.0, share=0.7)
    first = setting.first(lambda passes: math.ceil(0.7 * passes))
    trace = oracles.fedala(setting.clients, setting.z, setting.cohorts, first, setting.batches(), LR, 3.0)
    assert gap(theta(weights_of(found)), trace["z"]) < 1e-10
    for user in found.loop.states.touched:
        assert gap(row(found, "local", user), trace["local"][user]) < 1e-10
        assert gap(1 - row(found, "own_share", user), trace["mixing"][user]) < 1e-10
    assert min(float(own.min()) for own in trace["mixing"].values()) == 0, "some weight must meet its bound"


@engines
def test_topk_matches_its_oracle(engine: dict[str, Any]) -> None:
    setting = Setting(**engine)
    found = setting.fitted(TopK, share=0.3)
    k = round(0.3 * setting.z.size)
    trace = oracles.topk(setting.clients, setting.z, setting.cohorts, setting.batches(), LR, k)
    assert gap(theta(weights_of(found)), trace["z"]) < 1e-10
    for user in found.loop.states.touched:
        assert gap(row(found, "unsent", user), trace["unsent"][user]) < 1e-10
        assert gap(row(found, "local", user), trace["local"][user]) < 1e-10
    sent = [one["comm/up_mb"] for one in found.loop.history.rows[1:]]
    assert sent == pytest.approx([COHORT * (k * (8 + 4) + 8) / 1e6] * ROUNDS), "k numbers with their places, and n_i"


class TwoParts(nn.Sequential):
    """A body and a head."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        body, head = nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh()), nn.Linear(6, CLASSES)
        super().__init__(OrderedDict(body=body, head=head))
        self.double()


def fitted_prototypes(algorithm: type[Client], engine: dict[str, Any]) -> tuple[Setting, FederatedTrainer, list[Any]]:
    """A run on the net with a body and a head, and what an oracle is given of it."""
    setting = Setting(**engine)
    client = algorithm(TwoParts(), head="head", pull=3.0, lr=LR, batch_size=BATCH, local_epochs=EPOCHS)
    trainer = run(client, setting.problem.data, rounds=ROUNDS, clients_per_round=COHORT, **engine)
    select, sizes = trainer.loop.options.sampler.select, setting.problem.data.sizes.numpy()
    setting.cohorts = [select(0, t, sizes, COHORT).report for t in range(ROUNDS)]
    given = [[torch.from_numpy(own) for own in part] for part in (setting.problem.given.x, setting.problem.given.y)]
    return setting, trainer, [*given, [value.detach().clone() for value in TwoParts().parameters()], setting.cohorts]


def own_part(trainer: FederatedTrainer, user: int, names: tuple[str, ...]) -> list[Tensor]:
    return [trainer.loop.states.row(f"own.{name}", user) for name in names]


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 1e-10


def assert_centres(trainer: FederatedTrainer, centres: dict[int, Tensor]) -> None:
    found = trainer.loop.server.callbacks[0].kept["prototypes"]
    assert found[:, -1].tolist() == [float(k in centres) for k in range(CLASSES)]
    assert_same([found[k, :-1] for k in centres], [*centres.values()])


@engines
def test_fedproto_matches_its_oracle(engine: dict[str, Any]) -> None:
    setting, found, given = fitted_prototypes(FedProto, engine)
    trace = prototypes.fedproto(*given, setting.batches(), LR, 3.0)
    assert_centres(found, trace["centres"])
    names = tuple(name for name, _ in TwoParts().named_parameters())
    for user in found.loop.states.touched:
        assert_same(own_part(found, user, names), trace["own"][user])
    row = found.loop.history.rows[-1]
    sent = CLASSES * (6 + 1)
    assert row["comm/down_mb"] == pytest.approx(COHORT * sent * 8 / 1e6), "prototypes alone"
    assert row["comm/up_mb"] == pytest.approx(COHORT * (sent + 1) * 8 / 1e6), "and n_i"


@engines
def test_fedpac_matches_its_oracle(engine: dict[str, Any]) -> None:
    setting, found, given = fitted_prototypes(FedPAC, engine)
    first = setting.first(lambda passes: passes)
    trace = prototypes.fedpac(*given, first, setting.batches(), LR, 3.0)
    mixed = [float(alpha.max()) for alpha in trace["mixtures"]]
    assert min(mixed) < 0.95, "some head must be mixed"
    assert_centres(found, trace["centres"])
    assert_same([weights_of(found)[f"body.0.{name}"] for name in ("weight", "bias")], trace["body"])
    for user in found.loop.states.touched:
        assert_same(own_part(found, user, ("head.weight", "head.bias")), trace["heads"][user])


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (FedNova, {"momentum": 0.5}),
        (FedExP, {}),
        (FedRep, {"keep_local": "head", "head_epochs": 2}),
        (APFL, {}),
        (MOON, {"body": "body"}),
        (FedALA, {"layers": "head"}),
        (TopK, {"share": 0.2}),
        (FedProto, {"head": "head", "pull": 3.0}),
        (FedPAC, {"head": "head", "pull": 3.0}),
    ],
    ids=EXAMPLES,
)
def test_engines_agree_on_a_net_with_body_and_head(algorithm: type[Client], options: dict[str, Any]) -> None:
    local = {"lr": LR, "batch_size": BATCH, "local_epochs": 1} | options
    one, other = (everything(run(algorithm(TwoParts(), **local), rounds=3, **kind)) for kind in ENGINES.values())
    assert largest_gap(one, other) < 1e-10


@pytest.mark.parametrize(
    ("algorithm", "options", "same"),
    [
        (FedNova, {"local_steps": 4}, {"local_steps": 4}),  # everyone takes as many steps
        (FedExP, {"epsilon": 1e9}, {"weights": "uniform"}),  # no step above 1
        (APFL, {"mix": 0.3}, {"weights": "uniform"}),  # z does not depend on the own models
        (MOON, {"mu": 0.0}, {}),
        (FedALA, {"mix_lr": 0.0}, {}),  # all of z is taken
        (TopK, {"share": 1.0}, {}),  # everything is sent
    ],
    ids=["fednova", "fedexp", "apfl", "moon", "fedala", "topk"],
)
def test_its_limit_is_plain_averaging(algorithm: type[Client], options: dict[str, Any], same: dict[str, Any]) -> None:
    local = {"lr": LR, "batch_size": BATCH}
    trainer = {key: same.pop(key) for key in list(same) if key == "weights"}
    limit = run(algorithm(tiny_net(), **local, **options))
    plain = run(FedAvg(tiny_net(), **local, **same), **trainer)
    assert gap(theta(weights_of(limit)), theta(weights_of(plain))) < 1e-12


def test_apfl_with_nothing_of_its_own_is_the_local_model_and_with_all_is_local_training() -> None:
    local = {"lr": LR, "batch_size": BATCH, "adaptive": False}
    shared = run(APFL(tiny_net(), mix=0.0, **local))
    alone = run(APFL(tiny_net(), mix=1.0, **local))
    own = run(FedAvg(tiny_net(), lr=LR, batch_size=BATCH, keep_local="all"))
    for user in alone.loop.states.touched:
        assert gap(row(shared, "mixed", user), row(shared, "local", user)) < 1e-12
        assert gap(row(alone, "mixed", user), row(own, "own", user)) < 1e-12


def test_fedproto_without_pull_is_local_training_and_fedpac_alone_is_fedrep() -> None:
    local = {"lr": LR, "batch_size": BATCH, "local_epochs": 1}
    alone = run(FedProto(TwoParts(), head="head", pull=0.0, **local))
    own = run(FedAvg(TwoParts(), keep_local="all", **local))
    names = tuple(name for name, _ in TwoParts().named_parameters())
    for user in alone.loop.states.touched:
        assert_same(own_part(alone, user, names), own_part(own, user, names))
    single = {"clients_per_round": 1, "rounds": 6}
    one = run(FedPAC(TwoParts(), head="head", pull=0.0, **local), **single)
    other = run(FedRep(TwoParts(), keep_local="head", head_epochs=1, **local), **single)
    for user in one.loop.states.touched:
        assert_same(own_part(one, user, names[2:]), own_part(other, user, names[2:]))


def test_fedrep_averages_bodies_and_not_heads() -> None:
    found = run(FedRep(TwoParts(), keep_local="head", head_epochs=2, lr=LR, batch_size=BATCH), rounds=2)
    start = TwoParts()
    moved = {
        name: gap(value.numpy(), dict(start.named_parameters())[name].detach().numpy())
        for name, value in weights_of(found).items()
    }
    assert min(moved["body.0.weight"], moved["body.0.bias"]) > 1e-3
    assert max(moved["head.weight"], moved["head.bias"]) == 0, "heads are not averaged"


QUICK = [
    checks.resumes_exactly,
    checks.same_seed_same_bits,
    checks.order_does_not_matter,
    checks.differs_from_averaging,
]
"""Those that compile nothing and fork nothing."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_conforms(name: str) -> None:
    make = partial(EXAMPLES[name], **({"head_epochs": 2} if name == "fedrep" else {}))
    found = [one(make, {}) for one in QUICK] + checks.cohort_is_respected(make, {})
    assert [one for one in found if not one.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_command_checks_it(call: Call, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    answer = call(f"conformance --algorithm examples.{name}.{EXAMPLES[name].__name__}")
    assert (answer.code, "1 algorithm: all checks passed" in answer.out) == (0, True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_has_fewer_than_forty_lines_of_code_as_the_page_says(name: str) -> None:
    lines = code_lines((ROOT / "examples" / f"{name}.py").read_text())
    assert lines < 40
    assert f"(../examples/{name}.py) | {lines} |" in (ROOT / "docs" / "extending.md").read_text()


def test_every_example_is_tested_and_explained() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert files == EXAMPLES.keys() | FIGURES.keys()
    pages = dict.fromkeys(EXAMPLES, "extending.md") | FIGURES
    told = {name: (ROOT / "docs" / page).read_text() for name, page in pages.items()}
    assert [name for name in sorted(files) if f"examples/{name}.py" not in told[name]] == []


def test_what_the_page_shows_of_an_example_stands_in_it() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    shown = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    files = [textwrap.dedent(path.read_text()) for path in sorted((ROOT / "examples").glob("*.py"))]
    lines = {line.strip() for text in files for line in text.splitlines()}
    assert len(shown) >= len(EXAMPLES)
    assert [line for block in shown for line in block.splitlines() if line.strip() not in lines] == []
