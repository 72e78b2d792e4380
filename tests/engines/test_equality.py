"""Engines agree: sequential is the judge; vectorized is forced, eager and compiled, with other lanes and workers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedlit import MLP, Client, FedAvg, FedBC, FedBCD
from fedlit.client.local_optimizers import LocalSGD
from fedlit.client.step import Phase
from fedlit.engines.flat_layout import FlatLayout
from fedlit.engines.program import LocalProgram, Schedule
from fedlit.params import Params, clone, stack, with_prefix
from tests.cases import slow_but
from tests.problems import (
    CLASSES,
    FEATURES,
    TinyConv,
    kept_rows,
    largest_difference,
    run,
    tiny_data,
    tiny_net,
    traced_program,
    weights_of,
)

LOCAL = {"lr": 0.05, "batch_size": 4, "local_epochs": 2}
MAKERS: dict[str, Callable[[], Client]] = {
    "fedavg_all_options": lambda: FedAvg(
        tiny_net(), momentum=0.5, weight_decay=0.01, clip=0.5, lr_decay=0.9, drop_last=True, **LOCAL
    ),
    "fedavg_fixed_steps": lambda: FedAvg(tiny_net(), lr=0.05, batch_size=4, local_steps=7),
    "fedbc": lambda: FedBC(tiny_net(), dual_lr=0.3, momentum=0.5, **LOCAL),
    "fedbc_from_local": lambda: FedBC(tiny_net(), dual_lr=0.3, tolerance_lr=0.1, start_from="local", **LOCAL),
}


class CountsSteps(Client):
    """Carries a state from step to step and reads the step's number."""

    total: Tensor

    def state_spec(self) -> dict[str, float]:
        return {"total": 1.0}

    def carried_states(self) -> tuple[str, ...]:
        return ("total",)

    def training_step(self, batch, batch_idx):
        task = self.task_loss(batch)
        return {"loss": task * self.total, "task": task, "total": self.total * 0.9 + batch_idx}


class LooksAhead(LocalSGD):
    """Takes the gradient where the momentum is heading, not where the parameters are."""

    def point(self, params: Params, state: Params) -> Params:
        return {name: value - 0.03 * state[name] for name, value in params.items()}


class FedNesterov(FedAvg):
    """A client whose local optimiser has a point of its own."""

    def local_optimizer(self) -> LocalSGD:
        return LooksAhead(momentum=0.5)


MAKERS["gradient_elsewhere"] = lambda: FedNesterov(tiny_net(), **LOCAL)
MAKERS["carried_state"] = lambda: CountsSteps(tiny_net(), lr=0.01, batch_size=4, local_epochs=1)


@pytest.fixture(scope="module")
def reference() -> dict[str, tuple[dict[str, Tensor], dict[str, Tensor], list[float]]]:
    """The sequential engine's answer for each client."""
    answers = {}
    for name, make in MAKERS.items():
        trainer = run(make())
        answers[name] = (weights_of(trainer), kept_rows(trainer), trainer.loop.history.series("train/loss")[1])
    return answers


def test_gradient_is_taken_at_the_optimisers_point(reference) -> None:
    class Heavy(FedAvg):
        def local_optimizer(self) -> LocalSGD:
            return LocalSGD(momentum=0.5)

    at_the_parameters = weights_of(run(Heavy(tiny_net(), **LOCAL)))
    assert largest_difference(reference["gradient_elsewhere"][0], at_the_parameters) > 1e-4


LANES = [(1, 1), (2, 1), (3, 2), (1, 2)]
QUICK = [*((maker, 3, 2) for maker in MAKERS), *(("fedbc", *one) for one in LANES if one != (3, 2))]


@pytest.mark.parametrize(
    ("maker", "lanes", "workers"), slow_but(QUICK, [(maker, *one) for maker in MAKERS for one in LANES])
)
def test_eager_vectorized_equals_sequential(reference, maker: str, lanes: int, workers: int) -> None:
    trainer = run(MAKERS[maker](), engine="vectorized", compiled=False, lanes=lanes, workers=workers)
    weights, rows, losses = reference[maker]
    assert trainer.summary["engine"] == "vectorized"
    assert not trainer.summary["compiled"]
    assert largest_difference(weights_of(trainer), weights) <= 1e-10
    assert largest_difference(kept_rows(trainer), rows) <= 1e-10
    assert trainer.loop.history.series("train/loss")[1] == pytest.approx(losses, abs=1e-10)


def test_an_idle_lane_keeps_what_it_holds() -> None:
    """Momentum would move it, though its rows weigh nothing."""
    client = FedAvg(tiny_net(), lr=0.1, batch_size=4, momentum=0.9)
    client.prepare()
    params = clone(dict(client.net.named_parameters()))
    velocity = {name: torch.ones_like(value) for name, value in params.items()}
    loss = {"loss": torch.zeros((), dtype=torch.float64)}
    carried = with_prefix("params", params) | with_prefix("memory", velocity) | loss
    layout = FlatLayout.of(carried)
    program = LocalProgram(client, Phase(), lambda held, k: (held["x"][k], held["y"][k]), 2, layout, FlatLayout.of({}))
    flat = layout.join(stack([carried, carried]))
    store = {"x": torch.ones(4, FEATURES, dtype=torch.float64), "y": torch.zeros(4, dtype=torch.int64)}
    weights = torch.tensor([[[0.25] * 4, [0.0] * 4]], dtype=torch.float64)
    schedule = Schedule(torch.arange(4).repeat(1, 2, 1), weights, None, None)
    ticks = torch.tensor(0), torch.tensor(1)
    moved = program.eager(flat.clone(), torch.empty(2, 0), torch.tensor(0.1), store, schedule, *ticks)
    assert torch.equal(moved[1], flat[1])
    assert not torch.equal(moved[0], flat[0])


