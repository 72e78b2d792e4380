"""Which engine trains what: rules for nets that the vectorized engine runs in one eager lane, and counted work."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlit import CharLSTM, FedAvg
from fedlit.engines.choose import Choice, Request, choose, step_flop
from fedlit.errors import ConfigError

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


ONE_LANE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batchnorm": (lambda: with_layer(nn.BatchNorm1d(4)), "the buffer '1.running_mean', so its batches are not padded"),
    "batchnorm without statistics": (
        lambda: with_layer(nn.BatchNorm1d(4, track_running_stats=False)),
        "has BatchNorm, so its batches are not padded",
    ),
    "constant": (Scaled, "the buffer 'scale', so its batches are not padded"),
    "lstm": (lambda: Recurrent(nn.LSTM), "recurrent layers are unrolled by the compiler"),
    "gru": (lambda: Recurrent(nn.GRU), "recurrent layers are unrolled by the compiler"),
}


def chosen(net: nn.Module, rounds: int = LONG, **request: Any) -> Choice:
    client = FedAvg(net, batch_size=4)
    return choose(Request(**request), client, np.full(6, 10), per_round=4, rounds=rounds, sample=torch.ones(FEATURES))


@pytest.mark.parametrize("compiled", [None, False])
@pytest.mark.parametrize("net", ONE_LANE)
def test_forced_vectorized_takes_one_eager_lane_and_says_why(net: str, compiled: bool | None) -> None:
    make, why = ONE_LANE[net]
    choice = chosen(make(), engine="vectorized", compiled=compiled)
    assert (choice.engine, choice.lanes, choice.workers, choice.compiled) == ("vectorized", 1, 1, False)
    assert choice.line().startswith("engine: vectorized, 1 lanes × 1 workers, eager (")
    assert why in choice.line()


@pytest.mark.parametrize("rounds", [1, LONG])
@pytest.mark.parametrize("net", ONE_LANE)
def test_auto_trains_such_nets_one_by_one_and_says_why(net: str, rounds: int) -> None:
    make, why = ONE_LANE[net]
    choice = chosen(make(), rounds)
    assert choice.engine == "sequential"
    assert why in choice.line()


@pytest.mark.parametrize("engine", ["vectorized", "auto"])
@pytest.mark.parametrize("net", ONE_LANE)
def test_compiling_such_nets_is_refused(net: str, engine: str) -> None:
    make, why = ONE_LANE[net]
    with pytest.raises(ConfigError, match=r"trainer\.compiled is true, but .* Leave trainer\.compiled out") as refused:
        chosen(make(), engine=engine, compiled=True)
    assert why in str(refused.value)


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
def test_dropout_beside_batchnorm_is_still_trained_one_by_one(request_: dict[str, Any]) -> None:
    net = with_layer(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)))
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
