"""Which engine trains what: rules for nets that the vectorized engine runs in one lane, and counted work."""

import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedlit import (
    CharLSTM,
    CharTransformer,
    Client,
    Cloud,
    Ditto,
    FedAvg,
    FedBCD,
    FedBCDI,
    FedProx,
    PerFedAvg,
    PFedMe,
    ResNet20,
    Softmax,
)
from fedlit.clock import Clock
from fedlit.engines.choose import EngineChoice, Request, Resources, choose
from fedlit.engines.cost import estimated_step_s, step_flop
from fedlit.engines.step_probe import net_passes
from fedlit.errors import ConfigError
from fedlit.server.base import ServerCallback
from fedlit.server.buffer import Buffer
from tests.conftest import TINY, Call
from tests.engines.test_compiler_contract import needs_compiler
from tests.problems import FEATURES as FIVE
from tests.problems import run, tiny_data

FEATURES = 6
LONG = 10**6
"""Rounds after which compiling would pay for any net."""


class Scaled(nn.Module):
    """A constant beside the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(FEATURES))
        self.linear = nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.scale)


class Recurrent(nn.Module):
    """A recurrent layer over the features, one at a time."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = layer(1, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.unsqueeze(2))[0][:, -1]


def with_layer(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), layer, nn.Linear(4, 3))


Net = tuple[Callable[[], nn.Module], str]
MIXING: dict[str, Net] = {
    "batchnorm": (lambda: with_layer(nn.BatchNorm1d(4)), "the buffer '1.running_mean', so its batches are not padded"),
    "batchnorm without statistics": (
        lambda: with_layer(nn.BatchNorm1d(4, track_running_stats=False)),
        "has BatchNorm, so its batches are not padded",
    ),
    "constant": (Scaled, "the buffer 'scale', so its batches are not padded"),
}
RECURRENT: dict[str, Net] = {
    "lstm": (lambda: Recurrent(nn.LSTM), "the net has recurrent layers, for which vmap has no rule"),
    "gru": (lambda: Recurrent(nn.GRU), "the net has recurrent layers, for which vmap has no rule"),
}
ONE_LANE = MIXING | RECURRENT


def chosen(net: nn.Module, rounds: int = LONG, **request: Any) -> EngineChoice:
    client = FedAvg(net, batch_size=4)
    return choose(Request(**request), client, np.full(6, 10), per_round=4, rounds=rounds, sample=torch.ones(FEATURES))


@pytest.mark.parametrize("net", ONE_LANE)
def test_the_eager_form_has_one_lane_and_says_why(net: str) -> None:
    make, why = ONE_LANE[net]
    choice = chosen(make(), engine="vectorized", compiled=False)
    assert (choice.engine, choice.lanes, choice.workers, choice.compiled) == ("vectorized", 1, 1, False)
    assert choice.line().startswith("engine: vectorized, 1 lane × 1 worker, eager (")
    assert why in choice.line()


@needs_compiler
@pytest.mark.parametrize("net", MIXING)
def test_a_net_that_mixes_rows_is_compiled_step_by_step(net: str) -> None:
    choice = chosen(MIXING[net][0](), engine="vectorized", workers=2)
    assert (choice.lanes, choice.compiled, choice.compiles) == (1, True, "step")
    assert choice.line().startswith("engine: vectorized, 1 lane × 2 workers, compiled step by step (about")


@needs_compiler
@pytest.mark.parametrize("rounds", [1, LONG])
@pytest.mark.parametrize("net", MIXING)
def test_auto_compiles_a_step_where_it_pays(net: str, rounds: int) -> None:
    choice = chosen(MIXING[net][0](), rounds)
    assert choice.compiled == (rounds == LONG)
    assert choice.compiled or "compiling would not pay" in choice.line()


@needs_compiler
def test_auto_compiles_no_deep_step_that_is_not_taken_often() -> None:
    """Compiling takes longer for every layer, and the sequential engine has threads too."""
    client, sample = FedAvg(ResNet20(), batch_size=32), torch.zeros(3, 32, 32)
    planned, resources = np.full(6, 10), Resources(threads=2)
    short, long = (choose(Request(), client, planned, 4, rounds, sample, resources=resources) for rounds in (2, LONG))
    assert (short.engine, long.engine, long.compiles) == ("sequential", "vectorized", "step")


