"""Nets that run in one eager lane, BatchNorm, other buffers and recurrent layers, agree with the sequential engine."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit import CharLSTM, Client, FedAvg, FedBC, FederatedTrainer, ResNet20, TensorData
from fedlit.client.step import Batch, Phase
from fedlit.engines.flat_layout import FlatLayout
from fedlit.engines.program import LocalProgram
from fedlit.params import Params, clone, with_prefix
from tests.cases import slow_but
from tests.engines.test_compiler_contract import needs_compiler
from tests.problems import CLASSES, FEATURES, kept_rows, largest_difference, run, tiny_data, traced_program

LETTERS = 11


class Texts(TensorData):
    """Whole numbers as samples, as a net with an embedding reads them."""

    def rows(self, store: dict[str, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
        return store["x"].index_select(0, index).long(), store["y"].index_select(0, index)


def texts(sizes: tuple[int, ...]) -> TensorData:
    rng = np.random.default_rng(5)
    x = rng.integers(LETTERS, size=(sum(sizes), 6), dtype=np.uint8)
    y, client = rng.integers(LETTERS, size=sum(sizes)), np.repeat(np.arange(len(sizes)), sizes)
    return Texts(x, y, client, num_classes=LETTERS, test_fraction=0.25, val_fraction=0)


class Keeps(nn.Module):
    """Buffers of several kinds: constants of three types, and numbers of the batches, replaced and changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, FEATURES))
        self.register_buffer("chosen", torch.arange(FEATURES) != 2)
        self.register_buffer("salt", torch.tensor(2**62 + 1))  # no floating-point type holds it
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("rows", torch.zeros(2, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = 0.5 * self.seen + x.mean().detach()
            self.rows[1] += len(x)
        return self.linear(x * self.scale * self.chosen) + self.seen + self.salt % 2


def normed(**options: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6, **options), nn.ReLU(), nn.Linear(6, CLASSES))


def gated() -> nn.Module:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(FEATURES, 4)
            self.head = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.gru(x.unsqueeze(0))[0][0])

    return Gated()


SIZES = (1, 7, 12, 23)
"""The first client has one row, on which BatchNorm cannot train; with batches of 4, some last ones are ragged."""

TESTED = (9, 10, 14)
"""Everyone has two test rows or more: without running statistics, BatchNorm cannot be evaluated on one either."""


Case = tuple[Callable[[], nn.Module], Callable[[], TensorData]]
CASES: dict[str, Case] = {
    "batchnorm": (normed, lambda: tiny_data(SIZES)),
    "batchnorm without statistics": (lambda: normed(track_running_stats=False), lambda: tiny_data(TESTED)),
    "buffers of a user": (Keeps, lambda: tiny_data(SIZES)),
    "resnet20": (ResNet20, lambda: tiny_data(TESTED, shape=(3, 8, 8))),
    "lstm": (lambda: CharLSTM(LETTERS, embedding=3, hidden=5), lambda: texts(SIZES)),
    "gru": (gated, lambda: tiny_data(SIZES)),
}


EAGER = {"engine": "vectorized", "compiled": False}
COMPILED = {"engine": "vectorized", "compiled": True, "workers": 2}


def fedavg(net: nn.Module) -> Client:
    return FedAvg(net, lr=0.05, batch_size=4, local_epochs=1)


def fedbc(net: nn.Module) -> Client:
    return FedBC(net, dual_lr=0.3, momentum=0.5, lr=0.05, batch_size=4, local_epochs=2)


def trained(case: str, algorithm: Callable[[nn.Module], Client] = fedavg, **trainer: object) -> FederatedTrainer:
    make_net, make_data = CASES[case]
    torch.manual_seed(2)
    return run(algorithm(make_net()), make_data(), **({"rounds": 2} | trainer))


def everything(trainer: FederatedTrainer) -> Params:
    """z with its buffers, and all that is kept for clients, their buffers included."""
    return with_prefix("z", trainer.loop.client.net.state_dict()) | kept_rows(trainer)


def assert_equal(slow: FederatedTrainer, fast: FederatedTrainer, within: float = 1e-10, compiled: bool = False) -> None:
    expected, found = everything(slow), everything(fast)
    assert (slow.summary["engine"], fast.summary["engine"]) == ("sequential", "vectorized")
    assert (fast.summary["lanes"], fast.summary["compiled"]) == (1, compiled)
    assert (fast.summary["compiles"] == "step") == compiled
    assert {name: value.dtype for name, value in found.items()} == {k: v.dtype for k, v in expected.items()}
    exact = [name for name, value in expected.items() if not value.is_floating_point()]
    assert all(torch.equal(found.pop(name), expected.pop(name)) for name in exact)
    assert largest_difference(found, expected) <= within
    losses = slow.loop.history.series("train/loss")[1]
    assert fast.loop.history.series("train/loss")[1] == pytest.approx(losses, abs=within)


@pytest.mark.parametrize("case", CASES)
def test_one_eager_lane_equals_sequential(case: str) -> None:
    assert_equal(trained(case), trained(case, **EAGER))


COMPILED_CASES = list(CASES)[:3]