OWN_OPTIONS = ["fedavg_all_options", "fedavg_fixed_steps", "gradient_elsewhere", "carried_state"]
"""The conformance suite has the algorithms."""


@pytest.mark.parametrize("maker", OWN_OPTIONS)
def test_program_that_is_compiled_equals_sequential(reference, maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlit.engines.vectorized.compile_program", traced_program)
    trainer = run(MAKERS[maker](), engine="vectorized", compiled=True, lanes=2, workers=2)
    weights, rows, _ = reference[maker]
    assert largest_difference(weights_of(trainer), weights) <= 1e-10
    assert largest_difference(kept_rows(trainer), rows) <= 1e-10


COMPILED = [
    ("fedavg_all_options", 2, 2),
    pytest.param("fedavg_fixed_steps", 1, 1, marks=pytest.mark.slow),
    pytest.param("fedbc", 3, 2, marks=pytest.mark.slow),
    pytest.param("carried_state", 2, 1, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("maker", "lanes", "workers"), COMPILED)
def test_compiled_vectorized_equals_sequential(reference, maker: str, lanes: int, workers: int) -> None:
    trainer = run(MAKERS[maker](), engine="vectorized", compiled=True, lanes=lanes, workers=workers)
    weights, rows, losses = reference[maker]
    assert trainer.summary["compiled"]
    assert largest_difference(weights_of(trainer), weights) <= 1e-10
    assert largest_difference(kept_rows(trainer), rows) <= 1e-10
    assert trainer.loop.history.series("train/loss")[1] == pytest.approx(losses, abs=1e-10)


@pytest.mark.parametrize("maker", ["fedavg_fixed_steps", "fedbc"])
def test_single_precision_engines_agree_to_a_thousandth(maker: str) -> None:
    client, other = MAKERS[maker]().float(), MAKERS[maker]().float()
    slow = run(client, precision="32-true")
    fast = run(other, precision="32-true", engine="vectorized", compiled=False, lanes=3)
    assert largest_difference(weights_of(slow), weights_of(fast)) <= 1e-3


@pytest.mark.usefixtures("program")
def test_convolutional_net_gets_one_lane_and_equals_sequential_compiled() -> None:
    def client() -> FedBC:
        torch.manual_seed(1)
        return FedBC(TinyConv().double(), dual_lr=0.3, lr=0.05, batch_size=4, local_epochs=1)

    slow = run(client(), tiny_data(shape=(1, 8, 8)), rounds=3)
    fast = run(client(), tiny_data(shape=(1, 8, 8)), rounds=3, engine="vectorized", compiled=True)
    assert fast.summary["lanes"] == 1
    assert largest_difference(weights_of(slow), weights_of(fast)) <= 1e-10


def test_timelines_longer_than_the_capacity_run_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = run(MAKERS["fedbc"]())
    monkeypatch.setattr("fedlit.engines.choose.MAX_CAPACITY", 4)
    fast = run(MAKERS["fedbc"](), engine="vectorized", compiled=False, lanes=2)
    assert fast.summary["capacity"] == 4
    assert largest_difference(weights_of(slow), weights_of(fast)) <= 1e-10


def test_clients_without_steps_keep_what_they_received() -> None:
    class Lazy(FedBC):
        def local_work(self, cohort, planned, generator_of):
            planned[0] = 0
            return planned

    def client() -> FedBC:
        return Lazy(tiny_net(), dual_lr=0.3, **LOCAL)

    slow, fast = run(client()), run(client(), engine="vectorized", compiled=False, lanes=2)
    assert largest_difference(weights_of(slow), weights_of(fast)) <= 1e-10
    assert largest_difference(kept_rows(slow), kept_rows(fast)) <= 1e-10


def test_large_dense_nets_get_one_lane_and_small_ones_several() -> None:
    small = run(FedAvg(MLP(FEATURES, (4,), CLASSES), **LOCAL), rounds=1, engine="vectorized", compiled=False, workers=1)
    assert small.summary["lanes"] > 1


@pytest.mark.usefixtures("program")
def test_a_compiled_lane_alone_may_return_what_it_was_given() -> None:
    """ASPG hands the parameters of a step on as its memory: the loop's operator refuses an input as its output."""

    def client() -> FedBCD:
        return FedBCD(tiny_net(), lr=0.05, batch_size=4)

    reference = run(client())
    fast = run(client(), engine="vectorized", lanes=1, workers=1, compiled=True)
    assert largest_difference(weights_of(reference), weights_of(fast)) < 1e-10