@needs_compiler
@pytest.mark.parametrize("rounds", [1, LONG])
@pytest.mark.parametrize("net", RECURRENT)
def test_auto_compiles_a_recurrent_net_where_it_pays(net: str, rounds: int) -> None:
    choice = chosen(RECURRENT[net][0](), rounds)
    assert (choice.compiled, choice.compiles, choice.lanes) == (rounds == LONG, "loop", 1)
    assert choice.compiled or "compiling would not pay" in choice.line()


@needs_compiler
def test_auto_compiles_large_recurrent_layers_for_long_training_alone() -> None:
    text, planned, resources = torch.zeros(80, dtype=torch.int64), np.full(6, 10), Resources(threads=2)
    client = FedAvg(CharLSTM(), batch_size=10)
    engines = [choose(Request(), client, planned, 4, rounds, text, resources=resources).engine for rounds in (1, LONG)]
    assert engines == ["sequential", "vectorized"]


@needs_compiler
def test_auto_compiles_a_deep_loop_for_long_training_alone() -> None:
    text, planned, resources = torch.zeros(80, dtype=torch.int64), np.full(6, 10), Resources(threads=2)
    client = FedAvg(CharTransformer(every_position=True), task="next_token", batch_size=4)
    engines = [
        choose(Request(), client, planned, 4, rounds, text, resources=resources).engine for rounds in (1, 100 * LONG)
    ]
    assert engines == ["sequential", "vectorized"]


class Projected(Recurrent):
    """An LSTM with a projection."""

    def __init__(self) -> None:
        super().__init__(nn.LSTM)
        self.layer = nn.LSTM(1, 4, batch_first=True, proj_size=3)


@pytest.mark.parametrize("engine", ["vectorized", "auto"])
def test_compiling_what_is_not_written_out_is_refused_by_the_layers_name(engine: str) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.compiled is true, but 'layer' of the net, a LSTM, has a proj"):
        chosen(Projected(), engine=engine, compiled=True)
    assert "'layer' of the net, a LSTM, has a projection" in chosen(Projected(), engine="vectorized").line()


def test_recurrent_net_that_a_step_passes_several_times_is_not_compiled() -> None:
    """Its gradients may be differentiated again, and the operators have no second derivative."""
    client = PerFedAvg(Recurrent(nn.GRU), batch_size=4)
    choice = choose(Request(engine="vectorized"), client, np.full(6, 10), 4, LONG, torch.ones(FEATURES))
    assert not choice.compiled
    assert "passes the net several times" in choice.line()