@needs_compiler
@pytest.mark.parametrize("case", slow_but(["batchnorm"], COMPILED_CASES))
def test_compiled_step_equals_sequential(case: str) -> None:
    """Full batches are compiled; some of every client's last batches are ragged and run eagerly."""
    assert_equal(trained(case, fedbc), trained(case, fedbc, **COMPILED), compiled=True)


@pytest.mark.parametrize("case", COMPILED_CASES)
def test_step_that_is_compiled_equals_sequential(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is given to the compiler."""
    monkeypatch.setattr("fedlit.engines.vectorized.compile_program", traced_program)
    assert_equal(trained(case, fedbc), trained(case, fedbc, **COMPILED), compiled=True)


@needs_compiler
@pytest.mark.usefixtures("program")
def test_resumed_run_calls_the_same_compiled_step(tmp_path: Path) -> None:
    whole = trained("batchnorm", **COMPILED)
    half = trained("batchnorm", **COMPILED, rounds=1)
    half.save_checkpoint(tmp_path / "half.ckpt")
    torch.manual_seed(2)
    options = {"rounds": 2, "clients_per_round": 3, "precision": "64-true", "initial_weights": "net"}
    resumed = FederatedTrainer(**options, enable_progress_bar=False)
    resumed.fit(fedavg(normed()), datamodule=CASES["batchnorm"][1](), ckpt_path=tmp_path / "half.ckpt")
    assert (resumed.summary["compiled"], resumed.summary["compiles"]) == (True, "step")
    expected, found = everything(whole), everything(resumed)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@needs_compiler
@pytest.mark.slow
def test_compiled_step_of_a_deep_net_equals_sequential() -> None:
    """ResNet-20; of the first client's nine rows one batch is ragged. Compiling takes about a minute."""
    assert_equal(trained("resnet20"), trained("resnet20", **COMPILED), compiled=True)


@pytest.mark.parametrize("case", ["batchnorm", "buffers of a user", "lstm"])
def test_optimiser_memory_and_states_are_carried_beside_the_buffers(case: str) -> None:
    assert_equal(trained(case, fedbc), trained(case, fedbc, **EAGER, workers=2))


def test_buffers_survive_windows_of_a_long_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = trained("buffers of a user")
    monkeypatch.setattr("fedlit.engines.choose.MAX_CAPACITY", 2)
    assert_equal(slow, trained("buffers of a user", **EAGER))


@pytest.mark.filterwarnings("ignore:Found .* in eval mode")
def test_net_that_comes_in_evaluation_mode_is_trained_in_training_mode() -> None:
    slow, fast = (trained("batchnorm", lambda net: fedavg(net.eval()), **form) for form in ({}, EAGER))
    assert_equal(slow, fast)
    assert fast.loop.client.net[1].num_batches_tracked > 0


@pytest.mark.parametrize("case", ["batchnorm", "buffers of a user", "lstm"])
def test_single_precision_engines_agree_to_a_thousandth(case: str) -> None:
    slow, fast = (trained(case, precision="32-true", **form) for form in ({}, EAGER))
    assert_equal(slow, fast, within=1e-3)


def test_a_step_changes_none_of_the_buffers_that_it_is_given() -> None:
    torch.manual_seed(2)
    client = fedavg(normed())
    client.prepare()
    params, buffers = clone(dict(client.net.named_parameters())), clone(dict(client.net.named_buffers()))
    carried = {**with_prefix("params", params), **with_prefix("buffers", buffers), "loss": torch.zeros(())}
    program = LocalProgram(client, Phase(), TensorData.rows, 1, FlatLayout.of(carried), FlatLayout.of({}))
    batch = Batch(torch.randn(4, FEATURES), torch.zeros(4, dtype=torch.int64), torch.full((4,), 0.25))
    before = clone(carried)
    moved = program.update(carried, {}, {}, batch, None, None, torch.tensor(0.1))
    assert all(torch.equal(carried[name], before[name]) for name in before)
    assert not torch.equal(moved["buffers.1.running_mean"], before["buffers.1.running_mean"])
    assert int(moved["buffers.1.num_batches_tracked"]) == 1
    assert not client.net[1].running_mean.any()


@pytest.mark.parametrize("row", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clients", [1, 3])
def test_a_flat_row_gives_tensors_of_every_type_back_exactly(row: torch.dtype, clients: int) -> None:
    values: Params = {
        "first": torch.tensor([0.5, -2.0]).to(row),
        "counter": torch.tensor(2**53 + 1),
        "mask": torch.tensor([[True], [False], [True]]),
        "negative": torch.tensor([-3, 7], dtype=torch.int16),
        "double": torch.tensor([1 / 3, -np.inf, np.nan], dtype=torch.float64),
        "nothing": torch.zeros(0, dtype=torch.int64),
        "last": torch.tensor(1.5).to(row),
    }
    stacked = {name: value.expand(clients, *value.shape) for name, value in values.items()}
    layout = FlatLayout.of(stacked, stacked=True)
    flat = layout.join(stacked)
    assert flat.shape == (clients, sum(layout.sizes))
    assert flat.dtype == row
    for name, value in layout.split(flat).items():
        torch.testing.assert_close(value, stacked[name], rtol=0, atol=0, equal_nan=True)