@pytest.mark.parametrize("asked", ["auto", "vectorized"])
def test_layer_that_draws_is_named_with_the_cost(asked: Any, caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential(nn.Linear(FEATURES, 4), nn.Sequential(nn.Dropout(0.5), nn.RReLU()), nn.Linear(4, 3))
    choice = chosen(net, engine=asked)
    assert choice.engine == "sequential"
    assert "'1.1' of the net, a RReLU, draws random numbers" in choice.line()
    assert "s one by one" in choice.line()
    loud = [record for record in caplog.records if "trainer.engine is vectorized, but" in record.message]
    assert len(loud) == (asked == "vectorized")


@pytest.mark.parametrize("engine", ["vectorized", "auto"])
@pytest.mark.parametrize("net", ONE_LANE)
def test_several_lanes_of_such_nets_are_refused(net: str, engine: str) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.lanes is 4, but .* one lane\. Leave trainer\.lanes out"):
        chosen(ONE_LANE[net][0](), engine=engine, lanes=4)


@pytest.mark.parametrize("net", ONE_LANE)
def test_one_lane_of_such_nets_may_be_asked_for(net: str) -> None:
    assert chosen(ONE_LANE[net][0](), engine="vectorized", lanes=1).lanes == 1


def test_nothing_is_refused_where_the_sequential_engine_is_asked_for() -> None:
    assert chosen(Scaled(), engine="sequential", lanes=4, compiled=True).why == "as asked"


@pytest.mark.parametrize("request_", [{}, {"lanes": 4}, {"compiled": True}], ids=["", "lanes", "compiled"])
def test_a_layer_that_draws_beside_batchnorm_is_still_trained_one_by_one(request_: dict[str, Any]) -> None:
    net = with_layer(nn.Sequential(nn.BatchNorm1d(4), nn.RReLU()))
    choice = chosen(net, engine="vectorized", **request_)
    assert choice.engine == "sequential"
    assert "draws random numbers" in choice.why


def test_choosing_leaves_the_net_as_it_is() -> None:
    net = with_layer(nn.BatchNorm1d(4)).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    chosen(net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not net.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operations_of_an_lstm_are_counted(dtype: torch.dtype) -> None:
    """In float32 a layer is one operator; in float64 torch's own counter finds the products."""
    letters, embedding, hidden, rows, steps = 11, 3, 5, 4, 7
    client = FedAvg(CharLSTM(letters, embedding, hidden).to(dtype), batch_size=rows)
    lstm = steps * 4 * hidden * ((embedding + hidden) + (hidden + hidden))
    assert step_flop(client, torch.zeros(steps, dtype=torch.int64)) == 3 * 2 * rows * (lstm + hidden * letters)


class Sequence(nn.Module):
    """A layer over (rows, steps, features), with an output of each step."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        attends = isinstance(self.layer, nn.MultiheadAttention)
        output = self.layer(x, x, x) if attends else self.layer(x)
        return self.head((output[0] if isinstance(output, tuple) else output).mean(1))


COSTED: dict[str, Callable[[], nn.Module]] = {
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "two encoders": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "lstm": lambda: nn.LSTM(8, 8, 2, batch_first=True),
    "gru": lambda: nn.GRU(8, 8, batch_first=True),
    "rnn": lambda: nn.RNN(8, 4, bidirectional=True, batch_first=True),
    "dense": lambda: nn.Linear(8, 8),
}


@pytest.mark.parametrize("layer", COSTED)
def test_the_cost_agrees_with_torchs_counter_of_a_whole_step(layer: str) -> None:
    """Forward and backward, with attention as products, in float64 where torch's counter knows every operator."""
    net, rows, steps = Sequence(COSTED[layer]()), 4, 12
    costed = step_flop(FedAvg(net, batch_size=rows), torch.ones(steps, 8))
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        net.double()(torch.ones(rows, steps, 8, dtype=torch.float64)).sum().backward()
    assert 0.7 < costed / counter.get_total_flops() < 1.5


def heavy(resources: Resources, **request: Any) -> EngineChoice:
    """A net whose steps gain from threads."""
    client = FedAvg(nn.Linear(1000, 1000), batch_size=64)
    asked, planned = Request(engine="sequential", **request), np.full(6, 10)
    return choose(asked, client, planned, 4, LONG, torch.ones(1000), evaluated_rows=1000, resources=resources)


def test_threads_are_those_that_were_asked_for_else_openmps_else_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    for variable, threads, expected, source in [
        ("", None, cores, "the cores of this process"),
        ("3", None, 3, "OMP_NUM_THREADS"),
        ("3", 5, 5, "trainer.threads"),
        ("", 5, 5, "trainer.threads"),
        ("many", None, cores, "the cores of this process"),
    ]:
        monkeypatch.setattr("fedlit.engines.resources._OMP_NUM_THREADS", variable)
        resources = Resources(threads=threads)
        choice = heavy(resources)
        assert (choice.threads, choice.evaluation_threads) == (expected, expected)
        assert resources.line(choice).startswith(f"threads: {expected} in training, {expected} in evaluation")
        assert source in resources.line(choice)


def test_a_compiled_program_has_as_many_workers_as_threads_are_allowed() -> None:
    client = FedAvg(Softmax(FEATURES, 3), batch_size=4)
    asked, planned = Request(engine="vectorized", compiled=True), np.full(6, 10)
    resources = Resources(threads=3)
    choice = choose(asked, client, planned, 4, LONG, torch.ones(FEATURES), resources=resources)
    assert choice.workers == 3
    assert resources.line(choice).startswith("threads: 3 in training, 1 in evaluation; at most 3")


def test_openmps_variable_is_read_and_the_choice_is_told(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    """tests/conftest.py sets it to 1, before fedlit is imported."""
    assert call(f"fit {TINY}").code == 0
    assert "threads: 1 in training, 1 in evaluation (OMP_NUM_THREADS)" in caplog.messages


def test_a_resumed_run_keeps_its_threads(call: Call) -> None:
    assert call(f"fit {TINY} --trainer.threads 1").code == 0
    assert call(f"fit {TINY} --trainer.rounds 4 --resume").code == 0
    answer = call(f"fit {TINY} --trainer.rounds 5 --trainer.threads 7 --resume")
    assert answer.code == 2
    assert "trainer.threads is 7, but the run to resume used 1" in answer.err
    assert call("fit --config synthetic_fedbc --trainer.threads 0").err.startswith("fedlit: trainer.threads is 0; give")


# ---- counted work ----------------------------------------------------------------------------------------------------

ALL_LOCAL: dict[str, Any] = {"batch_size": 4, "lr": 0.01}
PASSES: dict[str, tuple[Callable[[nn.Module], Client], dict[str, int]]] = {
    "FedAvg": (lambda net: FedAvg(net, **ALL_LOCAL), {"training_step": 1}),
    "pFedMe": (lambda net: PFedMe(net, inner_steps=7, **ALL_LOCAL), {"training_step": 7}),
    "Per-FedAvg": (lambda net: PerFedAvg(net, **ALL_LOCAL), {"training_step": 3}),
    "Per-FedAvg, first order": (lambda net: PerFedAvg(net, form="fo", **ALL_LOCAL), {"training_step": 2}),
    "FedBCD-I": (lambda net: FedBCDI(net, **ALL_LOCAL), {"training_step": 1, "pull_step": 0}),
    "Ditto": (lambda net: Ditto(net, **ALL_LOCAL), {"training_step": 1, "personal_step": 1}),
    "Ditto, interleaved": (lambda net: Ditto(net, order="interleaved", **ALL_LOCAL), {"training_step": 2}),
}


@pytest.mark.parametrize("name", PASSES)
def test_passes_of_the_net_in_a_step_are_counted(name: str) -> None:
    make, expected = PASSES[name]
    client = make(with_layer(nn.Dropout(0.5)).eval())
    client.prepare()
    before = {name: value.clone() for name, value in client.state_dict().items()}
    found = {
        phase.step_method: net_passes(client, phase.step_method, torch.ones(FEATURES)) for phase in client.phases()
    }
    assert found == expected
    assert all(torch.equal(value, before[name]) for name, value in client.state_dict().items())
    assert not client.net.training


def test_estimate_grows_with_the_passes_of_a_step() -> None:
    few, many = (PFedMe(Softmax(FEATURES, 3), inner_steps=steps, **ALL_LOCAL) for steps in (2, 10))
    short, long = (estimated_step_s(client, torch.ones(FEATURES), threads=1) for client in (few, many))
    assert long > 4 * short


class Counting(ServerCallback):
    """The local steps of all phases of a run, as they are taken; servers have copies, which count together."""

    steps = 0

    def on_cohort_trained(self, trainer: Any, client: Any, cohort: Any) -> None:
        counted = [trainer.loop.parts.gatherer.all_steps([cohort], phase.work_method) for phase in client.phases()]
        Counting.steps += sum(int(steps.sum()) for steps in counted)


EVENTS: dict[str, tuple[Callable[[nn.Module], Client], dict[str, Any]]] = {
    "drawn steps": (lambda net: FedBCD(net, most_steps=5, **ALL_LOCAL), {}),
    "two phases": (lambda net: FedBCDI(net, most_steps=5, **ALL_LOCAL), {}),
    "stragglers": (lambda net: FedProx(net, stragglers=0.5, local_epochs=4, **ALL_LOCAL), {}),
    "a cloud whose servers do not wait": (
        lambda net: FedAvg(net, **ALL_LOCAL),
        {"cloud": Cloud(4, first=2), "clock": Clock(), "sampler": "earliest", "clients_per_round": 2},
    ),
    "a buffer": (
        lambda net: FedAvg(net, **ALL_LOCAL),
        {"buffer": Buffer(size=2, concurrency=6), "clock": Clock()},
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_steps_that_auto_counts_are_those_that_are_taken(name: str) -> None:
    make, options = EVENTS[name]
    Counting.steps = 0
    client = make(Softmax(FIVE, 3).double())
    options = {"rounds": 12, "clients_per_round": 8, "engine": "auto", "callbacks": [Counting()]} | options
    trainer = run(client, tiny_data(tuple(range(16, 32))), **options)
    counted = re.search(r"about ([\d,]+) local steps", trainer.summary["why"])
    assert counted is not None
    assert 0.7 < int(counted[1].replace(",", "")) / Counting.steps < 1.4
